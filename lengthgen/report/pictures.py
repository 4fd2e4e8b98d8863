"""The figures of a report: those of runs of text, those of tasks, and how the two relate."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lengthgen.analysis import reference_results
from lengthgen.analysis.accuracy import Accuracy
from lengthgen.analysis.curves import perplexity
from lengthgen.analysis.findings import Finding, findings
from lengthgen.analysis.seed_groups import Series
from lengthgen.evaluation.protocols import BY_POSITION, HEADLINE
from lengthgen.report import collect
from lengthgen.report.collect import Report
from lengthgen.report.curve_tables import competitors
from lengthgen.report.figures import curve, style, training
from lengthgen.report.figures.accuracy import Dot, accuracy, relation, side_by_side
from lengthgen.report.figures.chart import Chart, Published
from lengthgen.report.figures.layout import MOST_NAMED, laid_out, panels
from lengthgen.report.figures.overview import excess, ranking
from lengthgen.report.figures.positions import positions
from lengthgen.report.figures.ratios import ratios
from lengthgen.report.task_tables import UNSOLVED, TaskReport, citation, shown_chance


def draw_text(report: Report) -> dict[str, bytes]:
    """Returns the figures by file name: those of the headline protocol and a curve per other one.

    The panels of `headline` are for a paper, a row for each T; there are none if they would show
    too many lines.
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
    rows = [[there[name] for name in ("curve", "gain", "positions") if name in there]]
    if len({line.train_length for line in report.by_protocol.get(HEADLINE, [])}) > 1:
        rows = by_train_length(report)
    charts = [chart for row in rows for chart in row]
    of_one_kind = len({len(row) for row in rows}) == 1 < len(rows[0])
    if of_one_kind and all(len(chart.shown) <= MOST_NAMED for chart in charts):
        drawn["headline"] = panels(charts, rows=len(rows))
    return style.files(drawn)


def by_train_length(report: Report) -> list[list[Chart]]:
    """Returns curve and gain of the runs of each T, that of most schemes first."""
    configs = {run: record.config for run, record in report.runs.items()}
    points = [p for line in report.by_protocol[HEADLINE] for p in line.points]
    rows: list[list[Chart]] = []
    named: dict[str, Series] = {}
    for T in sorted({p.train_length for p in points}):
        lines = collect.by_protocol([p for p in points if p.train_length == T], configs)
        found = findings(lines)
        charts = (curve.perplexities(lines[HEADLINE], found), curve.gains(found))
        rows.append([chart for chart in charts if chart is not None])
        named = {line.label: line for line in lines[HEADLINE]} | named
    rows.sort(key=lambda row: -len(row[0].shown))
    styles = style.line_styles([*named.values()])
    return [[_styled(chart, styles) for chart in row] for row in rows]


def _styled(chart: Chart, styles: Mapping[str, Mapping[str, Any]]) -> Chart:
    lines = [replace(line, style=styles[line.name]) for line in chart.lines]
    return replace(chart, lines=lines)


def overview(report: Report) -> dict[str, bytes]:
    """Returns the figures of all series at once, by file name.

    Excess and ranking if the series do not fit one chart; what the budget or T changes if a scheme
    was trained with three of them.
    """
    lines = competitors(report.by_protocol.get(HEADLINE, []))
    labels = {line.label for line in lines}
    findings = [finding for finding in report.findings if finding.series.label in labels]
    drawn = {
        "by-tokens": training.over(training.TOKENS, findings, report.configs),
        "by-train-length": training.over(training.LENGTH, findings, report.configs),
    }
    if len(lines) > MOST_NAMED:
        drawn |= {"excess": excess(lines), "ranking": ranking(findings)}
    return style.files({name: figure for name, figure in drawn.items() if figure is not None})


def _stem(name: str, protocol: str) -> str:
    return name if protocol == HEADLINE else f"{name}-{protocol}"


def _curve(report: Report, protocol: str) -> Chart | None:
    """Returns the curve of a protocol; none of another than the headline with one length."""
    lines = report.by_protocol[protocol]
    if protocol == HEADLINE:
        return curve.perplexities(lines, report.findings)
    several = len({p.length for line in lines for p in line.points}) > 1
    return curve.perplexities(lines, []) if several else None


def draw_tasks(report: TaskReport, findings: Sequence[Finding]) -> dict[str, bytes]:
    """Returns the figures by file name: of each task, of up to three, and of tasks and text."""
    charts = accuracies(report, published=True)
    figures = {f"accuracy-{name}": laid_out(chart) for name, chart in charts.items()}
    together = side_by_side([*accuracies(report, published=False).values()])
    if together is not None:
        figures["accuracy"] = together
    there = dots(report, findings)
    if len(there) > 1:
        out = left_out(report, findings, [dot.label for dot in there])
        figures["relation"] = relation(there, tasks=list(report.counted), left_out=out)
    return style.files(figures)


def accuracies(report: TaskReport, *, published: bool) -> dict[str, Chart]:
    """Returns the chart of each task; a series has one style in all of them."""
    series = {one.series.label: one.series for found in report.by_task.values() for one in found}
    styles = style.line_styles([*series.values()])
    charts = {
        name: accuracy(
            found,
            unit=report.about[name].unit,
            chance=shown_chance(report.about[name]),
            published=_published(name, found) if published else [],
            styles=styles,
        )
        for name, found in report.by_task.items()
    }
    return {name: chart for name, chart in charts.items() if chart is not None}


def _published(name: str, found: Sequence[Accuracy]) -> list[Published]:
    """Returns grey lines: the published mean over the lengths from L to 2L, where L is the same."""
    schemes = {one.series.scheme for one in found}
    L = found[0].series.train_length
    return [
        Published(
            f"{citation(paper)}, {paper.accuracy:.0%} over {L + 1} to {paper.test_length}",
            paper.citation,
            True,
            {float(n): paper.accuracy for n in (L, paper.test_length)},
        )
        for paper in reference_results.accuracies()
        if paper.task == name and paper.scheme in schemes and paper.train_length == L
    ]


def dots(report: TaskReport, findings: Sequence[Finding]) -> list[Dot]:
    """Returns, per scheme with both, the perplexity at the longest length over that at T, and the
    mean accuracy on unseen lengths over the tasks that count, if it counts in each.
    """
    found: list[Dot] = []
    there = [one for one in findings if not one.series.reference and one.series.variant is None]
    longest = max((length for one in there for length in one.gain), default=0)
    for finding in there:
        line = finding.series
        if longest not in finding.gain or longest <= line.train_length:
            continue  # another length would be another question
        of = [
            one.unseen.value
            for ranked in report.counted.values()
            for one in ranked
            if one.series.label == line.label and one.unseen is not None
        ]
        if of and len(of) == len(report.counted):
            ratio = perplexity(-finding.gain[longest].value)
            found.append(Dot(line.label, ratio, sum(of) / len(of), longest / line.train_length))
    return found


def left_out(report: TaskReport, findings: Sequence[Finding], shown: Sequence[str]) -> str:
    """Returns the schemes and tasks that the relation is not of, and why, as text."""
    labels = {one.series.label for found in report.by_task.values() for one in found}
    schemes = sorted(labels & {one.series.label for one in findings} - {*shown})
    names = (
        (", ".join(schemes), "not learned in, or without a value for, all of these"),
        (", ".join(report.unsolved), UNSOLVED),
    )
    return "; ".join(f"{name} ({why})" for name, why in names if name)
