"""The only Hydra: YAML groups and KEY=VALUE overrides become one plain dict.

Hydra is imported inside functions: shell completion reads the YAML files alone and must be quick.
"""

from __future__ import annotations

import fnmatch
import itertools
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import yaml
from yaml import CSafeLoader  # reads all of conf in 10 ms instead of 80

from lengthgen.config.sections import flatten, in_tokens, number
from lengthgen.errors import UserError, first_line, shortened, suggestion
from lengthgen.files import Unreadable, read_bytes

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
GLOBAL = "# @package _global_"  # the first line of a file that sets keys of several groups
GRID = "grid"  # the axes of a study, which config/study.py reads
IN_TOKENS = ("train.length", "eval.max_context")  # k is 1,024 in these
VARIANT = "variant"  # a folder of conf that is no group: eval.variants chooses several


def conf_dir() -> Path:
    """Returns the shipped conf: in the package (wheel) or one level up (checkout)."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def choices(group: str, *, config_dir: Path | None) -> dict[str, Path]:
    """Returns the YAML files that a group may be set to by name, the user's own included."""
    return dict(sorted(_folders(config_dir).get(group, {}).items()))


def _folders(config_dir: Path | None) -> dict[str, dict[str, Path]]:
    """Returns the YAML files of each folder of conf and of the user's own, by name.

    Raises UserError if the latter repeats a shipped name: Hydra would ignore that file.
    """
    if config_dir is not None and not config_dir.is_dir():
        raise UserError(f"--config-dir: {config_dir} is not a folder; give a folder of groups")
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
    """Returns the values of conf/config.yaml itself, without those of the groups."""
    plain = read_yaml(conf_dir() / "config.yaml")
    del plain["defaults"]
    return plain


def user_file() -> Path:
    """Returns the file of a user's own defaults: lengthgen.yaml in ~/.config, as XDG has it."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(folder) / "lengthgen.yaml"


def user_cache() -> Path:
    """Returns the folder that runs of an account share: lengthgen in ~/.cache, as XDG has it."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(folder) / "lengthgen"


def user_defaults() -> dict[str, Any]:
    """Returns what the user's file sets of runtime, by dotted key; none without the file.

    Raises UserError for another key: what decides numbers belongs in a study.
    """
    path, known = user_file(), flatten({"runtime": defaults()["runtime"]})
    given = flatten(read_yaml(path)) if os.path.isfile(path) else {}  # False where it cannot look
    if other := next((key for key in given if key not in known), None):
        raise UserError(f"{path}: {other}: no key of runtime; {suggestion(other, known)}")
    return {key: _resolved(key, value) for key, value in given.items()}


def own_defaults() -> dict[str, Any]:
    """Returns the values of runtime by dotted key that a command has without overrides."""
    return flatten({"runtime": defaults()["runtime"]}) | user_defaults()


def sent() -> dict[str, Any]:
    """Returns what the user's own defaults say of what is sent, and where to, by dotted key."""
    return {k: x for k, x in own_defaults().items() if k.startswith("runtime.wandb")}


def _resolved(key: str, value: Any) -> Any:
    """Returns a value by itself, of which a part may be another's, such as ${oc.env:HOME}."""
    if not isinstance(value, str) or "${" not in value:
        return value
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return OmegaConf.create({"value": value})["value"]
    except OmegaConfBaseException as error:
        raise UserError(f"{key}={value}: {first_line(error)}; give a value") from None


def beneath(
    lower: Sequence[str], overrides: Sequence[str], *, config_dir: Path | None
) -> list[str]:
    """Returns the lower overrides that the upper ones leave in force."""
    replaced = _replaced_by(overrides, config_dir=config_dir)
    if replaced & {"corpus", "task"}:  # a task makes its own text
        replaced |= {"corpus", "task"}
    keys_below = [override.key_or_group for override in _parse(lower)]
    kept = [not {key, key.partition(".")[0]} & replaced for key in keys_below]
    return [*itertools.compress(lower, kept)]


def _replaced_by(overrides: Sequence[str], *, config_dir: Path | None) -> set[str]:
    """Returns the keys and groups that overrides set.

    A group that is chosen replaces all that is said of it; a task or study, which sets keys of
    several groups, replaces these.
    """
    replaced = set[str]()
    for override in _parse(overrides):
        group = override.key_or_group
        replaced.add(group)
        if files := {} if override.is_interval_sweep() else choices(group, config_dir=config_dir):
            names = [word.partition("=")[2] for word in _axis(override, files)]
            for file in filter(None, map(files.get, names)):
                replaced |= {*settings_of(group, file)}
    budgets = {"train.steps", "train.tokens"}  # one budget in two units
    rates, tuned = {"train.lr", "train.scheme_lr_ratio"}, {"train.tuned"}  # given, or in a file
    for given, same in ((budgets, budgets), (tuned, rates), (rates, tuned)):
        if replaced & given:
            replaced |= same
    return replaced


def root_of(changes: Mapping[str, Any]) -> Path:
    """Returns the folder of runs: runtime.root of changes by dotted key, or the default one."""
    root = _resolved("runtime.root", (own_defaults() | dict(changes))["runtime.root"])
    if not root:
        raise UserError("runtime.root: an empty value is no folder; give runtime.root=runs")
    if not isinstance(root, str | Path):
        raise UserError(f"runtime.root: {root!r} is no folder; quote it: runtime.root=\"'{root}'\"")
    return Path(os.path.expanduser(root))


def compose(overrides: Sequence[str], *, config_dir: Path | None) -> dict[str, Any]:
    """Returns the composed configuration as a plain dict, interpolations resolved.

    Raises UserError for an override that cannot be read or holds several values, an unknown choice
    or key, a missing mandatory value, or a YAML file that is not valid.
    """
    folders = _folders(config_dir)  # refuses what Hydra would warn of
    overrides = [word for given in overrides for word in _spelled_out(given)]
    for word in overrides:  # most mistakes, before Hydra is imported
        group, _, name = word.partition("=")
        if PLAIN.fullmatch(name):
            _refuse_unknown_choice(group, name, folders, config_dir)
    parsed = _parse(overrides)
    for override in parsed:
        if override.is_sweep_override():
            raise _several(override, f"lengthgen sweep {shlex.join(overrides)}")
        if override.key_or_group.startswith("hydra"):
            raise UserError(
                f"{override.input_line}: only the syntax is Hydra's; runs are in runtime.root=DIR, "
                "and lengthgen sweep takes --jobs N and --slurm"
            )
    of_user = beneath(overrides_of(user_defaults()), overrides, config_dir=config_dir)
    every = _parse([*of_user, *overrides])
    none = ("study", None)  # the default, which Hydra takes from its own file alone
    every = [override for override in every if (override.key_or_group, override.value()) != none]
    for override in every:
        if not override.is_delete() and not isinstance(override.value(), dict):
            name = override.get_value_element_as_str()
            _refuse_unknown_choice(override.key_or_group, name, folders, config_dir)
    plain = _composed([_as_typed(override) for override in every], config_dir)
    plain.pop(GRID, None)
    if config_dir is not None and (config_dir.resolve().parent / "config.yaml").is_file():  # a run
        given = {override.key_or_group for override in parsed}
        others = {key: value for key, value in sent().items() if key not in given}
        plain["runtime"] |= {k.removeprefix("runtime."): value for k, value in others.items()}
    if "task" in plain:
        task = plain.pop("task")
        for override in parsed:
            group, word = override.key_or_group, str(override.input_line)
            chosen = group in ("corpus", "study")
            if chosen and "corpus" in _replaced_by([word], config_dir=config_dir):
                name = task.get("name")
                raise UserError(f"{word}: task={name} makes its own text; drop one of them")
        if plain["corpus"].get("source") != "task":
            raise UserError("task: its keys need a task; choose one with task=NAME")
        plain["corpus"]["task"] = task
    return plain


def values(overrides: Sequence[str]) -> dict[str, Any]:
    """Returns the plain value of every override by its dotted key, without composing anything."""
    plain: dict[str, Any] = {}
    for override in _parse(overrides):
        if override.is_sweep_override():
            raise _several(override, "the command once for each")
        if override.is_delete() or override.is_add() or override.is_force_add():
            raise UserError(f"{override.input_line}: only KEY=VALUE is allowed here; drop the sign")
        plain[override.key_or_group] = _parse([_as_typed(override)])[0].value()
    return plain


def expand(overrides: Sequence[str], *, config_dir: Path | None) -> list[list[str]]:
    """Returns one list of overrides per point of the grid: a,b, range() and glob() multiply.

    Raises UserError for an axis without points, and for a key that is swept and set again.
    """
    parsed = _parse_grid(overrides)
    axes = [_axis(o, choices(o.key_or_group, config_dir=config_dir)) for o in parsed]
    return [list(point) for point in itertools.product(*axes)]


class Axis(NamedTuple):
    """A key of a search: its values, or the bounds of an interval, for `log` by their ratio."""

    key: str
    values: list[str]
    low: float = 0
    high: float = 0
    log: bool = False


def axes(overrides: Sequence[str], *, config_dir: Path | None) -> tuple[list[str], list[Axis]]:
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
            words = _axis(override, choices(override.key_or_group, config_dir=config_dir))
            several.append(Axis(key, [word.removeprefix(f"{key}=") for word in words]))
    return fixed, several


def _parse_grid(overrides: Sequence[str]) -> list[Override]:
    """Returns the words as overrides. Raises UserError for a key that is swept and set again."""
    parsed = _parse(overrides)
    for a, b in itertools.combinations(parsed, 2):
        if a.key_or_group == b.key_or_group and (a.is_sweep_override() or b.is_sweep_override()):
            raise UserError(f"{a.input_line} and {b.input_line} set one key; drop one of them")
    return parsed


def _axis(override: Override, names: Iterable[str]) -> list[str]:
    """Returns an override once for each of the values it holds; glob() is of these names."""
    from hydra.core.override_parser.types import Glob
    from hydra.errors import HydraException

    if not override.is_sweep_override():
        return [str(override.input_line)]
    (override,) = _parse([word := _as_typed(override)])
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
    folders = _folders(config_dir)
    groups = {group: sorted(folders[group]) for group in sorted({*folders} - {VARIANT})}
    config = read_yaml(conf_dir() / "config.yaml")
    chosen = [item for entry in config.pop("defaults")[1:] for item in entry.items()]
    others, usual = dict[str, Any](), flatten(config)
    for group in groups:
        for name, file in folders[group].items():
            settings = settings_of(group, file)
            of_group = {key: settings[key] for key in settings if key.startswith(f"{group}.")}
            (usual if (group, name) in chosen else others).update(of_group)
    flat = others | usual
    one_line = {k: "" if v == "???" else _as_override(v) for k, v in flat.items()}
    return {key: [value] for key, value in one_line.items()} | groups


def runs_matching(configs: Mapping[str, Mapping[str, Any]], conditions: Sequence[str]) -> set[str]:
    """Returns the runs, of plain configurations by run, that meet conditions such as seed=1,2.

    The value of a group, such as scheme or task, is the name of its choice. Raises UserError for a
    key or value that no run has, and where no run meets all conditions.
    """
    settings: dict[str, dict[str, Any]] = {}
    for run, config in configs.items():
        groups = {**config, "task": config.get("corpus", {}).get("task")}
        named = {k: v["name"] for k, v in groups.items() if isinstance(v, dict) and "name" in v}
        settings[run] = flatten(config) | named
    kept = set(settings)
    for condition in conditions:
        (override,) = _parse([condition])
        key = override.key_or_group
        known = {run: plain[key] for run, plain in settings.items() if key in plain}
        if not known:
            every = set().union(*settings.values())
            raise UserError(f"{key}: no run here has this key; {suggestion(key, every)}")
        names = dict.fromkeys(x for x in known.values() if isinstance(x, str))
        words = list[Any]()
        for word in _axis(override, names):
            value = values([word])[key]
            words += (fnmatch.filter(names, value) if isinstance(value, str) else []) or [value]
        read = in_tokens if key in IN_TOKENS else number
        chosen = [x if isinstance(x, bool) or x in known.values() else read(x) for x in words]
        for value in chosen:
            if value not in known.values():
                given = _as_override(value)
                remedy = suggestion(given, {*map(_as_override, known.values())})
                raise UserError(f"{key}={given}: no run here has this value; {remedy}")
        kept &= {run for run, value in known.items() if value in chosen}
    if not kept:
        raise UserError(f"no run here has all of {' '.join(conditions)}; name fewer")
    return kept


def check_changes(changes: Mapping[str, Any], sections: Sequence[str]) -> None:
    """Raises UserError for a changed key of a run outside the sections, or unknown within them."""
    prefixes = tuple(f"{section}." for section in sections)
    known = [key for key in keys(config_dir=None) if key.startswith(prefixes)]
    for key in changes:
        if not key.startswith(prefixes):
            allowed = " and ".join(f"{section}.*" for section in sections)
            raise UserError(f"{key}: only {allowed} can be given here; the run fixes the rest")
        if key not in known:
            raise UserError(f"{key}: unknown key; {suggestion(key, known)}")


def overrides_of(values: Mapping[str, Any]) -> list[str]:
    """Returns nested values as overrides: {"train": {"lr": 0.004}} as ["train.lr=0.004"]."""
    return [f"{key}={_as_override(value)}" for key, value in flatten(values).items()]


def shell_words(values: Mapping[str, Any]) -> str:
    """Returns values as a shell takes the overrides that set them."""
    words = [(f"{key}={value}", value) for key, value in values.items()]
    plain = [(o := _override(word)) is not None and o.value() == value for word, value in words]
    quoted = overrides_of(values)
    return shlex.join(w[0] if p else q for w, p, q in zip(words, plain, quoted, strict=True))


def _as_override(value: object) -> str:
    """Returns a YAML value as one writes it in an override."""
    if isinstance(value, Iterable) and not isinstance(value, str | Mapping):
        return f"[{','.join(_as_override(item) for item in cast('Iterable[object]', value))}]"
    if isinstance(value, str | Path) and not PLAIN.fullmatch(str(value)):
        from hydra.core.override_parser.types import Quote, QuotedString

        text = str(value).replace("${", r"\${")  # what a run's file says is no word of the user's
        return QuotedString(text=text, quote=Quote.single).with_quotes()
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def settings_of(group: str, file: Path, *below: Path) -> dict[str, Any]:
    """Returns what a choice sets by dotted key, groups by name, with the files it begins with."""
    plain, settings = read_yaml(file), dict[str, Any]()
    for item in plain.pop("defaults", None) or []:
        if isinstance(item, dict):
            settings |= {key.rpartition("/")[2]: choice for key, choice in item.items()}
        files = [root / f"{item}.yaml" for root in (file.parent, conf_dir() / group)]
        if parent := next((path for path in files if path.is_file()), None):
            settings |= settings_of(group, parent, file, *below) if parent not in below else {}
    return settings | flatten(plain if _is_global(file) else {group: plain})


def _is_global(file: Path) -> bool:
    return re.match(rb"\s*#\s*@package\s+_global_", file.read_bytes()) is not None


def _parse(overrides: Sequence[str]) -> list[Override]:
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


def _as_typed(override: Override) -> str:
    """Returns an override, whose numbers are words where its key may hold a text."""
    word = str(override.input_line)
    key, is_given, value = word.partition("=")
    if not TYPED.fullmatch(key) or {*value} & {*"'\"$("} or (":" in value and "{" not in value):
        return word
    return key + is_given + NUMBER.sub(r"\1'\2'", value)


def _override(word: str) -> Override | None:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(word)
    except (HydraException, ValueError, RecursionError):
        return None


def _several(override: Override, remedy: str) -> UserError:
    key, _, value = str(override.input_line).partition("=")
    takes_list = keys(config_dir=None).get(key, [""])[0].startswith("[")
    listed = f" (a list is written {key}=[{value}])" if takes_list else ""
    if os.path.exists(os.path.expanduser(value)):  # whose name has a comma
        remedy = shell_words({key: value})
    said = f"{key}={value} holds several values, and one run takes one{listed}"
    return UserError(f"{said}; give {remedy}")


def _spelled_out(word: str) -> list[str]:
    """Returns what corpus=OWNER/NAME is short for: a dataset of the Hugging Face Hub."""
    short = re.fullmatch(r"corpus=(\w[\w.-]*/[\w.-]+)", word)
    if short is None or Path(short[1]).exists():
        return [word]
    return ["corpus=hub", f"corpus.repo={short[1]}"]


def _refuse_unknown_choice(
    group: str, name: str, folders: Mapping[str, dict[str, Path]], config_dir: Path | None
) -> None:
    """Raises UserError with the choice that is spelled so, a word more or less.

    DAPEv2 is dape_v2_kerple, T5-bias is t5; rotary is the first word of what describes rope.
    """
    known = folders.get(group, {})
    file = known.get(name) if group in ("task", "study") else None
    if file is not None and not _is_global(file):
        raise UserError(f"{file}: its first line must be {GLOBAL}: it sets keys of other groups")
    if not known or group == VARIANT or name in known:
        return
    variants = folders[VARIANT] if group == "scheme" else {}
    asked, letters = _letters(name), {_letters(word): word for word in [*variants, *known]}
    near = [n for n in letters if asked and (n.startswith(asked) or asked.startswith(n))]
    titled = {_letters(describe(file).partition(" ")[0]): choice for choice, file in known.items()}
    nearest = min(near, key=lambda n: abs(len(n) - len(asked)), default=asked)
    spelled = letters.get(nearest) or titled.get(asked, name)
    if spelled in variants:
        remedy = f"{spelled} is a variant of a trained scheme: give eval.variants=[{spelled}]"
    elif group == "corpus" and Path(name).exists():
        remedy = f"for files here, give corpus=files {shell_words({'corpus.path': name})}"
    else:
        where = f"is {config_dir}/{group}/NAME.yaml" if config_dir else "needs --config-dir"
        remedy = f"{suggestion(spelled, known)} (a file of one's own {where})"
    raise UserError(f"{group}={shortened(name)}: no such {group}; {remedy}")


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _composed(overrides: Sequence[str], config_dir: Path | None) -> dict[str, Any]:
    """Returns what Hydra makes of the overrides, as plain values; its errors become one line."""
    import hydra
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

    words = list(overrides)
    if config_dir is not None:
        words.append(f"hydra.searchpath={_as_override([f'file://{config_dir.resolve()}'])}")
    # Hydra 1.4 deprecates version_base; before it, leaving it out warns.
    version = {} if hydra.__version__.startswith("1.4") else {"version_base": "1.3"}
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_dir(str(conf_dir()), **version):
            composed = hydra.compose("config", overrides=words)
        plain = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
        return cast("dict[str, Any]", plain)
    except (
        *(HydraException, OmegaConfBaseException, yaml.YAMLError),
        *(ValueError, OSError, RecursionError),
    ) as error:
        for file in config_dir.glob("*/*.yaml") if config_dir is not None else []:
            read_yaml(file)  # names one that is not valid
        unknown = re.match(r"Could not override '(.+)'", str(error))
        if unknown is not None:
            raise _unknown_key(unknown[1], config_dir) from None
        where = getattr(error, "full_key", None) or shortened(" ".join(overrides))
        if isinstance(error, MissingMandatoryValue):
            raise UserError(f"{where}: a value is required; give {where}=VALUE") from None
        if isinstance(error, RecursionError):
            error = "a YAML file lists itself among its defaults, or brackets are nested too deeply"
        raise UserError(f"{where}: {error}") from None


def _unknown_key(key: str, config_dir: Path | None) -> UserError:
    known = keys(config_dir=config_dir)
    group, *below = key.split(".")
    part = ".".join([group, *below, "NAME"][:3])
    is_known = any(f"{k}.".startswith(f"{part}.") for k in known)
    if group == "scheme" and below[:1] == ["parts"] and not is_known:
        added = f"{key}=VALUE" if below[1:] else f"{part}={{}}"
        return UserError(
            f"{key}: the chosen scheme has no such part; with a plus it adds one: +{added}"
        )
    having = {
        name: settings
        for name, file in choices(group, config_dir=config_dir).items()
        if key in (settings := settings_of(group, file))
    }
    if having:  # the choice that a part is named by, or else the plainest
        name = min(having, key=lambda name: (name not in below, len(having[name])))
        return UserError(f"{key}: the chosen {group} has no such key, but {group}={name} has")
    return UserError(f"{key}: unknown key; {suggestion(key, known)}")
