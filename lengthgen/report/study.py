"""The rows of a report's folder, rows.jsonl.gz, from which tables and figures are made again.

For each run a line with its configuration and costs, and behind it the lines of its eval.jsonl.
"""

import gzip
import hashlib
import io
import json
import math
import shlex
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import (
    TypeAdapter,
    ValidationError,
)

from lengthgen.analysis.eval_rows import FORMAT
from lengthgen.config.sections import first_error
from lengthgen.errors import UserError, suggestion
from lengthgen.files import parse_row, read_bytes, utf8
from lengthgen.report.run_records import Row, RunRecord, read_with_costs, selected
from lengthgen.runs import directory

ROWS, MANIFEST = "rows.jsonl.gz", "manifest.json"
MEASURED = ("protocol", "variant", "length", "document")  # which row of a run
_RECORD = TypeAdapter(RunRecord)


@dataclass(frozen=True, kw_only=True)
class Study:
    """The two files from which the others in the folder of a report are made."""

    rows: bytes
    manifest: bytes
    records: Sequence[RunRecord]  # what the rows hold


def from_runs(run_dirs: Sequence[Path]) -> Study:
    """Returns the study of runs, with all that a page shows. Raises UserError as read does."""
    return _study(read_with_costs(run_dirs))


def join(
    studies: Sequence[Study],
    *,
    conditions: Mapping[str, Sequence[Any]] | None = None,
    without: Sequence[str] = (),
) -> Study:
    """Returns the study of all runs of several; a run of two has the rows of both.

    `conditions`: the values that runs may have, by key; others are left out. `without`: names of
    runs that are left out. Raises UserError where two studies contradict each other: in a run's
    configuration or weights, or in what was measured of a document; for a condition that no run
    meets; and for a run to leave out that is in none.
    """
    found: dict[str, RunRecord] = {}
    records = [record for other in studies for record in other.records]
    if conditions:
        chosen = selected([record.config for record in records], conditions)
        records = [record for record, keep in zip(records, chosen, strict=True) if keep]
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
    # Level 9 takes 5 times as long for 8% less.
    rows = gzip.compress(text, compresslevel=4, mtime=0)
    manifest = {"rows": _sha256(rows), **_manifest(records)}
    return Study(
        rows=rows, manifest=(json.dumps(manifest, indent=1) + "\n").encode(), records=written
    )


def _written(line: Row) -> RunRecord:
    """Returns the record of a run's line."""
    return _RECORD.validate_python(line["run"])


def from_folder(folder: Path) -> Study:
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
            lines = file.read().splitlines()
        for row in map(parse_row, lines):
            if "kind" in row:
                found.append(_written(row))
            elif row.get("format", FORMAT) != FORMAT:
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


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


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
