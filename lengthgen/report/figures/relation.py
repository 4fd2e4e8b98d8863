"""The figure of perplexity at long lengths beside accuracy at unseen ones, a dot per scheme."""

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from lengthgen.analysis.accuracy import agreement
from lengthgen.report.figures.looks import looks
from lengthgen.report.figures.scales import plain, plain_ticks
from lengthgen.report.figures.style import FONT_SIZE, GREY, style


class Dot(NamedTuple):
    """A scheme: ppl(C) / ppl(T), mean accuracy over tasks on unseen lengths, and C / T."""

    label: str
    ratio: float
    accuracy: float
    multiple: float


def relation(dots: Sequence[Dot], *, tasks: Sequence[str], left_out: str) -> Figure:
    """Draws accuracy over the perplexity ratio, and says the correlation of their ranks."""
    by_name = looks(dot.label for dot in dots)
    with style():
        title = _title(dots, tasks, left_out)
        height = 4.0 + 0.18 * len(title)
        drawn = Figure(figsize=(7.4, height), dpi=200)
        axes = drawn.add_axes((0.12, 0.6 / height, 0.6, 3.25 / height))
        for dot in dots:
            look = by_name[dot.label]
            place = ([dot.ratio], [dot.accuracy])
            axes.scatter(
                *place, color=look.colour, marker=look.marker, s=36, zorder=3, label=dot.label
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
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
        axes.set_title("\n".join(title), loc="left", fontsize=FONT_SIZE - 1)
    return drawn


def _title(dots: Sequence[Dot], tasks: Sequence[str], left_out: str) -> list[str]:
    """Returns the lines of the title."""
    found = agreement([-dot.ratio for dot in dots], [dot.accuracy for dot in dots])
    said = [
        f"accuracy: mean over {', '.join(tasks)}",
        f"less rise of perplexity, more accuracy: {found}",
        *([f"left out: {left_out}"] if left_out else []),
    ]
    return [line for one in said for line in textwrap.wrap(one, 80)]
