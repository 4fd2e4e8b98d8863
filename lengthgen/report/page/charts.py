"""The charts of the page, from findings and series."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from xml.etree.ElementTree import Element

from lengthgen.analysis.curves import BY_POSITION, HEADLINE, perplexity
from lengthgen.analysis.findings import Finding
from lengthgen.analysis.formatting import number, short
from lengthgen.analysis.intervals import Estimate
from lengthgen.analysis.reference_results import Anchor
from lengthgen.analysis.seed_groups import Series
from lengthgen.report.figures.positions import AVERAGED, drawn_losses
from lengthgen.report.page.chart import Behind, Chart, Line, Value, drawn
from lengthgen.report.page.contents import Contents
from lengthgen.report.page.numbers import ppl, ratio, signed

BAND = "The band is the 95% interval over seeds and documents. "
UNIGRAM = "Unigram floor: each token predicted by its frequency in training."
SHARED = "Lines share their documents, so bands that overlap are no tie; see the tables. "
GREY = "Grey: published curves of the same schemes, of other models; point at one to see which."
UNLIKE = (
    "Dashed: measured under another protocol, so not comparable in height; hidden until the button "
    "with the protocol's name is pressed."
)
AWAY = "Grey lines that rise beyond twice our highest value leave the axis above."


def charts(contents: Contents) -> list[Element]:
    """Returns the charts that there are numbers for, the headline first."""
    found = [_perplexity(contents), _gain(contents), _positions(contents), *_ratios(contents)]
    return [drawn(chart) for chart in found if any(line.values for line in chart.lines)]


def _perplexity(contents: Contents) -> Chart:
    unigrams = [f.unigram for f in contents.findings if f.unigram is not None]
    floor = perplexity(max(unigrams)) if unigrams else None
    thin = "Thin: the same model with attention to the last T tokens alone. "
    lengths = _lengths(contents)
    return Chart(
        name="perplexity",
        title="Tail perplexity over length",
        caption=[
            "The same tokens are scored at every length; only the text before them differs. ",
            f"{BAND}{SHARED}Dotted: what the last T tokens alone give (crop). ",
            thin if contents.references else "",
            "" if floor is None else f"{UNIGRAM} ",
            "Both axes are logarithmic.",
        ],
        x_title="tokens in the window",
        y_title="perplexity",
        y_kind="log",
        x_ticks=lengths,
        stops=_over_tokens(lengths),
        lines=[_perplexity_line(contents, finding) for finding in contents.findings],
        verticals=_trained(contents),
        floor=None if floor is None else (floor, f"unigram floor: {number(floor)}"),
    )


def _perplexity_line(contents: Contents, finding: Finding) -> Line:
    values = {
        float(n): Value(perplexity(e.value), perplexity(e.low), perplexity(e.high), ppl(e))
        for n, e in finding.loss.items()
    }
    line = _line(contents, finding.series, values)
    T = finding.series.train_length
    if T in values and max(values) > T and line.label not in contents.references:
        return replace(line, crop=(T, values[T].y))
    return line


def _gain(contents: Contents) -> Chart:
    lengths = _lengths(contents)
    return Chart(
        name="gain",
        title="Context gain G(C)",
        caption=[
            "G(C) = loss(T) - loss(C) on the same tokens. Above 0 the text beyond T helps, below 0 "
            f"it harms. {BAND}The vertical axis is linear near 0 and logarithmic further away.",
        ],
        x_title="tokens in the window",
        y_title="G(C), nats per token",
        y_kind="asinh",
        x_ticks=lengths,
        stops=_over_tokens(lengths),
        lines=[_gain_line(contents, finding) for finding in contents.findings],
        verticals=_trained(contents),
        level=0.0,
    )


def _gain_line(contents: Contents, finding: Finding) -> Line:
    values = {float(n): Value(e.value, e.low, e.high, signed(e)) for n, e in finding.gain.items()}
    if values:
        values[finding.series.train_length] = Value(0.0, 0.0, 0.0, "0")
    return _line(contents, finding.series, values)


def _positions(contents: Contents) -> Chart:
    lines = [
        replace(_line(contents, one, _plain(drawn_losses(one))), marked=False)
        for one in contents.series.get(BY_POSITION, ())
    ]
    stops = sorted({x for line in lines for x in line.values})
    octaves = [2.0**i for i in range(4, 31) if stops and 2.0**i <= stops[-1]]
    return Chart(
        name="positions",
        title="Loss at each position",
        caption=[
            "L(i): mean loss at position i of one pass over long windows from random offsets, "
            f"{AVERAGED}. The horizontal axis is logarithmic."
        ],
        x_title="position in the window",
        y_title="L(i), nats per token",
        y_kind="linear",
        x_ticks={x: short(int(x)) for x in octaves},
        stops={x: f"position {x:,.0f}" for x in stops},
        lines=lines,
        verticals=_trained(contents),
    )


def _plain(losses: Mapping[float, float]) -> dict[float, Value]:
    return {i: Value(loss, math.nan, math.nan, f"{loss:.3f}") for i, loss in losses.items()}


def _ratios(contents: Contents) -> list[Chart]:
    """Returns the ratios under the headline, and under each protocol of a published curve."""
    anchors = [anchor for anchor in contents.anchors if anchor.scheme in contents.schemes]
    measured = [_ratio_line(contents, f) for f in contents.findings if not f.series.reference]
    found = [_ratio_chart("ratios", f", {HEADLINE}", BAND, measured, _behind(anchors, HEADLINE))]
    for protocol in sorted({a.protocol for a in anchors} & {*contents.series} - {HEADLINE}):
        lines = [_mean_ratio(contents, s) for s in contents.series[protocol] if not s.reference]
        alike = [anchor for anchor in anchors if anchor.protocol == protocol]
        name = f"ratios-{protocol}".replace("_", "-")
        behind = _behind(alike, protocol)
        found.append(_ratio_chart(name, f", {protocol}", "Means over seeds. ", lines, behind))
    return found


def _ratio_chart(
    name: str, protocol: str, band: str, lines: Sequence[Line], behind: Sequence[Behind]
) -> Chart:
    multiples = sorted({x for line in lines for x in line.values})
    unlike = any(not one.alike for one in behind)
    return Chart(
        name=name,
        title=f"Perplexity relative to that at T{protocol}",
        caption=[
            f"ppl(C) / ppl(T) over C / T. {band}",
            f"{GREY} {AWAY} " if behind else "",
            UNLIKE if unlike else "",
        ],
        x_title="C / T",
        y_title="ppl(C) / ppl(T)",
        y_kind="log",
        x_ticks={x: f"{x:g}" for x in sorted(multiples, key=lambda x: (x % 1 != 0, x))},
        stops={x: f"C = {x:g} T" for x in multiples},
        lines=lines,
        verticals={1.0: "T"},
        level=1.0,
        behind=behind,
    )


def _behind(anchors: Sequence[Anchor], protocol: str) -> list[Behind]:
    return [_published(anchor, alike=anchor.protocol == protocol) for anchor in anchors]


def _mean_ratio(contents: Contents, series: Series) -> Line:
    losses, T = series.losses(), series.train_length
    if not math.isfinite(losses.get(T, math.inf)):
        return _line(contents, series, {})
    found = {n / T: perplexity(loss - losses[T]) for n, loss in losses.items()}
    values = {x: Value(y, math.nan, math.nan, number(y)) for x, y in found.items()}
    return _line(contents, series, values)


def _ratio_line(contents: Contents, finding: Finding) -> Line:
    T = finding.series.train_length
    values = {n / T: _as_ratio(e) for n, e in finding.gain.items()}
    if values:
        values[1.0] = Value(1.0, 1.0, 1.0, "1")
    return _line(contents, finding.series, values)


def _as_ratio(gain: Estimate) -> Value:
    value, low, high = (perplexity(-nats) for nats in (gain.value, gain.high, gain.low))
    return Value(value, low, high, ratio(gain))


def _published(anchor: Anchor, *, alike: bool) -> Behind:
    source = f"{anchor.citation}, arXiv {anchor.arxiv}, {anchor.table}"
    about = f"{source}: {anchor.scheme}, {anchor.params} parameters, "
    how = f"{anchor.corpus}, T = {anchor.train_length}, {anchor.protocol}"
    note = f" ({anchor.note})" if anchor.note else ""
    group = f"{anchor.citation}, {anchor.protocol}"
    return Behind(label=about + how + note, group=group, alike=alike, values=anchor.ratios())


def _line(contents: Contents, series: Series, values: Mapping[float, Value]) -> Line:
    return Line(
        key=contents.keys[series.label],
        label=series.label,
        stroke=contents.strokes[series.label],
        values=values,
    )


def _lengths(contents: Contents) -> dict[float, str]:
    """Returns how each length is written, powers of two and the like first."""
    lengths = {n for finding in contents.findings for n in finding.loss}
    return {n: short(n) for n in sorted(lengths, key=lambda n: (-(n & -n), n))}


def _over_tokens(lengths: Mapping[float, str]) -> dict[float, str]:
    return {n: f"{name} tokens" for n, name in lengths.items()}


def _trained(contents: Contents) -> dict[float, str]:
    return {T: f"trained at T = {T}" for T in contents.train_lengths}
