"""What a report reads: records of runs, from run directories or from the folder of a report.

The folder holds them as rows.jsonl.gz, from which tables and figures are made again: for each run a
line with its configuration and costs, and behind it the lines of its eval.jsonl.
"""

import gzip
import hashlib
import io
import json
import math
import re
import shlex
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from lengthgen import tasks
from lengthgen.config.schema import NAME
from lengthgen.config.sections import first_error
from lengthgen.errors import UserError, suggestion
from lengthgen.evaluation.rows import FORMAT, damaged, stored
from lengthgen.reading import MOST_BYTES, parse_row, read_bytes, utf8
from lengthgen.runs import directory
from lengthgen.storage import refuse_links

ROWS, MANIFEST = "rows.jsonl.gz", "manifest.json"
ENVIRONMENT = ("commit", "python", "platform", "processor", "lengthgen", "libraries", "devices")
PLACES = ("runtime.root=", "runtime.cache=")  # left out of commands: folders of one machine

MEASURED = ("protocol", "variant", "length", "document")  # which row of a run

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


_RECORD = TypeAdapter(RunRecord)


@dataclass(frozen=True, kw_only=True)
class Study:
    """The two files from which the others in the folder of a report are made."""

    rows: bytes
    manifest: bytes
    records: Sequence[RunRecord]  # what the rows hold


def of_runs(run_dirs: Sequence[Path]) -> Study:
    """Returns the study of runs, with all that a page shows. Raises UserError as read does."""
    runs = _opened(run_dirs)
    return _study([*map(_completed, _records(runs, _evaluated(runs)), runs)])


def united(
    studies: Sequence[Study], *, groups: Sequence[str] = (), without: Sequence[str] = ()
) -> Study:
    """Returns the study of all runs of several; a run of two has the rows of both.

    `groups`: names of schemes; if there are any, the runs of others are left out. `without`: names
    of runs that are left out. Raises UserError where two studies contradict each other: in a run's
    configuration or weights, or in what was measured of a document; for a group without runs; and
    for a run to leave out that is in none.
    """
    found: dict[str, RunRecord] = {}
    records = [record for other in studies for record in other.records]
    if groups:
        names = [_scheme(record.config) for record in records]
        _check_groups(groups, names)
        records = [one for one, name in zip(records, names, strict=True) if name in groups]
    known = {record.run for record in records}
    for name in without:
        if name not in known:
            raise UserError(f"--without: no run {name!r} here; {suggestion(name, known)}")
    for record in records:
        if record.run not in without:
            found[record.run] = _joined(found.get(record.run, record), record)
    if not found:
        raise UserError("--without: no run is left; name fewer")
    return _study([found[run] for run in sorted(found)])


def _joined(one: RunRecord, other: RunRecord) -> RunRecord:
    """Returns a run with the rows of two sources, and of each fact the first that is known."""

    def weights(record: RunRecord) -> set[Any]:
        return {(row.get("weights"), row.get("tokens_seen")) for row in record.rows}

    rows = {tuple(row.get(key) for key in MEASURED): row for row in one.rows}
    differing = [
        what
        for what, differs in (
            ("configuration", one.config != other.config),
            ("weights", weights(one) != weights(other)),
        )
        if differs
    ]
    newest = {tuple(row.get(key) for key in MEASURED): row for row in other.rows}
    for of, row in newest.items():
        if rows.setdefault(of, row) != row:
            differing.append("row of " + ", ".join(str(value) for value in of if value is not None))
    if differing:
        raise UserError(
            f"report: run {one.run} is not the same in all folders and runs that are named "
            f"({differing[0]}); leave one out"
        )
    return replace(
        one,
        environment=one.environment or other.environment,
        cost=one.cost if one.cost.tokens else other.cost,
        probes=other.probes | one.probes,
        rows=[*rows.values()],
    )


def _study(records: Sequence[RunRecord]) -> Study:
    """Returns the two files of some runs, and the records as they are read from them."""
    lines: list[str] = []
    written: list[RunRecord] = []
    for record in records:
        head = json.dumps({"kind": "run", "run": asdict(replace(record, rows=[]))}, default=str)
        lines += [head, *map(json.dumps, record.rows)]
        written.append(replace(_written(parse_row(head.encode())), rows=record.rows))
    text = "".join(f"{line}\n" for line in lines).encode()
    if len(text) > MOST_BYTES:
        raise UserError(f"report: the rows take more than {MOST_BYTES:,} bytes; name fewer runs")
    # Level 9 takes 5 times as long for 8% less.
    rows = gzip.compress(text, compresslevel=4, mtime=0)
    manifest = {"rows": _sha256(rows), **_manifest(records)}
    return Study(
        rows=rows, manifest=(json.dumps(manifest, indent=1) + "\n").encode(), records=written
    )


def _written(line: Row) -> RunRecord:
    """Returns the record of a run's line."""
    return _RECORD.validate_python(line["run"])


def of_folder(folder: Path) -> Study:
    """Returns the study that a report was written of. Raises UserError if it is damaged."""
    try:
        rows, manifest = (read_bytes(folder / name) for name in (ROWS, MANIFEST))
        of_rows = parse_row(manifest).get("rows", _sha256(rows))  # older ones do not name it
    except OSError as error:
        raise UserError(
            f"{error.filename}: cannot be read ({error.strerror}); restore it, or report the runs "
            "again"
        ) from None
    except ValueError as error:
        raise UserError(
            f"{folder / MANIFEST} is damaged ({error}); restore it, or report the runs again"
        ) from None
    if of_rows != _sha256(rows):
        raise UserError(
            f"{folder / ROWS} is not what {MANIFEST} next to it was written with; restore both, "
            "or report the runs again"
        )
    return Study(rows=rows, manifest=manifest, records=_records_of(rows, folder / ROWS))


def _records_of(rows: bytes, path: Path) -> list[RunRecord]:
    """Returns the records that rows hold. Raises UserError if they are damaged or of no report."""
    found: list[RunRecord] = []
    reason = "no run"
    try:
        with gzip.open(io.BytesIO(rows)) as file:
            lines = file.read(MOST_BYTES).splitlines()
        for row in map(parse_row, lines):
            if "kind" in row:
                found.append(_written(row))
            elif row["format"] != FORMAT:
                raise ValueError(f"rows of format {row['format']}, not {FORMAT}")
            else:
                found[-1].rows.append({**row, "run": found[-1].run})
    except ValidationError as error:
        reason, found = first_error(error), []
    except (OSError, EOFError, zlib.error, ValueError, TypeError, LookupError) as error:
        reason, found = str(error) or type(error).__name__, []
    if not found:
        raise UserError(
            f"{path} is damaged or was not written by this version of lengthgen report "
            f"({reason}); restore it, or report its runs again"
        )
    return found


def read(run_dirs: Sequence[Path], rows: Sequence[Plain] | None = None) -> list[RunRecord]:
    """Returns configuration and rows of runs, by default of all that was evaluated of them.

    Raises UserError as evaluated does, and for a configuration that cannot be read.
    """
    runs = _opened(run_dirs)
    return _records(runs, _evaluated(runs) if rows is None else rows)


def evaluated(run_dirs: Sequence[Path]) -> list[Row]:
    """Returns the eval rows of all runs; the directory's name is the run's.

    Raises UserError for a directory without rows, and for two of one name.
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
    for path in dict.fromkeys(path.resolve() for path in run_dirs):
        refuse_links(path)
        config = _config(path)
        found.append(_Run(path, config, directory.run_id(config, path)))
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


def _config(run_dir: Path) -> Row:
    try:
        return _readable(directory.read_config(run_dir))
    except ValueError as error:
        reason = first_error(error) if isinstance(error, ValidationError) else str(error)
        path = run_dir / "config.yaml"
        raise UserError(f"{path} is damaged: {reason}; restore it, or report other runs") from None


def _evaluated(runs: Sequence[_Run]) -> list[Row]:
    if not runs:
        raise UserError("report: no run is named; lengthgen list runs shows those there are")
    rows: list[Row] = []
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
        found = [row for row in stored(path, run=run) if row.get("format") == FORMAT]
        if not found:
            raise UserError(f"no evaluation in {path}; run lengthgen eval {path.name}")
        if any("kind" in row for row in found):  # as the line of a run in the rows of a report has
            raise damaged(name, "field kind, which no row has")
        rows += [{**row, "run": name} for row in found]
    return rows


def of_usable(
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


def of_groups(
    run_dirs: Sequence[Path], groups: Sequence[str], *, say: Callable[[str], None]
) -> list[Path]:
    """Returns the runs of some groups; a run's group is the name of its scheme.

    A run whose configuration cannot be read is named, and in no group. Raises UserError for a
    group without runs.
    """
    names: dict[Path, str] = {}
    for path in run_dirs:
        try:
            names[path] = _scheme(_config(path))
        except UserError as error:
            say(f"{path.name} is not shown: {error}")
    _check_groups(groups, names.values())
    return [path for path, name in names.items() if name in groups]


def _scheme(config: Plain) -> str:
    return str(config.get("scheme", {}).get("name"))


def _check_groups(groups: Sequence[str], names: Iterable[str]) -> None:
    known = sorted(set(names))
    for group in groups:
        if group not in known:
            raise UserError(f"--group: no evaluated run of {group!r}; {suggestion(group, known)}")


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
    log = directory.training_log(run_dir, run=run.run_id)
    return replace(
        record,
        environment=_environment(run_dir, run=run.run_id),
        cost=cost(log, parameters=directory.n_parameters(run_dir, run=run.run_id)),
        probes={
            utf8(path.stem).replace("_", " "): _svg(path, run=run.run_id)
            for path in sorted(run_dir.glob("probes/*.svg"))
        },
    )


def _environment(run_dir: Path, *, run: str) -> dict[str, Any] | None:
    """Returns what env.json holds of the command, machine and versions; no host, no local paths."""
    try:
        found = directory.read_provenance(run_dir, run=run)
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


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


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


def _manifest(records: Sequence[RunRecord]) -> dict[str, Any]:
    """Returns where the numbers come from: commands, commits, machines, versions and tokens."""
    rows = [row for record in records for row in record.rows]
    corpora: dict[str, Any] = {}  # of installed files, by fingerprint: the versions of the packages
    runs: dict[str, dict[str, Any]] = {}
    for record in records:
        environment = dict(record.environment or {})
        if versions := environment.pop("corpus_versions", None):
            corpora |= {str(row.get("fingerprint")): versions for row in record.rows}
        runs[record.run] = {**environment, "training_seconds": record.cost.seconds}
    endpoints: dict[str, set[str]] = {}
    for row in rows:
        endpoints.setdefault(str(row.get("protocol")), set()).add(str(row.get("endpoints")))
    return {
        "command": shlex.join(["lengthgen", *map(utf8, sys.argv[1:])]),
        **directory.environment(),
        "training_seconds": math.fsum(record.cost.seconds or 0 for record in records),
        "tokens": sorted({str(row.get("fingerprint")) for row in rows}),
        **({"corpora": corpora} if corpora else {}),
        "endpoints": {name: sorted(of) for name, of in sorted(endpoints.items())},
        "runs": runs,
    }
