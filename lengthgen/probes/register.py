"""What probes add to a report: a table of what `lengthgen probe` wrote into the folders of runs."""

from itertools import groupby
from pathlib import Path
from typing import Any


def _section(rows: Any) -> Any:
    from lengthgen.files import read_rows
    from lengthgen.probes.run import ROWS, registry
    from lengthgen.report.report import ReportSection
    from lengthgen.report.tables import Table, TableCell

    known, lines = registry(), list[tuple[str, str, str]]()
    folders: dict[str, str] = rows.attrs.get("folders", {})  # of runs; a report has none
    for run in set(rows["run"]) & folders.keys():
        written = read_rows(Path(folders[run], ROWS), run=run)
        groups = groupby(written, key=lambda row: (row["probe"], row["weights"], row["endpoints"]))
        newest = {name: [*group] for (name, *_), group in groups if name in known}
        lines += ((name, run, known[name].summary(group)) for name, group in newest.items())
    if not lines:
        return None
    table = Table(
        title="Probes of the newest checkpoints (lengthgen probe), means over layers and heads",
        head=["probe", "run", "what it shows"],
        rows=[[*map(TableCell, line)] for line in sorted(lines)],
    )
    return ReportSection(title="Probes", tables=[table])


SECTIONS = [_section]
