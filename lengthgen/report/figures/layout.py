"""Figures of charts: panels side by side with one legend, or a small pair of axes for each line."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from string import ascii_lowercase
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lengthgen.analysis.formatting import number
from lengthgen.report.figures.chart import (
    Chart,
    Line,
    backdrop,
    draw,
    floor_is_near,
    frame,
    plot,
    scale,
)
from lengthgen.report.figures.style import FONT_SIZE, GREY, framed, rc_style

MOST_NAMED = 8  # lines that one pair of axes shows; of more, each gets axes of its own
COLUMNS = 5  # of small multiples
NAME_LETTERS = 34  # of a line of a name in a legend
TITLE_LETTERS = 28  # of a line of the title of a small multiple


def laid_out(chart: Chart) -> Figure:
    """Draws a chart: in one pair of axes, or as small multiples if there are too many lines."""
    return panels([chart]) if len(chart.shown) <= MOST_NAMED else multiples(chart)


def panels(
    charts: Sequence[Chart], *, rows: int = 1, named_by: Mapping[str, Line] | None = None
) -> Figure:
    """Draws charts of the same series side by side; the legend is in the order of the line ends.

    A series has one style in all of them. `named_by`: the lines that the legend shows, by name; of
    other names the first one.
    """
    single, columns = len(charts) == 1, math.ceil(len(charts) / rows)
    named = {line.name: line for chart in reversed(charts) for line in chart.shown}
    named |= named_by or {}
    legend = [
        named.pop(line.name) for chart in charts for line in chart.shown if line.name in named
    ]
    notes = dict.fromkeys(phrase for chart in charts for phrase in _notes(chart))
    kept = [one for one in notes if not any(o != one and o.startswith(one) for o in notes)]
    about = {chart.about for chart in charts}
    title = [charts[0].heading] if single else [*about] if len(about) == 1 else []
    width, height = (8.0, 4.6) if single else (4.6 * columns, 1.2 + 4.0 * rows)
    names = [textwrap.fill(line.end, NAME_LETTERS) for line in legend]
    n_lines = sum(1 + name.count("\n") for name in names)
    with rc_style():
        size = (width, max(height, (1.9 + 0.21 * n_lines) * single))
        drawn = framed([*title, "; ".join(kept)], size=size)
        grid = drawn.subplots(rows, columns, squeeze=False).ravel()
        for letter, chart, axes in zip(ascii_lowercase, charts, grid, strict=False):
            draw(axes, chart, room=16 if single else 9, gid="line" if single else letter)
            _letter_ends(axes, chart, size=FONT_SIZE - 2)
            if not single:
                own = chart.title if len(about) == 1 else chart.heading
                text = textwrap.fill(f"({letter}) {own}", 62)
                axes.set_title(text, loc="left", fontsize=FONT_SIZE - 2)
        for axes in grid[len(charts) :]:
            axes.set_axis_off()
        _name_behind(drawn, charts[0])
        samples = [Line2D([], [], linewidth=1.8, **line.style) for line in legend]
        place = "outside right center" if single else "outside lower center"
        longest = max(min(len(line.end), NAME_LETTERS) for line in legend)
        ncols = 1 if single else int(12 * width / (8 + longest))
        drawn.legend(samples, names, loc=place, ncols=ncols, frameon=False)
    return drawn


def multiples(chart: Chart) -> Figure:
    """Draws a small pair of axes for each line, in front of all the others in grey, best first."""
    shown = _best_first(chart)
    rows = math.ceil(len(shown) / COLUMNS)
    with rc_style():
        text = "; ".join([*_notes(chart), "light grey: the other series"])
        drawn = framed([chart.heading, text], size=(9.0, 1.5 * rows + 1.2))
        grid = drawn.subplots(rows, COLUMNS, squeeze=False, sharex=True, sharey=True).ravel()
        scale(grid[0], chart, room=5)  # which the others share
        for i, (axes, line) in enumerate(zip(grid, shown, strict=False)):
            _small(axes, chart, line, gid=f"panel{i}")
            axes.tick_params(labelbottom=i >= len(shown) - COLUMNS)
        for axes in grid[len(shown) :]:
            axes.set_axis_off()
        drawn.supylabel(chart.quantity, fontsize=FONT_SIZE)
        _name_behind(drawn, chart, chart.axis)
    return drawn


def _best_first(chart: Chart) -> list[Line]:
    """Returns the lines by their values at the longest length, those without one by the next."""
    sign = 1 if chart.scale == "log" else -1  # of perplexities less is better, of the others more
    lengths = sorted({n for line in chart.shown for n in line.lengths}, reverse=True)

    def place(line: Line) -> tuple[list[float], str]:
        return [
            sign * line.values[n] if n in line.lengths else math.inf for n in lengths
        ], line.name

    return sorted(chart.shown, key=place)


def _small(axes: Axes, chart: Chart, line: Line, *, gid: str) -> None:
    frame(axes)
    backdrop(axes, chart, gid=gid)
    for other in chart.shown:
        axes.plot(other.lengths, [other.values[n] for n in other.lengths], color="0.85", lw=0.6)
    _letter_ends(axes, chart, size=FONT_SIZE - 5)
    for i, own in enumerate(chart.lines):
        if own is line or own.is_reference_of(line):
            plot(axes, own, marks=False, band=0.2, gid=f"{gid}-{i}")
    axes.set(xlabel="", ylabel="")
    axes.tick_params(labelsize=FONT_SIZE - 2.5)
    title = textwrap.fill(line.end, TITLE_LETTERS)
    axes.set_title(title, fontsize=FONT_SIZE - 2, loc="left", pad=3)


def _notes(chart: Chart) -> list[str]:
    """Returns what the lines are, and the value of a floor that the axes do not show."""
    if chart.floor is None or floor_is_near(chart):
        return [*chart.notes]
    name, value = chart.floor
    return [*chart.notes, f"{name}: {number(value)}"]


def _name_behind(drawn: Figure, chart: Chart, *above: str) -> None:
    """Writes the names of the grey lines below the axes, each after its letter."""
    names = [
        textwrap.fill(f"{letter}  {one.label}", 108, subsequent_indent="    ")
        for letter, one in zip(ascii_lowercase, chart.behind, strict=False)
    ]
    if names or above:
        left: dict[str, Any] = {"x": 0.01, "horizontalalignment": "left"} if names else {}
        size, colour = FONT_SIZE - 2 * bool(names), GREY if names else "black"
        drawn.supxlabel("\n".join([*above, *names]), fontsize=size, color=colour, **left)


def _letter_ends(axes: Axes, chart: Chart, *, size: float) -> None:
    text: dict[str, Any] = {"fontsize": size, "color": GREY, "verticalalignment": "center"}
    for letter, one in zip(ascii_lowercase, chart.behind, strict=False):
        axes.text(*list(one.values.items())[-1], f" {letter}", zorder=5, **text)
