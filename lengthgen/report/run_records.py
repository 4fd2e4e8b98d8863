"""What a report knows of a run: configuration, costs, pictures of probes, evaluation rows."""

import json
import math
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from lengthgen import tasks
from lengthgen.analysis.eval_rows import damaged, diverged
from lengthgen.config import compose
from lengthgen.config.schema import NAME, to_plain
from lengthgen.config.sections import first_error
from lengthgen.errors import UserError, suggestion
from lengthgen.evaluation.rows import stored
from lengthgen.files import read_bytes, read_rows, utf8
from lengthgen.runs import directory, status

ENVIRONMENT = ("commit", "python", "platform", "processor", "lengthgen", "libraries", "devices")
PLACES = ("runtime.root=", "runtime.cache=")  # left out of commands: folders of one machine
MOST_SAID = 8  # runs without an evaluation that are named
T = TypeVar("T")
Row = dict[str, Any]
Plain = Mapping[str, Any]
Amount = Annotated[int, Field(gt=0, le=1 << 53)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a run took; None is unknown."""

    parameters: int | None
    tokens: int | None
    seconds: float | None  # of training steps alone, over all its sessions
    peak_mib: float | None = None  # the most memory of training; older runs did not measure it

    @property
    def tokens_per_s(self) -> float | None:
        return self.tokens / self.seconds if self.tokens and self.seconds else None


@dataclass(frozen=True, kw_only=True)
class TaskFacts:
    """What a task's length counts, and how often a model that ignores the prompt can be right."""

    unit: str
    chance: float


class _Section(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class _Scheme(_Section):
    parts: dict[str, Any] | None = None
    variants: dict[str, Any] = {}
    lr_ratio: Rate | None = None


class _InitFrom(_Section):
    run: str
    recipe: str


class _Train(_Section):
    tokens: Amount | None = None
    batch_tokens: Amount | None = None
    lr: Rate | None = None
    scheme_lr_ratio: Rate | None = None
    init_from: _InitFrom | None = None


class _Eval(_Section):
    reference_variants: list[str] = []


class _Config(_Section):
    """What is read of a run's configuration, which may be untrusted, or of an older schema."""

    scheme: _Scheme = _Scheme()
    train: _Train = _Train()
    eval: _Eval = _Eval()
    variants: dict[str, Any] = {}


class _Environment(_Section):
    """What is shown of env.json."""

    processor: str | None = None
    libraries: dict[str, str] = {}
    devices: list[str] = []
    corpus_versions: dict[str, str] = {}


def _readable(plain: Row) -> Row:
    """Returns a plain configuration. Raises ValueError unless a report can show it."""
    try:
        json.dumps(plain, default=str, sort_keys=True, ensure_ascii=False).encode()
    except TypeError as error:
        raise PydanticCustomError(
            "keys", "has keys that are no text ({reason})", {"reason": str(error)}
        ) from None
    _Config.model_validate(plain)
    return plain


def _shown(environment: Row) -> Row:
    _Environment.model_validate(environment)
    return environment


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What a report knows of a run."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    run: str
    config: Annotated[dict[str, Any], AfterValidator(_readable)]  # of config.yaml, less runtime
    task: TaskFacts | None = None
    environment: Annotated[dict[str, Any], AfterValidator(_shown)] | None = None  # of env.json
    cost: Cost = Cost(parameters=None, tokens=None, seconds=None)
    probes: dict[str, str] = field(default_factory=dict[str, str])  # SVG by the probe's name
    rows: list[Row] = field(default_factory=list[Row])  # of eval.jsonl


def read(run_dirs: Sequence[Path], rows: Sequence[Plain] | None = None) -> list[RunRecord]:
    """Returns configuration and rows of runs, by default of all that was evaluated of them.

    Raises UserError as evaluated does, and for a configuration that cannot be read.
    """
    runs = _opened(run_dirs)
    return _records(runs, _evaluated(runs) if rows is None else rows)


def read_with_costs(run_dirs: Sequence[Path]) -> list[RunRecord]:
    """Returns the records of runs with all that a page shows: machines, costs, pictures of probes.

    Raises UserError as read does.
    """
    runs = _opened(run_dirs)
    return [*map(_completed, _records(runs, _evaluated(runs)), runs)]


def evaluated(run_dirs: Sequence[Path]) -> list[Row]:
    """Returns the eval rows of all runs; the directory's name is the run's.

    A run that diverged in training has the cells of another seed, without values. Raises UserError
    for a directory without rows, and for two of one name.
    """
    return _evaluated(_opened(run_dirs))


class _Run(NamedTuple):
    """A run directory, its plain configuration, and the id that its files are bound to."""

    path: Path
    config: Row
    run_id: str

    @property
    def name(self) -> str:
        return utf8(self.path.name)


def _opened(run_dirs: Sequence[Path]) -> list[_Run]:
    found: list[_Run] = []
    for path in {path.resolve(): Path(os.path.abspath(path)) for path in run_dirs}.values():
        config = _config(path)
        found.append(_Run(path, config, _run_id(path)))
    return found


def _records(runs: Sequence[_Run], rows: Sequence[Plain]) -> list[RunRecord]:
    records: list[RunRecord] = []
    of_run: dict[str, list[Row]] = {run.name: [] for run in runs}
    for row in rows:
        of_run.get(row["run"], []).append(dict(row))
    for run in runs:
        config = _portable(run.config)
        facts = task_facts(config) if task_of(config) is not None else None
        rows_of_run = of_run[run.name]
        records.append(RunRecord(run=run.name, config=config, task=facts, rows=rows_of_run))
    return records


def _portable(plain: Plain) -> Row:
    """Returns a configuration without the folders of one machine."""
    kept = {key: value for key, value in plain.items() if key != "runtime"}
    train = kept.get("train", {})
    if init_from := train.get("init_from"):
        init_from = {key: value for key, value in init_from.items() if key != "path"}
        kept["train"] = {**train, "init_from": init_from}
    return kept


def _run_id(run_dir: Path) -> str:
    return directory.load_config(run_dir).run_id


def _n_parameters(run_dir: Path, *, run: str) -> int | None:
    try:
        return directory.read_provenance(run_dir, run=run).get("n_parameters")
    except FileNotFoundError:
        return None


def _config(run_dir: Path) -> Row:
    try:
        return _readable(to_plain(directory.load_config(run_dir)))
    except ValueError as error:
        reason = first_error(error) if isinstance(error, ValidationError) else str(error)
        path = run_dir / "config.yaml"
        raise UserError(f"{path} is damaged: {reason}; restore it, or report other runs") from None


def _evaluated(runs: Sequence[_Run]) -> list[Row]:
    if not runs:
        raise UserError("report: no run is named; lengthgen list runs shows those there are")
    rows: dict[str, list[Row]] = {}
    seen: dict[str, Path] = {}  # by name, and by the id of the configuration
    for one in runs:
        path, name, run = one.path, one.name, one.run_id
        if name in seen:
            raise UserError(
                f"run {name} lies in {seen[name].parent} and in {path.parent}; name one"
            )
        if run in seen:
            raise UserError(f"{path} and {seen[run]} are one run, {run}; name one of them")
        seen |= {name: path, run: path}
        found = stored(path, run=run)
        if any("kind" in row for row in found):  # as the line of a run in the rows of a report has
            raise damaged(name, "field kind, which no row has")
        rows[name] = [{**row, "run": name} for row in found]
    for one in runs:
        if not rows[one.name]:
            rows[one.name] = _rows_of_diverged(one, [run for run in runs if rows[run.name]], rows)
    return [row for of_run in rows.values() for row in of_run]


def _rows_of_diverged(
    run: _Run, evaluated: Sequence[_Run], rows: Mapping[str, Sequence[Row]]
) -> list[Row]:
    """Returns the rows of a run without an evaluation: those of another seed, without values.

    Raises UserError unless it diverged in training, and for one of which no seed is evaluated.
    """
    state = status.read_status(run.path, run=run.run_id)
    if state.state != "diverged":
        if status.is_trained(run.path):
            raise UserError(f"no evaluation in {run.path}; run lengthgen eval {run.path.name}")
        raise UserError(
            f"no evaluation in {run.path}: training is not complete ({state.state}); "
            "lengthgen train continues it"
        )
    for other in evaluated:
        if _but_seed(other.config) == _but_seed(run.config):
            seed = run.config.get("seed", 0)
            return [diverged(row, run=run.name, seed=seed) for row in rows[other.name]]
    raise UserError(
        f"{run.name} diverged in training ({state.reason}), and no other seed of it has an "
        "evaluation here; report it with one"
    )


def _but_seed(config: Plain) -> Row:
    return {k: v for k, v in _portable(config).items() if k not in ("seed", "eval")}


def reportable(run_dirs: Sequence[Path], *, say: Callable[[str], None]) -> list[Path]:
    """Returns the runs with an evaluation, readable or not, and those that diverged in training.

    Of the latter those alone of which another seed has an evaluation; the others are named.
    """
    evaluated = [path for path in run_dirs if os.path.lexists(path / "eval.jsonl")]
    configs: dict[Path, Row] = {}
    states: dict[Path, str] = {}
    for path in sorted({*run_dirs} - {*evaluated}):
        try:
            configs[path] = _config(path)
            run = _run_id(path)
            states[path] = status.read_status(path, run=run).state
        except UserError as error:
            say(f"{path.name} is not shown: {error}")
    lost = [path for path, state in states.items() if state == "diverged"]
    known: list[Row] = []
    for path in evaluated if lost else ():
        with suppress(UserError):  # which the report names
            known.append(_but_seed(_config(path)))
    lost = [path for path in lost if _but_seed(configs[path]) in known]
    others = [
        f"{path.name} ({'not evaluated' if state == 'done' else state})"
        for path, state in states.items()
        if path not in lost
    ]
    if others:
        more = f" and {len(others) - MOST_SAID} more" if len(others) > MOST_SAID else ""
        say(f"without an evaluation, and not shown: {', '.join(others[:MOST_SAID])}{more}")
    return sorted([*evaluated, *lost])


def use_readable(
    run_dirs: Sequence[Path], use: Callable[[Sequence[Path]], T], *, say: Callable[[str], None]
) -> T:
    """Returns what `use` makes of runs; if it cannot use all, of those that it can use alone.

    Each of the others is named. Raises UserError if there is none, or if only all together fail.
    """
    try:
        return use(run_dirs)
    except UserError:
        wrong: dict[Path, UserError] = {}
        for path in run_dirs:
            try:
                use([path])
            except UserError as error:
                wrong[path] = error
        if len(wrong) in (0, len(run_dirs)):
            raise
    for path, error in wrong.items():
        say(f"{path.name} is not shown: {error}")
    return use([path for path in run_dirs if path not in wrong])


def selected_dirs(
    run_dirs: Sequence[Path],
    conditions: Mapping[str, Sequence[Any]],
    *,
    say: Callable[[str], None],
) -> list[Path]:
    """Returns the runs that meet every condition, as `selected` does.

    A run whose configuration cannot be read is named, and left out.
    """
    configs: dict[Path, Plain] = {}
    for path in run_dirs:
        try:
            configs[path] = _config(path)
        except UserError as error:
            say(f"{path.name} is not shown: {error}")
    chosen = selected([*configs.values()], conditions)
    return [path for path, keep in zip(configs, chosen, strict=True) if keep]


def selected(configs: Sequence[Plain], conditions: Mapping[str, Sequence[Any]]) -> list[bool]:
    """Returns which configurations have one of the given values at the key of every condition.

    The value of a group, such as scheme or task, is the name of its choice. Raises UserError for a
    value that no configuration has, and if none meets all conditions.
    """
    flat = [_values(config) for config in configs]
    for key, wanted in conditions.items():
        known = [values[key] for values in flat if key in values]
        if not known and any(value is not None for value in wanted):
            keys = {one for values in flat for one in values}
            raise UserError(f"{key}: no evaluated run has this key; {suggestion(key, keys)}")
        for value in wanted:
            if value is not None and value not in known:
                remedy = suggestion(str(value), {str(one) for one in known})
                raise UserError(f"{key}={value}: no evaluated run has this value; {remedy}")
    chosen = [
        all(values.get(key) in wanted for key, wanted in conditions.items()) for values in flat
    ]
    if not any(chosen):
        raise UserError(f"no evaluated run has all of {', '.join(conditions)} as given; name fewer")
    return chosen


def _values(config: Plain) -> dict[str, Any]:
    """Returns the values of a configuration by dotted key, and a group's choice by the group."""
    corpus = config.get("corpus")
    task = corpus.get("task") if isinstance(corpus, Mapping) else None
    return compose.flatten(config) | {
        group: section["name"]
        for group, section in {**config, "task": task}.items()
        if isinstance(section, Mapping) and "name" in section
    }


def task_of(config: Plain) -> str | None:
    """Returns the name of the task that a run's plain configuration trains on; None for text.

    Raises UserError for one that no configuration could have: files are named by it.
    """
    corpus = config.get("corpus")
    spec = corpus.get("task") if isinstance(corpus, Mapping) else None
    if not isinstance(spec, Mapping):
        return None
    name = str(spec.get("name"))
    if not re.fullmatch(NAME, name) or len(name) > 64:
        raise UserError(f"config.yaml is damaged: {name!r} is no name of a task; drop this run")
    return name


def task_facts(config: Plain) -> TaskFacts:
    """Returns what the rule states of the task of a plain configuration, if it is known here."""
    spec = config["corpus"]["task"]
    try:
        rule = tasks.build(str(spec.get("kind")), spec.get("arguments") or {}, where="task")
    except (UserError, AttributeError, TypeError, ValueError):
        return TaskFacts(unit="length", chance=0.0)
    try:
        lengths = [n for n in config["eval"]["lengths"] if n <= spec["length"]]
        chance = rule.chance or tasks.majority_accuracy(rule, lengths)
    except (UserError, KeyError, TypeError, ValueError):  # a file that is gone, say
        chance = rule.chance
    return TaskFacts(unit=rule.unit, chance=chance)


def _completed(record: RunRecord, run: _Run) -> RunRecord:
    """Adds the environment, the cost and the pictures of the probes that the directory holds."""
    run_dir = run.path
    log = read_rows(run_dir / "train.jsonl", run=run.run_id)
    return replace(
        record,
        environment=_environment(run_dir, run=run.run_id),
        cost=cost(log, parameters=_n_parameters(run_dir, run=run.run_id)),
        probes={
            utf8(path.stem).replace("_", " "): _svg(path, run=run.run_id)
            for path in sorted(run_dir.glob("probes/*.svg"))
        },
    )


def _environment(run_dir: Path, *, run: str) -> dict[str, Any] | None:
    """Returns what env.json holds of the command, machine and versions; no host, no local paths."""
    try:
        provenance = directory.read_provenance(run_dir, run=run)
        found = {**provenance["segments"][0], "corpus": provenance["corpus"]}
        words = [str(word) for word in found.get("argv", [])[1:]]
        kept = {key: found[key] for key in ENVIRONMENT if key in found}
        if versions := found.get("corpus", {}).get("versions"):
            kept["corpus_versions"] = versions
        _shown(kept)
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    command = shlex.join(["lengthgen", *(word for word in words if not word.startswith(PLACES))])
    return {"command": command, **kept} if words else kept


def with_run(svg: bytes, run: str) -> bytes:
    """Returns the picture of a probe with the id of the run that it is of."""
    return svg + f"<!-- run {run} -->\n".encode()


def _svg(path: Path, *, run: str) -> str:
    """Returns the picture of a probe of the run with this id; older ones do not name it."""
    try:
        text, _, named = read_bytes(path).decode().partition("<!-- run ")
        if named not in ("", f"{run} -->\n"):
            raise ValueError(f"it is of run {named.partition(' ')[0]}")
        return text
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} is damaged ({error}); lengthgen probe {path.parent.parent.name} draws it again"
        ) from None


def cost(rows: Sequence[Plain], *, parameters: int | None) -> Cost:
    """Returns the cost of a run from the rows of train.jsonl."""
    seen = [0, *(row["train/tokens"] for row in rows)]
    steps = zip(pairwise(seen), rows, strict=True)
    seconds = math.fsum((b - a) / row["train/tokens_per_s"] for (a, b), row in steps)
    return Cost(
        parameters=parameters,
        tokens=seen[-1] or None,
        seconds=seconds or None,
        peak_mib=max((row.get("train/peak_mib") or 0 for row in rows), default=0) or None,
    )
