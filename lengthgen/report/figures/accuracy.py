"""Figures of tasks: accuracy over the length of examples, and against long-context perplexity."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from lengthgen.analysis.accuracy import UNCOUNTED, Accuracy, agreement
from lengthgen.analysis.formatting import subject
from lengthgen.report.figures.chart import Chart, Published
from lengthgen.report.figures.curve import line_of, notes, rank
from lengthgen.report.figures.layout import MOST_NAMED, panels
from lengthgen.report.figures.scales import plain, plain_ticks
from lengthgen.report.figures.style import GREY, framed, line_styles, rc_style, scheme_styles

PALE = {"color": "0.6", "markerfacecolor": "0.6"}
MOST_PANELS = 6  # tasks in one figure, up to three of them in one row


def accuracy(
    found: Sequence[Accuracy],
    *,
    unit: str,
    chance: float,
    published: Sequence[Published],
    styles: Mapping[str, Mapping[str, Any]] | None = None,
) -> Chart | None:
    """Returns the share of right answers over length, a line per series; None without a value.

    `unit`: what the length counts. `chance`: the share without reading the prompt. `published`:
    lines behind. `styles`: of each label, if charts are to have the same.
    """
    there = [one for one in found if one.exact]
    if not there:
        return None
    lines = [one.series for one in there]
    styles = styles or line_styles(lines)
    longest = max(length for one in there for length in one.exact)
    drawn = [
        line_of(
            one.series,
            style=styles[one.series.label],
            values={length: estimate.value for length, estimate in one.exact.items()},
            band=one.exact,
            longest=longest,
            seeds=[
                {length: estimate.seeds[i] for length, estimate in one.exact.items()}
                for i in range(len(one.series.runs))
            ],
        )
        for one in there
    ]
    drawn = [
        line
        if one.excluded is None
        else replace(line, end=f"{line.end} ({one.excluded})", style={**line.style, **PALE})
        for one, line in zip(there, drawn, strict=True)
    ]
    drawn.sort(key=lambda line: rank(line.values.get(longest), line.name))
    points = [p for line in lines for p in line.points]
    return Chart(
        lines=drawn,
        behind=published,
        title="right answers",
        about=subject(points),
        notes=[
            "shaded: lengths in training",
            *([f"pale: {UNCOUNTED}"] if any(one.excluded for one in there) else []),
            *(["grey: published, of other models and formats"] if published else []),
            *(phrase.replace("documents", "examples") for phrase in notes(drawn, lines, level="")),
        ],
        quantity="accuracy (all of the answer)",
        scale="share",
        floor=("chance", chance) if chance else None,
        ticks=sorted({length for one in there for length in one.exact}),
        named="{:g}".format,
        axis=f"length: {unit}",
        trained=sorted({line.train_length for line in lines}),
    )


def side_by_side(charts: Sequence[Chart]) -> Figure | None:
    """Returns a panel for each task; more than three of them stand in two columns.

    None for a single one, and for too many tasks or lines. The legend shows a series that some
    tasks leave out as it is in the others.
    """
    if not 1 < len(charts) <= MOST_PANELS or any(len(c.shown) > MOST_NAMED for c in charts):
        return None
    whole = [line for chart in charts for line in chart.shown if line.end == line.name]
    rows = math.ceil(len(charts) / 2) if len(charts) > 3 else 1
    return panels(charts, rows=rows, named_by={line.name: line for line in whole})


class Dot(NamedTuple):
    """A scheme: ppl(C) / ppl(T), mean accuracy over tasks on unseen lengths, and C / T."""

    label: str
    ratio: float
    accuracy: float
    multiple: float


def relation(dots: Sequence[Dot], *, tasks: Sequence[str], left_out: str) -> Figure:
    """Draws accuracy over the perplexity ratio, with the correlation of their ranks."""
    by_name = scheme_styles(dot.label for dot in dots)
    with rc_style():
        drawn = framed(_title(dots, tasks, left_out), size=(7.4, 4.4))
        axes = drawn.subplots()
        for dot in dots:
            style = by_name[dot.label]
            place = ([dot.ratio], [dot.accuracy])
            axes.scatter(
                *place, color=style.colour, marker=style.marker, s=36, zorder=3, label=dot.label
            )
        low, high = min(1.0, *(d.ratio for d in dots)), max(1.0, *(d.ratio for d in dots))
        pad = max(1.02, (high / low) ** 0.08)
        low, high = low / pad, high * pad
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        ticks = plain_ticks(low, high)
        axes.set_xticks(ticks, [plain(tick) for tick in ticks])
        axes.minorticks_off()
        axes.axvline(1.0, color=GREY, linestyle=(0, (5, 3)), linewidth=1.0, zorder=1)
        axes.set_ylim(-0.03, 1.03)
        axes.set_yticks([n / 4 for n in range(5)], [f"{n * 25}%" for n in range(5)])
        axes.set_xlabel(f"perplexity at {dots[0].multiple:g} T over that at T")
        axes.set_ylabel("accuracy on unseen lengths")
        axes.grid(visible=True, color="0.9", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        drawn.legend(loc="outside right upper", frameon=False)
    return drawn


def _title(dots: Sequence[Dot], tasks: Sequence[str], left_out: str) -> list[str]:
    found = agreement([-dot.ratio for dot in dots], [dot.accuracy for dot in dots])
    return [
        f"accuracy: mean over {', '.join(tasks)}",
        f"less rise of perplexity, more accuracy: {found}",
        *([f"left out: {left_out}"] if left_out else []),
    ]
