"""The only Hydra: YAML groups and KEY=VALUE overrides become one plain dict.

Hydra is imported inside functions: shell completion reads the YAML files alone and must be quick.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import yaml
from yaml import CSafeLoader as SafeLoader  # reads all of conf in 10 ms instead of 80

from lengthgen.errors import UserError, first_line, shortened, suggestion

VARIANT = "variant"  # a folder of conf that is no group: eval.variants chooses several

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig


def conf_dir() -> Path:
    """Returns the shipped conf: in the package (wheel) or one level up (checkout)."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def choices(group: str, *, config_dir: Path | None) -> list[str]:
    """Returns the names a group may be set to, the user's own included."""
    return sorted(_files(group, config_dir))


def describe(group: str, choice: str, *, config_dir: Path | None) -> str:
    """Returns the first paragraph of the comment that a choice's YAML begins with, as one line."""
    lines = _text(_files(group, config_dir)[choice]).splitlines()
    comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
    stripped = (line.removeprefix("#").strip() for line in comment if "@package" not in line)
    return " ".join(itertools.takewhile(bool, stripped))


def load(group: str, choice: str, *, config_dir: Path | None) -> dict[str, Any]:
    """Returns the values of one choice's YAML, not composed with anything."""
    return read(_files(group, config_dir)[choice])


def read(path: Path) -> dict[str, Any]:
    """Returns the values of a YAML file. Raises UserError if it holds no mapping."""
    try:
        plain: object = yaml.load(_text(path), Loader=SafeLoader)
    except yaml.YAMLError as error:
        _refuse_yaml(error, path)
    if not isinstance(plain, dict | None):
        raise UserError(f"{path}: holds no KEY: VALUE lines")
    return cast("dict[str, Any]", plain or {})


def add_variants(plain: dict[str, Any], *, config_dir: Path | None) -> None:
    """Adds conf/variant/NAME.yaml of the training-free variants that eval names, as "a+b" too.

    Those that the configuration has or the scheme brings stay. The schema refuses unknown ones.
    """
    evaluation, scheme, own = (plain.get(key) for key in ("eval", "scheme", "variants"))
    if not (isinstance(evaluation, dict) and isinstance(scheme, dict) and isinstance(own, dict)):
        return  # which the schema refuses
    names = [*(evaluation.get("variants") or []), *(evaluation.get("reference_variants") or [])]
    known = choices(VARIANT, config_dir=config_dir)
    for name in {part for joined in names for part in str(joined).split("+")}:
        if name in known and name not in own and name not in scheme.get("variants", {}):
            own[name] = load(VARIANT, name, config_dir=config_dir)


def defaults() -> dict[str, Any]:
    """Returns the values of conf/config.yaml itself, without those of the groups."""
    plain = read(conf_dir() / "config.yaml")
    del plain["defaults"]
    return plain


def root_of(changes: Mapping[str, Any]) -> Path:
    """Returns the folder of runs: runtime.root of changes by dotted key, or the default one."""
    return Path(changes.get("runtime.root", defaults()["runtime"]["root"]))


def compose(overrides: Sequence[str], *, config_dir: Path | None) -> dict[str, Any]:
    """Returns the composed configuration as a plain dict, interpolations resolved.

    Raises UserError for an override that cannot be read or holds several values, an unknown
    choice or key, a missing mandatory value, or a YAML file that is not valid.
    """
    parsed = _parse(overrides)
    for override in parsed:
        _refuse_several(override)
        _refuse_unknown_choice(override, config_dir)
    plain = _composed(overrides, config_dir)
    add_variants(plain, config_dir=config_dir)
    if "task" in plain:
        task = plain.pop("task")["name"]  # a copy of corpus.task
        for override in parsed:
            file = _files(override.key_or_group, config_dir).get(str(override.value()))
            brings_text = override.key_or_group in ("corpus", "experiment")
            if brings_text and (file is None or "override /task" not in _text(file)):
                word = override.input_line
                raise UserError(f"{word}: task={task} makes its own text; drop one of them")
    return plain


def values(overrides: Sequence[str]) -> dict[str, Any]:
    """Returns the plain value of every override by its dotted key, without composing anything."""
    plain: dict[str, Any] = {}
    for override in _parse(overrides):
        _refuse_several(override)
        if override.is_delete() or override.is_add() or override.is_force_add():
            raise UserError(f"{override.input_line}: only KEY=VALUE is allowed here; drop the sign")
        plain[override.key_or_group] = override.value()
    return plain


def expand(overrides: Sequence[str], *, config_dir: Path | None) -> list[list[str]]:
    """Returns one list of overrides per point of the grid: a,b, range() and glob() multiply.

    Raises UserError for an axis without points.
    """
    axes = [_axis(override, config_dir) for override in _parse(overrides)]
    return [list(point) for point in itertools.product(*axes)]


def _axis(override: Override, config_dir: Path | None) -> list[str]:
    """Returns an override once for each of the values it holds."""
    from hydra.core.override_parser.types import Glob

    word, sweep = str(override.input_line), override.value()
    if not override.is_sweep_override():
        return [word]
    if override.is_interval_sweep():
        raise UserError(f"{word}: an interval has no points; use range() or a,b")
    try:
        points = (
            sweep.filter(choices(override.key_or_group, config_dir=config_dir))
            if isinstance(sweep, Glob)
            else list(override.sweep_string_iterator())
        )
    except ValueError as error:  # of a step of 0
        raise UserError(f"{word}: {error}") from None
    if not points:
        raise UserError(f"{word}: matches nothing; it needs at least one value")
    return [f"{override.get_key_element()}={point}" for point in points]


def alternatives(overrides: Sequence[str]) -> dict[str, list[Any]]:
    """Returns the plain values of a,b, range() or glob() by dotted key. Raises as expand does."""
    by_key: dict[str, list[Any]] = {}
    for override in overrides:
        for point in expand([override], config_dir=None):
            for key, value in values(point).items():
                by_key.setdefault(key, []).append(value)
    return by_key


def completions(incomplete: str, *, config_dir: Path | None) -> list[str]:
    """Returns what a shell may offer for a partly typed override: KEY=DEFAULT or GROUP=CHOICE.

    Sections alone come first: there are hundreds of keys.
    """
    sign = incomplete[: len(incomplete) - len(incomplete.lstrip("+~"))]
    typed = incomplete.removeprefix(sign)
    several, comma, last = typed.rpartition(",")  # as a sweep takes them
    if comma:
        key = several.partition("=")[0]
        known = keys(config_dir=config_dir).get(key, [])
        return [f"{sign}{several},{value}" for value in known if value.startswith(last)]
    words = [f"{k}={v}" for k, known in keys(config_dir=config_dir).items() for v in known]
    offered = sorted(word for word in words if word.startswith(typed))
    sections = {re.sub(r"(?<=[.=]).*", "", word) for word in offered}
    return [sign + word for word in (offered if len(sections) == 1 else sorted(sections))]


def keys(*, config_dir: Path | None) -> dict[str, list[str]]:
    """Returns the choices of each group, and the default of each key that any choice has."""
    groups = {group: choices(group, config_dir=config_dir) for group in _groups(config_dir)}
    flat = flatten(defaults())
    for group, names in groups.items():
        for name in names:
            flat |= flatten(_load_at_keys(group, name, config_dir).get(group, {}), f"{group}.")
    one_line = {k: "" if v == "???" else _as_override(v) for k, v in flat.items()}
    return {key: [value] for key, value in one_line.items()} | groups


def check_changes(changes: Mapping[str, Any], sections: Sequence[str]) -> None:
    """Raises UserError for a changed key of a run outside the sections, or unknown within them."""
    known = [
        key for key in keys(config_dir=None) if key.startswith(tuple(f"{s}." for s in sections))
    ]
    for key in changes:
        if key.partition(".")[0] not in sections or "." not in key:
            allowed = " and ".join(f"{section}.*" for section in sections)
            raise UserError(f"{key}: only {allowed} can be given here; the run fixes the rest")
        if key not in known:
            raise UserError(f"{key}: unknown key; {suggestion(key, known)}")


def overrides_of(values: Mapping[str, Any]) -> list[str]:
    """Returns nested values as overrides: {"train": {"lr": 0.004}} as ["train.lr=0.004"]."""
    return [f"{key}={_as_override(value)}" for key, value in flatten(values).items()]


def _as_override(value: object) -> str:
    """Returns a YAML value as one writes it in an override."""
    if isinstance(value, list):
        return f"[{','.join(_as_override(item) for item in cast('list[object]', value))}]"
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def flatten(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the leaves of a nested dict by dotted key; an empty dict is a leaf."""
    flat: dict[str, Any] = {}
    for key, value in plain.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(cast("Mapping[str, Any]", value), f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _directories(config_dir: Path | None) -> Iterator[Path]:
    yield conf_dir()
    if config_dir is not None and config_dir.resolve() != conf_dir():
        if not config_dir.is_dir():
            raise UserError(f"--config-dir: {config_dir} is not a folder; give a folder of groups")
        yield config_dir.resolve()


def _groups(config_dir: Path | None) -> list[str]:
    files = (f for folder in _directories(config_dir) for f in folder.glob("*/*.yaml"))
    return sorted({file.parent.name for file in files} - {VARIANT})


def _files(group: str, config_dir: Path | None) -> dict[str, Path]:
    """Returns the YAML file of every choice of a group.

    Raises UserError if the user's folder repeats a shipped name: Hydra would ignore that file.
    """
    by_name: dict[str, Path] = {}
    for directory in _directories(config_dir):
        for file in sorted(directory.glob(f"{group}/*.yaml")):
            if file.stem in by_name:
                raise UserError(
                    f"{file}: {group}={file.stem} exists already ({by_name[file.stem]}); "
                    "give yours another name"
                )
            by_name[file.stem] = file
    return by_name


def _load_at_keys(group: str, choice: str, config_dir: Path | None) -> dict[str, Any]:
    """Returns the values of one choice's YAML at their keys of the whole configuration."""
    plain = load(group, choice, config_dir=config_dir)
    is_global = _text(_files(group, config_dir)[choice]).startswith("# @package _global_")
    return plain if is_global else {group: plain}


def _refuse_yaml(error: yaml.YAMLError, path: Path | None) -> NoReturn:
    """Raises UserError with file and line; Hydra's errors name the file in their mark."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    where = path or getattr(mark, "name", "--config-dir")
    line = f":{mark.line + 1}" if mark is not None else ""
    raise UserError(f"{where}{line}: not valid YAML: {problem or first_line(error)}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8; save it as UTF-8") from None
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
        raise UserError(f"{path}: {reason}; fix its permissions or remove it") from None


def _parse(overrides: Sequence[str]) -> list[Override]:
    parsed: list[Override] = []
    for word in overrides:
        override = _parsed(word)
        if override is None:
            remedy = _quoted(word) or "give KEY=VALUE, such as scheme=rope or train.lr=1e-3"
            raise UserError(f"{shortened(word)}: not readable as an override; {remedy}")
        parsed.append(override)
    return parsed


def _parsed(word: str) -> Override | None:
    """Returns what Hydra reads, None if it cannot."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(word)
    except (HydraException, ValueError, RecursionError):
        return None


def _quoted(word: str) -> str | None:
    """Returns the remedy of a value in quotes, as a shell takes them; None if it is none."""
    key, _, value = word.partition("=")
    mark = "'" if '"' in value else '"'
    quoted = f"{key}={mark}{value.replace(mark, chr(92) + mark)}{mark}"
    override = _parsed(quoted) if key and value and "${" not in value and len(value) < 200 else None
    if override is None or override.value() != value:
        return None
    return f"quote special characters, as in {shlex.quote(quoted)}"


def _refuse_several(override: Override) -> None:
    if not override.is_sweep_override():
        return
    word = str(override.input_line)
    key, _, value = word.partition("=")
    as_list = f"{key}=[{value}]"
    is_list = "." in key and override.is_choice_sweep() and _parsed(as_list) is not None
    listed = f" (a list is written {as_list})" if is_list else ""
    raise UserError(
        f"{word} holds several values, and one run takes one{listed}; run it once per value, or "
        "use lengthgen sweep"
    )


def _refuse_unknown_choice(override: Override, config_dir: Path | None) -> None:
    group = override.key_or_group
    if group not in _groups(config_dir) or override.is_delete():
        return
    name, known = override.get_value_element_as_str(), choices(group, config_dir=config_dir)
    if name in known or isinstance(override.value(), dict):
        return
    near = name.lower()
    titles = {choice: describe(group, choice, config_dir=config_dir).lower() for choice in known}
    titled = [choice for choice in known if titles[choice].startswith(f"{near} ")]  # rotary
    remedy = suggestion(titled[0] if titled and near not in known else near, known)
    if group == "scheme" and near in choices(VARIANT, config_dir=config_dir):
        remedy = f"{near} is a variant of a trained scheme: give eval.variants=[{near}]"
    raise UserError(f"{group}={shortened(name)}: no such {group}; {remedy}")


def _composed(overrides: Sequence[str], config_dir: Path | None) -> dict[str, Any]:
    """Returns what Hydra makes of the overrides, as plain values; its errors become one line."""
    from hydra.errors import ConfigCompositionException, HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

    try:
        composed = _hydra(overrides, config_dir)
        plain = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
        return cast("dict[str, Any]", plain)
    except MissingMandatoryValue as error:
        key = error.full_key
        raise UserError(f"{key}: a value is required; give {key}=VALUE") from None
    except yaml.YAMLError as error:
        _refuse_yaml(error, None)
    except OmegaConfBaseException as error:
        raise UserError(f"{error.full_key}: {first_line(error)}") from None
    except (HydraException, ValueError, OSError) as error:
        for file in (config_dir or conf_dir()).glob("*/*.yaml"):
            read(file)  # names one that holds no mapping or is not UTF-8
        if isinstance(error, ConfigCompositionException):
            raise _unknown(error, config_dir) from None
        line = shortened(first_line(error).partition(" : ")[0])
        raise UserError(f"{_words(overrides)}: Hydra cannot compose this: {line}") from None
    except RecursionError:
        raise UserError(
            f"{_words(overrides)}: a YAML file lists itself among its defaults, or brackets are "
            "nested too deeply"
        ) from None


def _hydra(overrides: Sequence[str], config_dir: Path | None) -> DictConfig:
    import hydra
    from hydra.core.global_hydra import GlobalHydra

    words = list(overrides)
    for directory in itertools.islice(_directories(config_dir), 1, None):
        quoted = str(directory).replace("\\", "\\\\").replace("'", "\\'")
        words.append(f"hydra.searchpath=['file://{quoted}']")
    # Hydra 1.4 deprecates version_base; before it, leaving it out warns.
    version = {} if hydra.__version__.startswith("1.4") else {"version_base": "1.3"}
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(conf_dir()), **version):
        return hydra.compose("config", overrides=words)


def _words(overrides: Sequence[str]) -> str:
    return shortened(" ".join(overrides))


def _unknown(error: Exception, config_dir: Path | None) -> UserError:
    """Returns one line on the override that Hydra refused, with the key that was meant."""
    refused = re.match(r"Could not override '(.+)'", first_line(error))
    if refused is None:
        remedy = "; drop the +" if str(error).startswith("Could not append") else ""
        return UserError(f"{first_line(error).rstrip('.')}{remedy}")
    key = refused[1]
    group = key.partition(".")[0]
    for name in choices(group, config_dir=config_dir):
        if key in flatten(_load_at_keys(group, name, config_dir)):
            return UserError(f"{key}: the chosen {group} has no such key, but {group}={name} has")
    return UserError(f"{key}: unknown key; {suggestion(key, keys(config_dir=config_dir))}")
