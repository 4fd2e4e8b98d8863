"""The only Hydra: YAML groups and KEY=VALUE overrides become one plain dict.

Hydra is imported inside functions: shell completion reads the YAML files alone and must be quick.
"""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lengthgen.errors import UserError, first_line, shortened, suggestion
from lengthgen.files import parse_yaml, read_bytes

VARIANT = "variant"  # a folder of conf that is no group: eval.variants chooses several
PROBE = "probe"  # nor this one: options of probes, which no run depends on
MOST_POINTS = 10_000  # of a grid: each is validated before the first one runs

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override, RangeSweep
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
    return _paragraphs(group, choice, config_dir)[0]


def claim(scheme: str, *, config_dir: Path | None) -> str:
    """Returns what a scheme's paper claims of lengths beyond T; empty where nothing is recorded.

    It is the paragraph after `Claim:` in the comment that the scheme's YAML begins with.
    """
    paragraphs = _paragraphs("scheme", scheme, config_dir)
    return next((p.removeprefix("Claim: ") for p in paragraphs if p.startswith("Claim: ")), "")


def _paragraphs(group: str, choice: str, config_dir: Path | None) -> list[str]:
    """Returns the paragraphs of the comment that a choice's YAML begins with, each as one line."""
    text = _text(_files(group, config_dir)[choice])
    lines = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    stripped = (line.removeprefix("#").strip() for line in lines if "@package" not in line)
    return [part.replace("\n", " ") for part in "\n".join(stripped).split("\n\n")]


def load(group: str, choice: str, *, config_dir: Path | None) -> dict[str, Any]:
    """Returns the values of one choice's YAML, not composed with anything."""
    return read(_files(group, config_dir)[choice])


def _load_at_keys(group: str, choice: str, config_dir: Path | None) -> dict[str, Any]:
    """Returns the values of one choice's YAML at their keys of the whole configuration."""
    first_line = _text(_files(group, config_dir)[choice]).partition("\n")[0]
    plain = load(group, choice, config_dir=config_dir)
    return plain if first_line == "# @package _global_" else {group: plain}


def variants(*, config_dir: Path | None) -> dict[str, Any]:
    """Returns the training-free variants that any scheme may take, by name: conf/variant/*.yaml."""
    return {
        name: load(VARIANT, name, config_dir=config_dir)
        for name in choices(VARIANT, config_dir=config_dir)
    }


def defaults() -> dict[str, Any]:
    """Returns the values of conf/config.yaml itself, without those of the groups."""
    return {
        key: value for key, value in read(conf_dir() / "config.yaml").items() if key != "defaults"
    }


def root_of(changes: Mapping[str, Any]) -> Path:
    """Returns the folder of runs: runtime.root of changes by dotted key, or the default one."""
    return Path(changes.get("runtime.root", defaults()["runtime"]["root"]))


def compose(overrides: Sequence[str], *, config_dir: Path | None) -> dict[str, Any]:
    """Returns the composed configuration as a plain dict, interpolations resolved.

    Raises UserError for an override that cannot be read or holds several values, an unknown
    choice or key, a missing mandatory value, or a YAML file that is not valid.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

    parsed = _parse(overrides)
    groups = _groups(config_dir)
    for override in parsed:
        _check(override, groups, config_dir)
    try:
        composed = _composed(parsed, groups, config_dir)
        plain = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        key = error.full_key
        raise UserError(f"{key}: a value is required; give {key}=VALUE") from None
    except OmegaConfBaseException as error:
        raise UserError(f"{error.full_key}: {first_line(error)}") from None
    except RecursionError:
        raise UserError(
            f"{_words(parsed)}: nested too deeply, or a YAML file lists itself among its defaults"
        ) from None
    found = cast("dict[str, Any]", plain)
    own = found.get("variants", {})
    if isinstance(own, dict):  # the schema refuses others
        found["variants"] = {**variants(config_dir=config_dir), **own}
    if "task" in found:
        task: dict[str, Any] = found.pop("task")  # a copy of corpus.task
        for override in parsed:
            group, word = override.key_or_group, str(override.input_line)
            name = word.partition("=")[2]
            if group == "corpus" or (
                group == "experiment" and not is_of_tasks(name, config_dir=config_dir)
            ):
                raise UserError(f"{word}: task={task['name']} makes its own text; drop one of them")
    return found


def is_of_tasks(experiment: str, *, config_dir: Path | None) -> bool:
    """True if an experiment trains on tasks: it overrides their group."""
    if experiment not in choices("experiment", config_dir=config_dir):
        return False
    listed: object = load("experiment", experiment, config_dir=config_dir).get("defaults")
    entries = cast("list[object]", listed) if isinstance(listed, list) else []
    return any(isinstance(entry, Mapping) and "override /task" in entry for entry in entries)


def values(overrides: Sequence[str]) -> dict[str, Any]:
    """Returns the plain value of every override by its dotted key, without composing anything."""
    found: dict[str, Any] = {}
    for override in _parse(overrides):
        _refuse_several(override)
        if override.is_delete() or override.is_add() or override.is_force_add():
            raise UserError(f"{override.input_line}: only KEY=VALUE is allowed here; drop the sign")
        found[override.key_or_group] = override.value()
    return found


def expand(overrides: Sequence[str], *, config_dir: Path | None) -> list[list[str]]:
    """Returns one list of overrides per point of the grid: a,b, range() and glob() multiply.

    Raises UserError for an axis without points, and for a grid of more than MOST_POINTS.
    """
    from hydra.core.override_parser.types import Glob, RangeSweep

    axes: list[list[str]] = []
    for override in _parse(overrides):
        key, value = override.get_key_element(), override.value()
        if not override.is_sweep_override():
            axes.append([str(override.input_line)])
            continue
        if override.is_interval_sweep():
            raise UserError(f"{override.input_line}: an interval has no points; use range() or a,b")
        if isinstance(value, RangeSweep):
            _check_range(value, str(override.input_line))
        if isinstance(value, Glob):
            names = choices(override.key_or_group, config_dir=config_dir)
            points = value.filter(names)
        else:
            points = _points(override)
        if not points:
            raise UserError(f"{override.input_line}: matches nothing; it needs at least one value")
        axes.append([f"{key}={point}" for point in points])
        _check_size(math.prod(map(len, axes)), str(override.input_line))
    return [list(point) for point in itertools.product(*axes)]


def alternatives(overrides: Sequence[str]) -> dict[str, list[Any]]:
    """Returns the plain values of a,b, range() or glob() by dotted key. Raises as expand does."""
    found: dict[str, list[Any]] = {}
    for override in overrides:
        for point in expand([override], config_dir=None):
            for key, value in values(point).items():
                found.setdefault(key, []).append(value)
    return found


def _check_range(given: RangeSweep, typed: str) -> None:
    start, stop, step = (float(number or 0) for number in (given.start, given.stop, given.step))
    if step == 0 or not math.isfinite(start + stop + step):
        raise UserError(f"{typed}: a range without an end; give range(START,STOP,STEP)")
    _check_size((stop - start) / step, typed)


def _check_size(n: float, typed: str) -> None:
    if n > MOST_POINTS:
        raise UserError(
            f"{typed}: a grid of more than {MOST_POINTS:,} points; give fewer values, and sweep "
            "again for the others"
        )


def _points(override: Override) -> list[str]:
    """Returns the values of a sweep as they were typed: 1e-3, not 0.001; ${x}, not $\\{x\\}.

    Those of range() and other functions are written as Hydra does.
    """
    typed: list[Override] = []
    start = ""  # of a value: a comma may stand within its brackets or quotes
    for piece in str(override.input_line).partition("=")[2].split(","):
        try:
            typed += _parse([f"value={start}{piece}"])
            start = ""
        except UserError:
            start += f"{piece},"
    written = list(override.sweep_string_iterator())
    if any(value.is_sweep_override() for value in typed):
        return written
    values = [value.get_value_element_as_str() for value in typed]
    return [str(value.input_line)[6:].strip() for value in typed] if values == written else written


def completions(incomplete: str, *, config_dir: Path | None) -> list[str]:
    """Returns what a shell may offer for a partly typed override, from the YAML files alone.

    Keys come a level at a time. The only key left is offered with its choices or its default too:
    a lone candidate would make the shell add a space behind its "=".
    """
    groups = _groups(config_dir)
    known = {group: choices(group, config_dir=config_dir) for group in groups}
    flat = flatten(defaults())
    for group in set(groups) - _nullable():  # an experiment's keys are those of other groups
        for name in choices(group, config_dir=config_dir):
            placed = _load_at_keys(group, name, config_dir)
            flat |= flatten({group: placed.get(group, {})})  # a task sets keys of other groups, too
    for key, value in flat.items():
        known.setdefault(key, [] if value == "???" else [_as_override(value)])

    sign = incomplete[: len(incomplete) - len(incomplete.lstrip("+~"))]
    key, equals, value = incomplete.removeprefix(sign).partition("=")
    if equals:
        first, comma, last = value.rpartition(",")  # several values, as a sweep takes them
        chosen = [choice for choice in known.get(key, []) if choice.startswith(last)]
        offered = [f"{key}={first}{comma}{choice}" for choice in chosen]
        return [sign + word for word in offered]
    words = _next_level(known, key)
    while len(words) == 1 and words[0].endswith("."):
        words = _next_level(known, words[0])
    if len(words) == 1:
        only = words[0].removesuffix("=")
        values = [f"{only}={choice}" for choice in known[only]]
        words = values if only in groups else words + values
    return [sign + word for word in words]


def _next_level(keys: Mapping[str, object], prefix: str) -> list[str]:
    """Returns the keys that continue `prefix`, cut behind their next dot."""
    rest = [key.removeprefix(prefix) for key in keys if key.startswith(prefix)]
    heads = (tail.partition(".") for tail in rest)
    return sorted({prefix + head + (dot or "=") for head, dot, _ in heads})


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
    """Returns the groups: those of the defaults list, whose folder may be empty, and the user's."""
    listed = (entry for entry in read(conf_dir() / "config.yaml")["defaults"])
    named = {str(next(iter(entry))) for entry in listed if isinstance(entry, Mapping)}
    folders = {
        file.parent.name
        for directory in _directories(config_dir)
        for file in directory.glob("*/*.yaml")
    }
    return sorted((named | folders) - {VARIANT, PROBE})


def _files(group: str, config_dir: Path | None) -> dict[str, Path]:
    """Returns the YAML file of every choice of a group.

    Raises UserError if the user's folder repeats a shipped name: Hydra would ignore that file.
    """
    found: dict[str, Path] = {}
    for directory in _directories(config_dir):
        for file in sorted(directory.glob(f"{group}/*.yaml")):
            if file.stem in found:
                raise UserError(
                    f"{file}: {group}={file.stem} exists already ({found[file.stem]}); "
                    "give yours another name"
                )
            found[file.stem] = file
    return found


def read(path: Path) -> dict[str, Any]:
    """Returns the values of a YAML file. Raises UserError if it holds no mapping."""
    import yaml

    try:
        values = _parsed(path)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where, problem = path, getattr(error, "problem", error)
        if mark is not None:
            where = f"{path}:{mark.line + 1}"
        raise UserError(f"{where}: not valid YAML: {problem}") from None
    if not isinstance(values, dict | None):
        raise UserError(f"{path}: holds no KEY: VALUE lines")
    return cast("dict[str, Any]", values or {})


def _parsed(path: Path) -> Any:
    try:
        return parse_yaml(_text(path))
    except ValueError as error:
        raise UserError(f"{path}: not readable as YAML: {error}; correct or remove it") from None


def _text(path: Path) -> str:
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8; save it as UTF-8") from None
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
        raise UserError(f"{path}: {reason}; fix its permissions or remove it") from None


def _parse(overrides: Sequence[str]) -> list[Override]:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    parsed: list[Override] = []
    for word in overrides:
        try:
            parsed.append(parser.parse_override(word))
        except (HydraException, ValueError, RecursionError):  # too many digits or brackets
            key, equals, value = word.partition("=")
            remedy = (
                f"quote special characters, as in \"{key}='{value}'\""
                if equals and "'" not in value and len(word) <= 200
                else "give KEY=VALUE, such as scheme=rope or train.lr=1e-3"
            )
            line = f"{shortened(word)}: not readable as an override; {remedy}"
            raise UserError(line) from None
    return parsed


def _refuse_several(override: Override) -> None:
    if not override.is_sweep_override():
        return
    word = str(override.input_line)
    key, _, value = word.partition("=")
    listed = f" (a list is written {key}=[{value}])" if "." in key else ""
    raise UserError(
        f"{word} holds several values, and one run takes one{listed}; run it once per value, or "
        "use lengthgen sweep"
    )


def _check(override: Override, groups: Sequence[str], config_dir: Path | None) -> None:
    """Raises UserError for what Hydra would misread, ignore, or explain in many lines."""
    _refuse_several(override)
    word, key = str(override.input_line), override.key_or_group
    if override.is_hydra_override() or key == "hydra":
        raise UserError(f"{word}: Hydra's own settings have no effect here; drop it")
    if override.package is not None:
        raise UserError(f"{word}: packages are not allowed on the command line; drop '@...'")
    if key not in groups or override.is_delete():
        return
    if override.is_add() or override.is_force_add():
        raise UserError(f"{word}: {key} is chosen already; drop the + to choose another one")
    chosen = override.value()
    known = choices(key, config_dir=config_dir)
    if isinstance(chosen, dict) or (chosen is None and key in _nullable()):
        return
    if isinstance(chosen, list):
        raise UserError(f"{word}: {key} takes one choice; write a YAML of your own to mix several")
    name = override.get_value_element_as_str()
    if name not in known:
        remedy = suggestion(name, known) if known else "there are none"
        raise UserError(f"{key}={name}: no such {key}; {remedy}")
    load(key, name, config_dir=config_dir)  # names the user's file if it is not YAML


def _nullable() -> set[str]:
    """Returns the groups that may be left out: null in the defaults list."""
    entries: list[Any] = read(conf_dir() / "config.yaml")["defaults"]
    pairs = [pair for entry in entries if isinstance(entry, Mapping) for pair in entry.items()]
    return {str(group) for group, choice in pairs if choice is None}


def _composed(
    overrides: Sequence[Override], groups: Sequence[str], config_dir: Path | None
) -> DictConfig:
    """Returns what Hydra makes of the overrides.

    It takes 60 ms for the groups, in which the points of a sweep seldom differ: plain values are
    set on a copy of what it made of the shipped ones. Errors are those of Hydra itself.
    """
    import yaml
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if any(o.is_add() or o.is_force_add() or o.is_delete() for o in overrides):
        return _hydra(overrides, config_dir)
    chosen = [o for o in overrides if o.key_or_group in groups]
    try:
        if config_dir is None:
            composed = copy.deepcopy(_shipped(*_hydra_arguments(chosen)))
            for o in overrides:
                if o.key_or_group not in groups:
                    OmegaConf.update(composed, o.key_or_group, o.value(), merge=True)
            return composed
    except (HydraException, OmegaConfBaseException, yaml.YAMLError):
        pass
    return _hydra(overrides, config_dir)


@lru_cache(maxsize=128)
def _shipped(*words: str) -> DictConfig:
    """Returns a cached composition of shipped files, not to be changed."""
    return _compose(words)


def _hydra_arguments(overrides: Sequence[Override]) -> list[str]:
    """Returns what Hydra takes: it refuses null for a group even if that is its default."""
    last, nullable = {override.key_or_group: override for override in overrides}, _nullable()
    return [
        str(override.input_line)
        for override in overrides
        if override.key_or_group not in nullable
        or (override is last[override.key_or_group] and override.value() is not None)
    ]


def _compose(words: Sequence[str]) -> DictConfig:
    import hydra
    from hydra.core.global_hydra import GlobalHydra

    # Hydra 1.4 deprecates version_base; before it, leaving it out warns.
    major, minor = hydra.__version__.split(".")[:2]
    version = {"version_base": "1.3"} if (int(major), int(minor)) < (1, 4) else {}
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(conf_dir()), **version):
        return hydra.compose("config", overrides=list(words))


def _hydra(overrides: Sequence[Override], config_dir: Path | None) -> DictConfig:
    import yaml
    from hydra.errors import ConfigCompositionException
    from omegaconf.errors import OmegaConfBaseException

    words = _hydra_arguments(overrides)
    for directory in itertools.islice(_directories(config_dir), 1, None):
        quoted = str(directory).replace("\\", "\\\\").replace("'", "\\'")
        words.append(f"hydra.searchpath=['file://{quoted}']")
        for file in directory.rglob("*.yaml"):
            with suppress(yaml.YAMLError):  # of a file that may not be used
                _parsed(file)  # refuses what Hydra would read without an end
    try:
        return _compose(words)
    except (yaml.YAMLError, UnicodeDecodeError):
        for directory in _directories(config_dir):
            for file in directory.glob("*/*.yaml"):
                read(file)  # names the file that Hydra could not read
        raise
    except ConfigCompositionException as error:
        raise _unknown(error, overrides, config_dir) from None
    except OmegaConfBaseException as error:
        raise UserError(f"{error.full_key}: {first_line(error)}") from None
    except (ValueError, OSError) as error:  # of a name that no file can have, for instance
        line = shortened(str(error).partition(" : ")[0])
        raise UserError(f"{_words(overrides)}: Hydra cannot compose this: {line}") from None


def _words(overrides: Sequence[Override]) -> str:
    return shortened(" ".join(str(override.input_line) for override in overrides))


def _unknown(error: Exception, overrides: Sequence[Override], config_dir: Path | None) -> UserError:
    """Returns one line on the override, or the YAML's defaults list, that Hydra refused."""
    from omegaconf import OmegaConf

    first = first_line(error)
    refused = re.match(r"Could not override '(.+)'", first)
    if refused is None:
        remedy = "; drop the +" if first.startswith("Could not append") else ""
        return UserError(f"{first.rstrip('.')}{remedy}")
    key = refused[1]
    groups = _groups(config_dir)
    group = key.partition(".")[0]
    for name in choices(group, config_dir=config_dir):
        if key in flatten(_load_at_keys(group, name, config_dir)):
            return UserError(f"{key}: the chosen {group} has no such key, but {group}={name} has")
    chosen = [override for override in overrides if override.key_or_group in groups]
    known = OmegaConf.to_container(_hydra(chosen, config_dir), resolve=False)
    keys = flatten(cast("dict[str, Any]", known))
    return UserError(f"{key}: unknown key; {suggestion(key, [*keys, *groups])}")
