"""What probes add to a report: a table of what `lengthgen probe` wrote into the folders of runs."""

from itertools import groupby
from pathlib import Path
from typing import Any

from lengthgen.files import is_there, read_rows
from lengthgen.probes import LOG


def _section(rows: Any) -> Any:
    folders: dict[str, str] = rows.attrs.get("folders", {})  # of runs; a report has none
    files = {run: Path(folders[run], LOG) for run in set(rows["run"]) & folders.keys()}
    if not any(map(is_there, files.values())):  # what follows imports torch
        return None
    from lengthgen.probes.run import probe_classes, title_of
    from lengthgen.report.report import ReportSection
    from lengthgen.report.tables import Table, TableCell

    known, lines = probe_classes(), list[tuple[str, str, str]]()
    for run, file in files.items():
        written = read_rows(file, run=run)
        about = ("weights", "endpoints", "parts", "code")
        groups = groupby(written, key=lambda row: (title_of(row), [*map(row.get, about)]))
        newest = {title: [*group] for (title, *_), group in groups}
        lines += (
            (title, run, known[group[0]["probe"]].summary(group))
            for title, group in newest.items()
            if group[0]["probe"] in known
        )
    if not lines:
        return None
    table = Table(
        title="Probes of the newest checkpoints (lengthgen probe), means over layers and heads",
        head=["probe", "run", "what it shows"],
        rows=[[*map(TableCell, line)] for line in sorted(lines)],
    )
    return ReportSection(title="Probes", tables=[table])


SECTIONS = [_section]
