"""The YAML files of conf: which choices a group has, and what each says."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any, cast

import yaml
from yaml import CSafeLoader  # reads all of conf in 10 ms instead of 80

from lengthgen.config.sections import flatten
from lengthgen.errors import UserError
from lengthgen.files import Unreadable, read_bytes

GLOBAL = "# @package _global_"  # the first line of a file that sets keys of several groups
GRID = "grid"  # the axes of a study, which config/study.py reads
VARIANT = "variant"  # a folder of conf that is no group: eval.variants chooses several


def conf_dir() -> Path:
    """Returns the shipped conf: in the package (wheel) or one level up (checkout)."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def choices(group: str, *, config_dir: Path | None) -> dict[str, Path]:
    """Returns the YAML files that a group may be set to by name, the user's own included."""
    return dict(sorted(folders(config_dir).get(group, {}).items()))


def folders(config_dir: Path | None) -> dict[str, dict[str, Path]]:
    """Returns the YAML files of each folder of conf and of the user's own, by name.

    Raises UserError if the latter repeats a shipped name: Hydra would ignore that file.
    """
    if config_dir is not None and not config_dir.is_dir():
        raise UserError(
            f"--config-dir: {config_dir} is not a folder; give one with GROUP/NAME.yaml"
        )
    folders: dict[str, dict[str, Path]] = {}
    for root in dict.fromkeys([conf_dir(), (config_dir or conf_dir()).resolve()]):
        for file in root.glob("*/*.yaml"):
            group, name = file.parent.name, file.stem
            known = folders.setdefault(group, {}).setdefault(name, file)
            if known != file:
                raise UserError(f"{file}: {group}={name} exists already ({known}); rename yours")
    return folders


def describe(file: Path) -> str:
    """Returns the first paragraph of the comment that a choice's YAML begins with, as one line."""
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
    stripped = (line.removeprefix("#").strip() for line in comment if "@package" not in line)
    return " ".join(itertools.takewhile(bool, stripped))


def load_choice(group: str, choice: str) -> dict[str, Any]:
    """Returns the values of a shipped choice's YAML, not composed with anything."""
    return read_yaml(conf_dir() / group / f"{choice}.yaml")


class Loader(CSafeLoader):
    """A loader of YAML that refuses a key which stands twice, of which the last would count.

    2024_01, 007, 12:30 and 1.50 stay words, whose key says if they are numbers.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [str(key.value) for key, _ in node.value]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"has the key {twice.pop()} twice; remove one")
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> Any:
        is_int = node.tag.endswith("int")
        value = self.construct_yaml_int(node) if is_int else self.construct_yaml_float(node)
        is_usual = str(value) == node.value or re.search(r"\de|[fn]$", node.value, re.IGNORECASE)
        return value if is_usual else node.value


for kind in ("int", "float"):
    Loader.add_constructor(f"tag:yaml.org,2002:{kind}", Loader.construct_number)


def read_yaml(path: Path, *, takes_aliases: bool = True) -> dict[str, Any]:
    """Returns the values of a YAML file. Raises UserError if it holds no mapping.

    A few lines of aliases of aliases fill the memory, and what is written here has none.
    """
    try:
        text = read_bytes(path).decode()
        events = yaml.parse(text, CSafeLoader) if "*" in text and not takes_aliases else ()
        if any(isinstance(event, yaml.AliasEvent) for event in events):
            raise ValueError("has an alias (*NAME); write out what it stands for")
        plain: object = yaml.load(text, Loader=Loader)
    except FileNotFoundError:
        raise UserError(f"{path}: does not exist") from None
    except OSError as error:
        raise Unreadable(path, error) from None
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: cannot be read as YAML: {error}") from None
    if not isinstance(plain, dict | None):
        raise UserError(f"{path}: holds no KEY: VALUE lines")
    return cast("dict[str, Any]", plain or {})


def defaults() -> dict[str, Any]:
    """Returns conf/config.yaml itself: values by section, and in `defaults` the groups' choices."""
    return read_yaml(conf_dir() / "config.yaml")


def settings_of(group: str, file: Path, *below: Path) -> dict[str, Any]:
    """Returns what a choice sets by dotted key, groups by name, with the files it begins with."""
    plain, settings = read_yaml(file), dict[str, Any]()
    for item in plain.pop("defaults", None) or []:
        if isinstance(item, dict):
            settings |= {key.rpartition("/")[2]: choice for key, choice in item.items()}
        files = [root / f"{item}.yaml" for root in (file.parent, conf_dir() / group)]
        if parent := next((path for path in files if path.is_file()), None):
            settings |= settings_of(group, parent, file, *below) if parent not in below else {}
    return settings | flatten(plain if is_global(file) else {group: plain})


def is_global(file: Path) -> bool:
    return re.match(rb"\s*#\s*@package\s+_global_", file.read_bytes()) is not None
