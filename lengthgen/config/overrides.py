"""KEY=VALUE words: how they are read, written, multiplied to a grid and completed.

Hydra's grammar is imported inside functions: shell completion reads YAML files alone and must be
quick.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from lengthgen.config import conf
from lengthgen.config.sections import flatten
from lengthgen.errors import UserError, shortened, suggestion

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

# What stays a text without quotes; not a number, nor a word of another meaning.
PLAIN = re.compile(r"(?!(null|true|false|nan|inf)$)[a-z_/][\w./+-]*", re.IGNORECASE | re.ASCII)
# A quoted value, or one of several; as it is written without quotes it is the name of a choice.
QUOTED = re.compile(r"(^[^=,]+=|,)(['\"])([^'\",]+)\2(?=,|$)")
# A value, or an item of a list, that Hydra takes for a number, in front of its end.
NUMBER = re.compile(
    r"(^|[\[,:])\s*([+-]?(?:[\d_]*\.?[\d_]+|[\d_]+\.)(?:e[+-]?[\d_]+)?|[+-]?inf|nan)\s*(?=$|[\],}])",
    re.IGNORECASE | re.ASCII,
)
# Keys of texts, and those whose class says what they are: a number stays the word as it is typed.
TYPED = re.compile(
    r"[+]*((corpus|task)[.].*|\w+[.]name|runtime[.](root|cache|wandb_\w+)|train[.](tuned|init_from)|"
    r"eval[.](protocols|(reference_)?variants|evaluator))"
)
WORDS = re.compile(r"[\w ./:@+-]+")  # nothing of a list or a sweep; Hydra takes no other letters


def plain_values(overrides: Sequence[str]) -> dict[str, Any]:
    """Returns the plain value of every override by its dotted key, without composing anything."""
    plain: dict[str, Any] = {}
    for override in parse_words(overrides):
        if override.is_sweep_override():
            raise several_values(override, "the command once for each")
        if override.is_delete() or override.is_add() or override.is_force_add():
            raise UserError(f"{override.input_line}: only KEY=VALUE is allowed here; drop the sign")
        plain[override.key_or_group] = parse_words([as_typed(override)])[0].value()
    return plain


def expand_grid(overrides: Sequence[str], *, config_dir: Path | None) -> list[list[str]]:
    """Returns one list of overrides per point of the grid: a,b, range() and glob() multiply.

    Raises UserError for an axis without points, and for a key that is swept and set again.
    """
    parsed = _parse_grid(overrides)
    axes = [points_of(o, conf.choices(o.key_or_group, config_dir=config_dir)) for o in parsed]
    return [list(point) for point in itertools.product(*axes)]


class Axis(NamedTuple):
    """A key of a search: its values, or the bounds of an interval, for `log` by their ratio."""

    key: str
    values: list[str]
    low: float = 0
    high: float = 0
    log: bool = False


def search_axes(
    overrides: Sequence[str], *, config_dir: Path | None
) -> tuple[list[str], list[Axis]]:
    """Returns the overrides with one value, and the axes of the others, for a search.

    interval(a,b), tag(log,interval(a,b)) and int(interval(a,b)) are intervals.
    """
    fixed, several = list[str](), list[Axis]()
    for override in _parse_grid(overrides):
        key, sweep = str(override.get_key_element()), cast(Any, override.value())
        if not override.is_sweep_override():
            fixed.append(str(override.input_line))
        elif override.is_interval_sweep():
            several.append(Axis(key, [], sweep.start, sweep.end, "log" in sweep.tags))
        else:
            words = points_of(override, conf.choices(override.key_or_group, config_dir=config_dir))
            several.append(Axis(key, [word.removeprefix(f"{key}=") for word in words]))
    return fixed, several


def _parse_grid(overrides: Sequence[str]) -> list[Override]:
    """Returns the words as overrides. Raises UserError for a key that is swept and set again."""
    parsed = parse_words(overrides)
    for a, b in itertools.combinations(parsed, 2):
        if a.key_or_group == b.key_or_group and (a.is_sweep_override() or b.is_sweep_override()):
            raise UserError(f"{a.input_line} and {b.input_line} set one key; drop one of them")
    return parsed


def points_of(override: Override, names: Iterable[str]) -> list[str]:
    """Returns an override once for each of the values it holds; glob() is of these names."""
    from hydra.core.override_parser.types import Glob
    from hydra.errors import HydraException

    if not override.is_sweep_override():
        return [str(override.input_line)]
    (override,) = parse_words([word := as_typed(override)])
    sweep = override.value()
    if override.is_interval_sweep():
        raise UserError(
            f"{word}: an interval has no points; give a,b, or --search N to lengthgen sweep"
        )
    try:
        points = (
            sweep.filter([*names])
            if isinstance(sweep, Glob)
            else list(override.sweep_string_iterator())
        )
    except (HydraException, ValueError) as error:  # a step of 0
        raise UserError(f"{word}: {error}; give a,b or range(1,4)") from None
    if not points:
        raise UserError(f"{word}: matches nothing; it needs at least one value")
    return [f"{override.get_key_element()}={point}" for point in points]


def completions(incomplete: str, *, config_dir: Path | None) -> list[str]:
    """Returns what a shell may offer for a partly typed override: KEY=DEFAULT or GROUP=CHOICE.

    Sections alone come first: there are hundreds of keys.
    """
    several, comma, last = incomplete.rpartition(",")  # as a sweep takes them
    known = keys(config_dir=config_dir)
    if comma:
        names = known.get(several.partition("=")[0], [])
        return [f"{several},{name}" for name in names if name.startswith(last)]
    words = [f"{key}={value}" for key, names in known.items() for value in names]
    offered = sorted(word for word in words if word.startswith(incomplete))
    sections = {re.sub(r"(?<=[.=]).*", "", word) for word in offered}
    return offered if len(sections) == 1 else sorted(sections)


def keys(*, config_dir: Path | None) -> dict[str, list[str]]:
    """Returns the choices of each group, and the default of each key that any choice has."""
    folders = conf.folders(config_dir)
    groups = {group: sorted(folders[group]) for group in sorted({*folders} - {conf.VARIANT})}
    config = conf.defaults()
    chosen = [item for entry in config.pop("defaults")[1:] for item in entry.items()]
    others, usual = dict[str, Any](), flatten(config)
    for group in groups:
        for name, file in folders[group].items():
            settings = conf.settings_of(group, file)
            of_group = {key: settings[key] for key in settings if key.startswith(f"{group}.")}
            (usual if (group, name) in chosen else others).update(of_group)
    flat = others | usual
    one_line = {k: "" if v == "???" else as_override(v) for k, v in flat.items()}
    return {key: [value] for key, value in one_line.items()} | groups


def checked_changes(changes: dict[str, Any], sections: Sequence[str]) -> dict[str, Any]:
    """Returns changes of a run, by dotted key.

    Raises UserError for a key outside the sections, or unknown within them.
    """
    prefixes = tuple(f"{section}." for section in sections)
    known = [key for key in keys(config_dir=None) if key.startswith(prefixes)]
    for key in changes:
        if not key.startswith(prefixes):
            allowed = " and ".join(f"{section}.*" for section in sections)
            raise UserError(f"{key}: only {allowed} can be given here; the run fixes the rest")
        if key not in known:
            raise UserError(f"{key}: unknown key; {suggestion(key, known)}")
    return changes


def overrides_of(values: Mapping[str, Any]) -> list[str]:
    """Returns nested values as overrides: {"train": {"lr": 0.004}} as ["train.lr=0.004"]."""
    return [f"{key}={as_override(value)}" for key, value in flatten(values).items()]


def shell_words(values: Mapping[str, Any]) -> str:
    """Returns values as a shell takes the overrides that set them."""
    words = [(f"{key}={value}", value) for key, value in values.items()]
    plain = [(o := _override(word)) is not None and o.value() == value for word, value in words]
    quoted = overrides_of(values)
    return shlex.join(w[0] if p else q for w, p, q in zip(words, plain, quoted, strict=True))


def as_override(value: object) -> str:
    """Returns a YAML value as one writes it in an override."""
    if isinstance(value, Iterable) and not isinstance(value, str | Mapping):
        return f"[{','.join(as_override(item) for item in cast('Iterable[object]', value))}]"
    if isinstance(value, str | Path) and not PLAIN.fullmatch(str(value)):
        from hydra.core.override_parser.types import Quote, QuotedString

        text = str(value).replace("${", r"\${")  # what a run's file says is no word of the user's
        return QuotedString(text=text, quote=Quote.single).with_quotes()
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def parse_words(overrides: Sequence[str]) -> list[Override]:
    """Returns the words as overrides; a text of other letters than ASCII needs no quotes.

    Raises UserError for another that cannot be read, with the quotes that make a text of it.
    """
    parsed: list[Override] = []
    for word in overrides:
        word = QUOTED.sub(lambda m: m[1] + m[3] if PLAIN.fullmatch(m[3]) else m[0], word)
        override = _override(word)
        if override is None:
            key, _, value = word.partition("=")
            quoted = '{}="{}"'.format(key, value.replace('"', r"\""))
            text = _override(quoted)
            is_text = key and value and text is not None and text.value() == value
            if not is_text or not WORDS.fullmatch(value):
                remedy = shlex.quote(quoted) if is_text else "KEY=VALUE, such as train.lr=1e-3"
                raise UserError(f"{shortened(word)}: not readable as an override; give {remedy}")
            assert text is not None
            override = text
        parsed.append(override)
    return parsed


def as_typed(override: Override) -> str:
    """Returns an override, whose numbers are words where its key may hold a text."""
    word = str(override.input_line)
    key, is_given, value = word.partition("=")
    if not TYPED.fullmatch(key) or {*value} & {*"'\"$("} or (":" in value and "{" not in value):
        return word
    return key + is_given + NUMBER.sub(r"\1'\2'", value)


@functools.cache  # a composition reads a word three times, each a millisecond
def _override(word: str) -> Override | None:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(word)
    except (HydraException, ValueError, RecursionError):
        return None


def several_values(override: Override, remedy: str) -> UserError:
    key, _, value = str(override.input_line).partition("=")
    takes_list = keys(config_dir=None).get(key, [""])[0].startswith("[")
    listed = f" (a list is written {key}=[{value}])" if takes_list else ""
    if os.path.exists(os.path.expanduser(value)):  # whose name has a comma
        remedy = shell_words({key: value})
    said = f"{key}={value} holds several values, and one run takes one{listed}"
    return UserError(f"{said}; give {remedy}")
