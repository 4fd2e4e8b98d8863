"""Figures of charts: one chart with names at the line ends, small multiples, or panels."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from string import ascii_lowercase
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from lengthgen.analysis.formatting import number
from lengthgen.report.figures.chart import Chart, Line, backdrop, draw, floor_is_near, plot, scale
from lengthgen.report.figures.scales import spread
from lengthgen.report.figures.style import FONT_SIZE, GREY, rc_style

LEFT, BOTTOM = 0.9, 0.55  # inches next to the axes
LINE_HEIGHT = 0.2  # inches between lines of text
NOTE_HEIGHT = 0.16  # inches between lines of small text
MOST_NAMED = 14  # lines that one pair of axes shows; of more, each gets axes of its own
COLUMNS = 5  # of small multiples


def laid_out(chart: Chart) -> Figure:
    """Draws a chart: in one pair of axes, or as small multiples if there are too many lines."""
    return single(chart) if len(chart.shown) <= MOST_NAMED else multiples(chart)


def single(chart: Chart) -> Figure:
    """Draws one pair of axes with the name of each line at its end."""
    with rc_style():
        right = 0.75 + max((_text_width(line.end) for line in chart.shown), default=0.0)
        width = max(4.2, 8.0 - LEFT - right)
        height = max(3.4, LINE_HEIGHT * (len(chart.shown) + 1))
        text = _title(chart, LEFT + width + right)
        top = LINE_HEIGHT * (len(text) + 1)
        bottom = BOTTOM + NOTE_HEIGHT * len(_names_behind(chart))
        size = (LEFT + width + right, bottom + height + top)
        drawn = Figure(figsize=size, dpi=200)
        axes = drawn.add_axes((LEFT / size[0], bottom / size[1], width / size[0], height / size[1]))
        draw(axes, chart, room=16, gid="line")
        _write_behind(axes, chart, height=height)
        _label_ends(axes, chart, inches=(width, height))
        _caption(axes, text)
    return drawn


def multiples(chart: Chart) -> Figure:
    """Draws a small pair of axes for each line, in front of all the others in grey."""
    rows = math.ceil(len(chart.shown) / COLUMNS)
    names = _names_behind(chart)
    below = 0.5 + NOTE_HEIGHT * len(names)
    width, height = 9.0, 1.5 * rows + 0.7 + below
    with rc_style():
        text = _title(replace(chart, notes=[*chart.notes, "light grey: the other series"]), width)
        drawn = Figure(figsize=(width, height), dpi=200)
        drawn.subplots_adjust(
            left=0.75 / width,
            right=1 - 0.1 / width,
            bottom=below / height,
            top=1 - (LINE_HEIGHT * (len(text) + 1) + 0.15) / height,
            wspace=0.13,
            hspace=0.3,
        )
        grid = drawn.subplots(rows, COLUMNS, squeeze=False).ravel()
        for i, axes in enumerate(grid):
            if i < len(chart.shown):
                _small(axes, chart, chart.shown[i], at_left=i % COLUMNS == 0, gid=f"panel{i}")
            else:
                axes.set_axis_off()
        for axes in grid[len(chart.shown) - COLUMNS :][:COLUMNS]:
            axes.tick_params(axis="x", labelbottom=True)
        drawn.supxlabel(chart.axis, fontsize=FONT_SIZE, y=(below - 0.46) / height)
        for i, line in enumerate(names):
            y = NOTE_HEIGHT * (len(names) - i - 0.7) / height
            drawn.text(0.75 / width, y, line, fontsize=FONT_SIZE - 2, color=GREY)
        drawn.supylabel(chart.quantity, fontsize=FONT_SIZE, x=0.01)
        _caption(grid[0], text, above=0.3)
    return drawn


def panels(charts: Sequence[Chart]) -> Figure:
    """Draws charts of the same series side by side, with one legend below."""
    legend = charts[0].shown
    width = 4.6 * len(charts)
    columns = max(1, int(width / (1.0 + max(_text_width(line.end) for line in legend))))
    below = 0.8 + LINE_HEIGHT * math.ceil(len(legend) / columns)
    phrases = dict.fromkeys(phrase for chart in charts for phrase in chart.notes)
    text = _wrapped("; ".join(phrases), width)
    above = 0.75 + LINE_HEIGHT * len(text)
    size = (width, below + 3.4 + above)
    with rc_style():
        drawn = Figure(figsize=size, dpi=200)
        drawn.subplots_adjust(
            left=0.8 / size[0],
            right=1 - 0.15 / size[0],
            bottom=below / size[1],
            top=1 - above / size[1],
            wspace=0.25,
        )
        grid = drawn.subplots(1, len(charts), squeeze=False)[0]
        for letter, chart, axes in zip(ascii_lowercase, charts, grid, strict=False):
            draw(axes, chart, room=9, gid=letter)
            title = textwrap.wrap(f"({letter}) {chart.title}", 62)
            _caption(axes, title, size=FONT_SIZE - 2)
        drawn.text(0.8 / size[0], 1 - 0.1 / size[1], "\n".join(text), verticalalignment="top")
        handles = [grid[0].plot([], [], **line.style, linewidth=1.8)[0] for line in legend]
        names = [line.end for line in legend]
        drawn.legend(handles, names, loc="lower center", ncols=columns, frameon=False)
    return drawn


def _small(axes: Axes, chart: Chart, line: Line, *, at_left: bool, gid: str) -> None:
    scale(axes, chart, room=5)
    backdrop(axes, chart, gid=gid)
    for other in chart.shown:
        axes.plot(other.lengths, [other.values[n] for n in other.lengths], color="0.85", lw=0.6)
    _letter_ends(axes, chart, size=FONT_SIZE - 5)
    for i, own in enumerate(chart.lines):
        if own is line or (own.reference and own.scheme == line.scheme):
            plot(axes, own, marks=False, band=0.2, gid=f"{gid}-{i}")
    axes.set(xlabel="", ylabel="")
    axes.tick_params(labelsize=FONT_SIZE - 2.5, labelleft=at_left, labelbottom=False)
    axes.set_title(line.end, fontsize=FONT_SIZE - 2, loc="left", pad=3)


def _title(chart: Chart, width: float) -> list[str]:
    """Returns the title's lines, broken where the figure of that width in inches ends."""
    text = "; ".join([*chart.notes, *_floor_far_away(chart)])
    return [*_wrapped(chart.title, width), *_wrapped(text, width)]


def _wrapped(text: str, width: float) -> list[str]:
    """Breaks text between words where a figure of that width in inches ends."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if _text_width(longer) <= width - LEFT - 0.3:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _floor_far_away(chart: Chart) -> list[str]:
    """Names the floor where the axes do not show it."""
    if chart.floor is None or floor_is_near(chart):
        return []
    name, value = chart.floor
    return [f"{name}: {number(value)}"]


def _caption(
    axes: Axes, text: Sequence[str], *, above: float = 0.14, size: float = FONT_SIZE
) -> None:
    axes.annotate(
        "\n".join(text),
        (0, 1),
        xycoords="axes fraction",
        xytext=(0, above * 72),
        textcoords="offset points",
        linespacing=1.35,
        fontsize=size,
        annotation_clip=False,
    )


def _names_behind(chart: Chart) -> list[str]:
    """Returns the names of the grey lines, each after its letter."""
    return [
        line
        for letter, one in zip(ascii_lowercase, chart.behind, strict=False)
        for line in textwrap.wrap(f"{letter}  {one.label}", 108, subsequent_indent="    ")
    ]


def _write_behind(axes: Axes, chart: Chart, *, height: float) -> None:
    """Puts a letter at the end of each grey line, and the names below."""
    text: dict[str, Any] = {"fontsize": FONT_SIZE - 2, "color": GREY}
    _letter_ends(axes, chart, size=FONT_SIZE - 2)
    for i, line in enumerate(_names_behind(chart)):
        y = -(BOTTOM + NOTE_HEIGHT * (i + 0.4)) / height
        axes.text(0, y, line, transform=axes.transAxes, **text)


def _letter_ends(axes: Axes, chart: Chart, *, size: float) -> None:
    text: dict[str, Any] = {"fontsize": size, "color": GREY, "verticalalignment": "center"}
    for letter, one in zip(ascii_lowercase, chart.behind, strict=False):
        axes.text(*list(one.values.items())[-1], f" {letter}", zorder=5, **text)


def _text_width(text: str) -> float:
    """Returns the width in inches."""
    font = FontProperties(size=FONT_SIZE)
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return width / 72


def _label_ends(axes: Axes, chart: Chart, *, inches: tuple[float, float]) -> None:
    """Writes each name at its line's end, moved apart; lines that end early stand below."""
    width, height = inches
    lines = chart.shown
    whole = [bool(line.lengths) and line.lengths[-1] == chart.longest for line in lines]
    wanted = [
        _height(axes, line.last or 0.0) if reaches else 0.0
        for line, reaches in zip(lines, whole, strict=True)
    ]
    heights = spread(wanted, gap=LINE_HEIGHT / height)
    sample = (1 + 0.16 / width, 1 + 0.5 / width)
    for line, reaches, y in zip(lines, whole, heights, strict=True):
        if reaches and line.leaves_at is None:
            axes.annotate(
                "",
                (chart.longest, line.last or 0.0),
                xytext=(1 + 0.1 / width, y),
                textcoords="axes fraction",
                arrowprops={"arrowstyle": "-", "color": "0.7", "linewidth": 0.7, "shrinkB": 4},
                annotation_clip=False,
                zorder=1,
            )
        place: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False, "linewidth": 1.8}
        axes.plot(sample, (y, y), **{**line.style, "marker": ""}, **place)
        if chart.marks:
            axes.plot((sum(sample) / 2,), (y,), **line.style, **place, markersize=5.5)
        axes.text(
            1 + 0.58 / width,
            y,
            line.end,
            transform=axes.transAxes,
            verticalalignment="center_baseline",
        )


def _height(axes: Axes, value: float) -> float:
    """Returns where a value stands on the y axis, from 0 at its bottom to 1 at its top."""
    to_axes = axes.transData + axes.transAxes.inverted()
    return min(1.0, float(to_axes.transform((axes.get_xlim()[0], value))[1]))
