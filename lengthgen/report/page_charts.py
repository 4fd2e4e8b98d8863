"""The charts of the page, with their captions, legends and the values that can be read off."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from lengthgen.analysis.formatting import number, short
from lengthgen.analysis.seed_groups import Series, ordered, sampled
from lengthgen.evaluation.protocols import BY_POSITION, HEADLINE
from lengthgen.report import curve_tables
from lengthgen.report.collect import Report
from lengthgen.report.curve_tables import Write
from lengthgen.report.figures import curve
from lengthgen.report.figures.chart import Chart, Line
from lengthgen.report.figures.inline import inline, swatch
from lengthgen.report.figures.layout import MOST_NAMED
from lengthgen.report.figures.positions import AVERAGED, positions
from lengthgen.report.figures.ratios import ratios
from lengthgen.report.figures.style import line_styles

GREY = "Grey: published curves of the same schemes, of other models; point at one to see which."
SHARED = "Lines share their documents, so bands that overlap are no tie; see the tables."
OTHER_PROTOCOL = (
    "Dashed: measured under another protocol, so not comparable in height; hidden until the button "
    "with the protocol's name is pressed. Dashed lines may leave the axes."
)


class Entry(NamedTuple):
    """A line of a legend: what its button hides and shows, and the values that can be read."""

    key: str
    label: str
    swatch: str  # of a group of published lines; a series has that of the page
    values: Sequence[str]
    pressed: bool
    later: bool = False  # one of many series, hidden by the script until it is requested


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """A chart with its caption, its legend, and the places where values can be read."""

    name: str  # of letters and hyphens
    title: str
    caption: str
    svg: str
    stops: Sequence[tuple[float, str]]  # how far from left (0) to right (1), and what it is called
    entries: Sequence[Entry]


def charts(report: Report) -> list[Exhibit]:
    """Returns the charts that there are numbers for, the headline first."""
    others = {a.protocol for a in report.published_curves} & {*report.by_protocol} - {HEADLINE}
    found = [
        _perplexity(report),
        _gain(report),
        _positions(report),
        *(_ratios(report, protocol) for protocol in [HEADLINE, *sorted(others)]),
    ]
    return [exhibit for exhibit in found if exhibit is not None]


def swatches(report: Report) -> dict[str, str]:
    """Returns a sample of each series' line as SVG, by label."""
    styles = line_styles(report.lines)
    return {line.label: swatch(styles[line.label], thin=line.reference) for line in report.lines}


def _perplexity(report: Report) -> Exhibit | None:
    findings, lines = report.findings, report.by_protocol.get(HEADLINE, ())
    caption = [
        "The same tokens are scored at every length; only the text before them differs.",
        f"{_band(lines)} {SHARED} Dotted: what the last T tokens alone give (crop).",
    ]
    if any(line.reference for line in lines):
        caption.append("Thin: the same model with attention to the last T tokens alone.")
    if any(finding.unigram is not None for finding in findings):
        caption.append("Unigram floor: each token predicted by its frequency in training.")
    return _exhibit(
        report,
        curve.perplexities(lines, findings) if findings else None,
        name="perplexity",
        title="Tail perplexity over length",
        caption=[*caption, "Both axes are logarithmic."],
        write=number,
        stop=_tokens,
    )


def _band(lines: Iterable[Series]) -> str:
    return f"The band is the 95% interval over {sampled(lines)}."


def _gain(report: Report) -> Exhibit | None:
    band = _band(finding.series for finding in report.findings)
    return _exhibit(
        report,
        curve.gains(report.findings),
        name="gain",
        title="Context gain G(C)",
        caption=[
            "G(C) = loss(T) - loss(C) on the same tokens. Above 0 the text beyond T helps, below 0",
            f"it harms. {band} The vertical axis is linear near 0 and logarithmic further away.",
        ],
        write=lambda nats: curve_tables.change(nats) if nats else "0",
        stop=_tokens,
    )


def _positions(report: Report) -> Exhibit | None:
    return _exhibit(
        report,
        positions(report.by_protocol.get(BY_POSITION, ())),
        name="positions",
        title="Loss at each position",
        caption=[
            "L(i): mean loss at position i of one pass over long windows from random offsets,",
            f"{AVERAGED}. The horizontal axis is logarithmic.",
        ],
        write=curve_tables.plain,
        stop="position {:,.0f}".format,
    )


def _ratios(report: Report, protocol: str) -> Exhibit | None:
    is_headline, lines = protocol == HEADLINE, report.by_protocol.get(protocol, ())
    findings = report.findings if is_headline else ()
    chart = ratios(lines, report.published_curves, findings=findings, all_protocols=is_headline)
    band = _band(lines) if is_headline else "Means over seeds."
    caption = [f"ppl(C) / ppl(T) over C / T. {band}"]
    if chart is not None and chart.behind:
        caption.append(GREY)
    if chart is not None and any(not one.comparable for one in chart.behind):
        caption.append(OTHER_PROTOCOL)
    return _exhibit(
        report,
        chart,
        name="ratios" if protocol == HEADLINE else f"ratios-{protocol}".replace("_", "-"),
        title=f"Perplexity relative to that at T, {protocol}",
        caption=caption,
        write=lambda ratio: times(ratio) if ratio != 1 else "1",
        stop="C = {:g} T".format,
    )


def _tokens(length: float) -> str:
    return f"{short(int(length))} tokens"


def times(value: float) -> str:
    """Returns a ratio with three digits after the point, fewer where it is large."""
    return f"{value:.3f}" if value < 10 else number(value)


def _exhibit(
    report: Report,
    chart: Chart | None,
    *,
    name: str,
    title: str,
    caption: Sequence[str],
    write: Write,
    stop: Write,
) -> Exhibit | None:
    if chart is None or not any(line.lengths for line in chart.lines):
        return None
    styles = line_styles(report.lines)
    lines = [replace(line, style=styles[line.name], seeds=()) for line in chart.lines]
    xs = sorted({x for line in lines for x in line.values})
    groups = {one.group: one for one in chart.behind}
    keys = {group: f"published-{name}-{i}" for i, group in enumerate(groups)}
    drawn = inline(replace(chart, lines=lines), keys={**report.keys, **keys}, name=name, at=xs)
    first = _first(report)
    entries = [
        Entry(
            key=report.keys[line.name],
            label=line.name,
            swatch="",
            values=[_value(line, x, write) for x in xs],
            pressed=True,
            later=line.name not in first,
        )
        for line in sorted(lines, key=lambda line: line.reference)
    ]
    for group, one in groups.items():
        style = {"color": "0.6", "linestyle": "-" if one.comparable else "--"}
        grey = swatch(style, thin=True)
        entries.append(Entry(keys[group], group, grey, [""] * len(xs), one.comparable))
    return Exhibit(
        name=name,
        title=title,
        caption=" ".join(caption),
        svg=drawn.svg,
        stops=list(zip(drawn.across, map(stop, xs), strict=True)),
        entries=entries,
    )


def _first(report: Report) -> set[str]:
    """Returns the labels of what shows at first: of many series, those of least loss alone."""
    lines = report.by_protocol.get(HEADLINE) or report.lines
    own = [line for line in ordered(lines) if not line.reference]
    first = own[:MOST_NAMED]
    of_first = (one for one in report.lines if any(one.is_reference_of(line) for line in first))
    return {line.label for line in (*first, *of_first)}


def _value(line: Line, x: float, write: Write) -> str:
    """Returns value and interval; the value alone if there is no interval, or if it is exact."""
    if x not in line.values:
        return "-"
    value = line.values[x]
    low, high = (bound.get(x, math.nan) for bound in (line.low, line.high))
    if math.isnan(low) or math.isnan(high) or low == value == high:
        return write(value)
    return f"{write(value)} [{write(low)}, {write(high)}]"
