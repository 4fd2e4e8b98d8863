"""The files of a report: figures, tables, CSV, the page, and the rows that all are made from."""

from collections.abc import Mapping
from pathlib import Path

from lengthgen.errors import UserError
from lengthgen.evaluation.protocols import HEADLINE
from lengthgen.files import replace_file
from lengthgen.report import (
    collect,
    curve_csv,
    curve_tables,
    html,
    pictures,
    table_formats,
    task_tables,
)
from lengthgen.report.collect import Gathered
from lengthgen.report.figures.inline import Picture
from lengthgen.report.study import MANIFEST, ROWS, Study
from lengthgen.report.table_formats import Table


def write_report(study: Study, out: Path) -> list[Path]:
    """Writes the files of a report into `out` and returns their paths."""
    return write_gathered(study, collect.gather_both(study.records), out)


def write_gathered(study: Study, gathered: Gathered, out: Path) -> list[Path]:
    """Writes the files of a report that was gathered, and returns their paths.

    The headline protocol's figure is curve.png and curve.svg, another's curve-PROTOCOL.*, a task's
    accuracy-TASK.*, that of two to six tasks accuracy.*; ratios-PROTOCOL.* compares with
    published curves of that protocol. Runs of several tasks are shown together, next to runs of one
    text. All but the manifest follows from the rows: the same rows give the same bytes.
    """
    report, answered = gathered
    files: dict[str, bytes] = {}
    numbers: dict[str, str] = {}
    markdowns: list[str] = []
    shown: list[Table] = []
    exhibit: html.Tasks | None = None
    overview: list[Picture] = []
    if report is not None:
        files |= pictures.draw_text(report)
        of_all = pictures.overview(report)
        files |= of_all
        overview = _pictures(of_all)
        numbers["curve.csv"] = curve_csv.points_csv(report.by_protocol)
        numbers["findings.csv"] = curve_csv.findings_csv(report.findings)
        headline = report.by_protocol.get(HEADLINE, [])
        numbers["differences.csv"] = curve_csv.differences_csv(headline)
        shown += collect.contents(report)
        limits = curve_tables.warnings(report.findings, report.remarks)
        markdowns.append(collect.markdown(shown, limits))
    if answered is not None:
        drawn = pictures.draw_tasks(answered, report.findings if report is not None else [])
        files |= drawn
        numbers["accuracy.csv"] = task_tables.accuracy_csv(answered)
        numbers["tasks.csv"] = task_tables.tasks_csv(answered)
        decoded = task_tables.decoded_csv(answered)
        numbers |= {"decoded.csv": decoded} if decoded is not None else {}
        of = task_tables.contents(answered)
        shown += of
        markdowns.append(collect.markdown(of, answered.remarks))
        exhibit = html.Tasks(
            pictures=_pictures({name: drawn[name] for name in drawn if name != "accuracy.svg"}),
            tables=of,
            remarks=answered.remarks,
        )
    texts = {
        "table.md": "\n".join(markdowns),
        "table.tex": "\n".join(map(table_formats.latex, shown)),
        **numbers,
        "report.html": html.render(report, exhibit, overview),
    }
    files |= {name: content.encode() for name, content in texts.items()}
    files |= {ROWS: study.rows, MANIFEST: study.manifest}
    return write_files(files, out)


def write_files(files: Mapping[str, bytes], out: Path) -> list[Path]:
    """Writes files into `out` and returns their paths. Raises UserError if there is no folder."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{out}: cannot be written ({error.strerror}); name another folder"
        ) from None
    for name, content in files.items():
        replace_file(out / name, content)
    return [out / name for name in files]


def _pictures(files: Mapping[str, bytes]) -> list[Picture]:
    return [
        Picture(Path(name).stem.replace("-", " "), content.decode())
        for name, content in files.items()
        if name.endswith(".svg")
    ]
