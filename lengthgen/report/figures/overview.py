"""Many series at a glance: excess loss by length as a heat map, distances from the best as dots."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure

from lengthgen.analysis.comparisons import difference, least_at
from lengthgen.analysis.findings import Finding
from lengthgen.analysis.formatting import headline, short, subject
from lengthgen.analysis.intervals import Estimate
from lengthgen.analysis.seed_groups import Series, least_at_T, ordered, sampled
from lengthgen.report.figures.style import FONT_SIZE, GREY, framed, line_styles, rc_style

LINEAR = 0.5  # nats of excess up to which colours are linear; above, logarithmic
DARK = 0.7  # share of the colours from which on text is white


def excess(lines: Sequence[Series]) -> Figure | None:
    """Draws the loss of each series at each length less the least loss at T; None without any.

    The best at the longest length stands first. Series are compared with the least of their own T.
    """
    lines = [line for line in ordered(lines) if line.losses()]
    least = least_at_T(lines)
    lines = [line for line in lines if math.isfinite(least[line.train_length])]
    if not lines:
        return None
    points = [p for line in lines for p in line.points]
    lengths = sorted({n for line in lines for n in line.losses()})
    values = np.array(
        [
            [line.losses().get(n, math.nan) - least[line.train_length] for n in lengths]
            for line in lines
        ]
    )
    finite = values[np.isfinite(values)]
    top = max(LINEAR, float(finite.max()))
    with rc_style():
        title = f"Loss minus the least loss at T, nats per token; {headline(points)}"
        height = 1.6 + 0.24 * len(lines)
        drawn = framed([title, f"{subject(points)}; white: no value"], size=(8.6, height))
        axes = drawn.subplots()
        norm = SymLogNorm(LINEAR, vmin=-top, vmax=top)
        axes.imshow(values, cmap="PuOr_r", norm=norm, aspect="auto")
        for (row, column), value in np.ndenumerate(values):
            if math.isnan(value):
                continue
            text = f"{value:+.2f}" if math.isfinite(value) else "inf"
            white = abs(float(norm(value)) - 0.5) > DARK / 2 if math.isfinite(value) else True
            style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": FONT_SIZE - 3}
            axes.text(column, row, text, color="white" if white else "black", **style)
        axes.set_xticks(range(len(lengths)), [short(n) for n in lengths])
        axes.set_yticks(range(len(lines)), [line.label for line in lines], fontsize=FONT_SIZE - 2)
        for T in least:
            if T in lengths:
                axes.axvline(lengths.index(T) + 0.5, color="black", linewidth=1.0)
        axes.tick_params(length=0)
        axes.set_xlabel("tokens in the window; those right of the black line exceed T")
    return drawn


def ranking(findings: Sequence[Finding]) -> Figure | None:
    """Draws the loss at the longest length less that of the best, the least at the top.

    Differences are paired by seed and document, so that their intervals tell series apart whose
    losses vary with the documents alike. The best is that of the joint comparison, which takes two
    seeds; where some series have one seed alone, their bars, which know no other seed, are dashed.
    A hollow dot is the loss at T on the same axis. Ranks that a series may have, all compared
    jointly, are written at the right. None without two series that have a loss there, or with none
    that is finite.
    """
    known = {finding.series.label: finding for finding in findings}
    longest = max((n for finding in findings for n in finding.loss), default=0)
    there = [
        line
        for line in ordered(finding.series for finding in findings)
        if longest in known[line.label].loss
    ]
    if len(there) < 2 or (found := least_at(there, longest)) is None:
        return None
    points = [p for line in there for p in line.points]
    best, compared = found
    paired = {
        line.label: estimate
        for line in there
        if line is not best and (estimate := difference(line, best, longest)) is not None
    }
    least = known[best.label].loss[longest].value
    apart = {
        line.label: estimate.value
        if (estimate := paired.get(line.label))
        else known[line.label].loss[longest].value - least
        for line in there
    }
    there.sort(key=lambda line: apart[line.label])
    mixed = len({one.of_scheme for one in paired.values()}) > 1
    styles = line_styles(there)
    with rc_style():
        title = f"Loss at {short(longest)} tokens less that of {best.label}; {subject(points)}"
        note = f"bar: 95% over {sampled(there)}, paired"
        note += "; dashed: one seed, over documents alone" if mixed else ""
        note += "; hollow: at T"
        note += "; right: the ranks it may have" if compared is not None else ""
        drawn = framed([title, note], size=(8.0, 1.6 + 0.24 * len(there)))
        axes = drawn.subplots()
        for row, line in enumerate(there):
            loss, colour = known[line.label].loss, styles[line.label]["color"]
            at_longest = apart[line.label]
            if line.label in paired:
                _bar(axes, row, paired[line.label], colour, mixed=mixed)
            if math.isfinite(at_longest):
                axes.plot(at_longest, row, "o", color=colour, markersize=5.5, zorder=3)
            if math.isfinite(at_longest) and line.train_length in loss:
                at_T = at_longest + loss[line.train_length].value - loss[longest].value
                hollow: dict[str, Any] = {"markerfacecolor": "white", "markeredgecolor": colour}
                axes.plot(at_T, row, "o", zorder=2, markersize=5, **hollow)
            if compared is not None and line.label in compared.ranks:
                text = compared.rank_text(line.label)
                place: dict[str, Any] = {"va": "center", "fontsize": FONT_SIZE - 2, "color": GREY}
                axes.text(1.01, row, text, transform=axes.get_yaxis_transform(), **place)
        axes.axvline(0, color=GREY, linewidth=0.8, zorder=1)
        axes.set_yticks(range(len(there)), [line.label for line in there], fontsize=FONT_SIZE - 2)
        axes.set_ylim(len(there) - 0.5, -0.5)
        axes.grid(axis="y", color="0.92", zorder=0)
        axes.set_xlabel("nats per token")
    return drawn


def _bar(axes: Axes, row: int, apart: Estimate, colour: str, *, mixed: bool) -> None:
    if math.isfinite(apart.low) and math.isfinite(apart.high):
        dashes: Any = (0, (2, 1.5)) if mixed and not apart.of_scheme else "-"
        style: dict[str, Any] = {"color": colour, "linewidth": 1.4, "linestyle": dashes}
        axes.plot((apart.low, apart.high), (row, row), zorder=2, **style)
