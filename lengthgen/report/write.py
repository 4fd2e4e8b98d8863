"""The files of a report: figures, tables, CSV, the page, and the rows that all are made from."""

from pathlib import Path

from lengthgen.errors import UserError
from lengthgen.evaluation.protocols import BY_POSITION, HEADLINE
from lengthgen.report import collect, html, tables, tasks, text_tables
from lengthgen.report.collect import Report
from lengthgen.report.figures import curve, style
from lengthgen.report.figures.chart import Chart
from lengthgen.report.figures.layout import MOST_NAMED, laid_out, panels
from lengthgen.report.figures.positions import positions
from lengthgen.report.figures.ratios import ratios
from lengthgen.report.study import MANIFEST, ROWS, Study
from lengthgen.report.tables import Table
from lengthgen.storage import replace_file


def write_report(study: Study, out: Path) -> list[Path]:
    """Writes the files of a report into `out` and returns their paths.

    The headline protocol's figure is curve.png and curve.svg, another's curve-PROTOCOL.*, a task's
    accuracy-TASK.*; ratios-PROTOCOL.* compares with published curves of that protocol. Runs of
    several tasks are shown together, next to runs of one text. All but the manifest follows from
    the rows: the same rows give the same bytes.
    """
    report, answered = collect.gather_both(study.records)
    files: dict[str, bytes] = {}
    numbers: dict[str, str] = {}
    markdowns: list[str] = []
    shown: list[Table] = []
    exhibit: html.Tasks | None = None
    if report is not None:
        files |= pictures(report)
        numbers["curve.csv"] = text_tables.points_csv(report.by_protocol)
        numbers["findings.csv"] = text_tables.findings_csv(report.findings)
        headline = report.by_protocol.get(HEADLINE, [])
        numbers["differences.csv"] = text_tables.differences_csv(headline)
        shown += collect.contents(report)
        limits = text_tables.warnings(report.findings, report.remarks)
        markdowns.append(collect.markdown(shown, limits))
    if answered is not None:
        drawn = tasks.pictures(answered, report.findings if report is not None else [])
        files |= drawn
        numbers["accuracy.csv"] = tasks.accuracy_csv(answered)
        numbers["tasks.csv"] = tasks.tasks_csv(answered)
        of = tasks.contents(answered)
        shown += of
        markdowns.append(collect.markdown(of, answered.remarks))
        exhibit = html.Tasks(
            pictures=[
                html.Picture(Path(name).stem.replace("-", " "), svg.decode())
                for name, svg in drawn.items()
                if name.endswith(".svg")
            ],
            tables=of,
            remarks=answered.remarks,
        )
    texts = {
        "table.md": "\n".join(markdowns),
        "table.tex": "\n".join(map(tables.latex, shown)),
        **numbers,
        "report.html": html.render(report, exhibit),
    }
    files |= {name: content.encode() for name, content in texts.items()}
    files |= {ROWS: study.rows, MANIFEST: study.manifest}
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror}); give --out DIR") from None
    for name, content in files.items():
        replace_file(out / name, content)
    return [out / name for name in files]


def pictures(report: Report) -> dict[str, bytes]:
    """Returns the figures by file name: those of the headline protocol and a curve per other one.

    The panels of `headline` are for a paper; there are none if they would show too many lines.
    """
    by_position = report.by_protocol.get(BY_POSITION, [])
    charts = {
        **{_stem("curve", name): _curve(report, name) for name in report.unaltered},
        "gain": curve.gains(report.findings),
        "positions": positions(by_position),
        **{
            _stem("ratios", name): ratios(report.by_protocol[name], report.published_curves)
            for name in report.unaltered
        },
    }
    there = {name: chart for name, chart in charts.items() if chart is not None}
    drawn = {name: laid_out(chart) for name, chart in there.items()}
    side_by_side = [there[name] for name in ("curve", "gain", "positions") if name in there]
    if len(side_by_side) > 1 and all(len(chart.shown) <= MOST_NAMED for chart in side_by_side):
        drawn["headline"] = panels(side_by_side)
    return style.files(drawn)


def _stem(name: str, protocol: str) -> str:
    return name if protocol == HEADLINE else f"{name}-{protocol}"


def _curve(report: Report, protocol: str) -> Chart | None:
    """Returns the curve of a protocol; none of another than the headline with one length."""
    lines = report.by_protocol[protocol]
    if protocol == HEADLINE:
        return curve.perplexities(lines, report.findings)
    several = len({p.length for line in lines for p in line.points}) > 1
    return curve.perplexities(lines, []) if several else None
