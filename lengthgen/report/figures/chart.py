"""A chart over length: what is drawn of every series, and how one pair of axes shows it."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from lengthgen.report.figures.scales import apart, plain, plain_ticks, signed, signed_ticks
from lengthgen.report.figures.style import FONT_SIZE, GREY

NEAR = 1.6  # times beyond the values: as far as the axis is stretched to show the floor

Values = Mapping[float, float]  # by length; only finite ones are drawn


class Published(NamedTuple):
    """A grey line behind those of the series."""

    label: str
    group: str  # lines of a group share a button on the page
    comparable: bool  # measured as the series are; else dashed, and the axes need not hold it
    values: Values


@dataclass(frozen=True, kw_only=True)
class Line:
    """One series of a chart."""

    name: str  # of the series
    runs: Sequence[str]  # whose checkpoints it shows
    end: str  # what stands at the line's end: the name, and how far it goes if that is not all
    style: Mapping[str, Any]  # arguments of Axes.plot
    values: Values
    low: Values  # the 95% band; may be empty
    high: Values
    seeds: Sequence[Values] = ()  # each of several seeds, drawn thin
    level: tuple[float, float] | None = None  # T, and the value that longer ones compare to
    leaves_at: float | None = None  # where the axis may end before the line does
    reference: bool = False  # drawn thin, and not named at its end

    def is_reference_of(self, other: "Line") -> bool:
        """Whether it shows checkpoints of the other line under a reference variant."""
        return self.reference and not set(self.runs).isdisjoint(other.runs)

    @property
    def lengths(self) -> list[float]:
        """The lengths that can be drawn."""
        return [n for n, value in sorted(self.values.items()) if math.isfinite(value)]

    @property
    def last(self) -> float | None:
        """The value at the end of the line."""
        return self.values[self.lengths[-1]] if self.lengths else None


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Lines of one quantity over length."""

    lines: Sequence[Line]  # from the top down, as they end
    behind: Sequence[Published] = ()
    title: str  # what was measured
    about: str = ""  # of which corpus and models
    notes: Sequence[str]  # on what the lines are, after the title
    quantity: str  # at the y axis
    scale: Literal["log", "signed", "linear", "share"]  # share: 0 to 1, over a linear length
    zone: float | None = None  # nats around 0 that count as 0; the signed scale is linear there
    floor: tuple[str, float] | None = None  # name and value of a grey line, shown if near
    ticks: Sequence[float]  # at the x axis
    named: Callable[[float], str]  # how a tick is written
    axis: str  # at the x axis
    trained: Sequence[int]  # each T
    marks: bool = True  # whether the values are marked

    @property
    def heading(self) -> str:
        """The title and what it is about."""
        return f"{self.title}; {self.about}" if self.about else self.title

    @property
    def shown(self) -> list[Line]:
        """The lines that compete: all but the references."""
        return [line for line in self.lines if not line.reference]

    @property
    def longest(self) -> float:
        return max((line.lengths[-1] for line in self.lines if line.lengths), default=0)

    @cached_property
    def extent(self) -> tuple[float, float] | None:
        """The least and the largest value that the y axis has to hold; None if there is none."""
        bounded = self.scale in ("log", "signed")
        least, most = band_limits(self.lines) if bounded else (-math.inf, math.inf)
        found: list[float] = []
        for line in self.lines:
            found += _values(line)
            limit = math.inf if line.leaves_at is None else line.leaves_at
            bounds = filter(math.isfinite, (*line.low.values(), *line.high.values()))
            found += (min(max(value, least), most, limit) for value in bounds)
        for one in self.behind:
            found += one.values.values() if one.comparable else ()
        return (min(found), max(found)) if found else None


def draw(axes: Axes, chart: Chart, *, room: int, gid: str) -> None:
    """Draws a chart's lines; `room`: how many names of ticks fit side by side.

    In SVG the id of line 0 is GID-0-curve, that of its band GID-0-band, and so on; of the first
    published line GID-behind-0.
    """
    scale(axes, chart, room=room)
    frame(axes)
    backdrop(axes, chart, gid=gid)
    _notes(axes, chart)
    opacity = min(0.12, 0.7 / max(1, len(chart.shown)))
    for i, line in enumerate(chart.lines):
        plot(axes, line, marks=chart.marks, band=opacity, gid=f"{gid}-{i}")


def plot(axes: Axes, line: Line, *, marks: bool, band: float, gid: str) -> None:
    """Draws a line with its band, its seeds and its level; a reference is the line alone.

    `band`: how opaque the band is. `gid`: what the ids of its parts begin with in SVG.
    """
    colour, x = line.style["color"], line.lengths
    y = [line.values[n] for n in x]
    if line.reference:
        thin: dict[str, Any] = {"linewidth": 0.9, "alpha": 0.8, "zorder": 1.8}
        axes.plot(x, y, label=line.name, gid=f"{gid}-curve", **thin, **line.style)
        return
    _band(axes, line, alpha=band, gid=f"{gid}-band")
    for i, seed in enumerate(line.seeds):
        own = [n for n in sorted(seed) if math.isfinite(seed[n])]
        faint: dict[str, Any] = {"color": colour, "linewidth": 0.6, "alpha": 0.4}
        axes.plot(own, [seed[n] for n in own], gid=f"{gid}-seed{i}", **faint)
    size: dict[str, Any] = {"linewidth": 1.8 if marks else 1.3, "markersize": 5.5}
    style = line.style if marks else {**line.style, "marker": ""}
    axes.plot(x, y, label=line.name, gid=f"{gid}-curve", **size, **style)
    if line.level is not None and x:
        across, value = (line.level[0], x[-1]), line.level[1]
        dotted: dict[str, Any] = {"linestyle": (0, (1, 2.5)), "linewidth": 1.0}
        axes.plot(across, (value, value), color=colour, gid=f"{gid}-level", **dotted)


def _band(axes: Axes, line: Line, *, alpha: float, gid: str) -> None:
    """Fills the 95% band where there is one; a bound beyond any axis ends at the axis."""
    x = [n for n in line.lengths if not math.isnan(line.low.get(n, math.nan))]
    bottom, top = axes.get_ylim()
    low = np.clip([line.low[n] for n in x], bottom, top)
    high = np.clip([line.high[n] for n in x], bottom, top)
    if x:
        colour = line.style["color"]
        fill: dict[str, Any] = {"color": colour, "alpha": alpha, "linewidth": 0}
        axes.fill_between(x, low, high, zorder=1, gid=gid, **fill)


def scale(axes: Axes, chart: Chart, *, room: int) -> None:
    """Sets limits, ticks and names of both axes, also of axes that share them."""
    marked = [*chart.ticks, *chart.trained]
    if chart.scale == "share":
        axes.set_xlim(0, 1.02 * max(marked))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=9, steps=[1, 2, 5, 10], integer=True))
    else:
        axes.set_xscale("log", base=2)
        pad = max(1.15, (max(marked) / min(marked)) ** 0.04)
        axes.set_xlim(min(marked) / pad, max(marked) * pad)
        kept = apart(chart.ticks, room=room)
        axes.set_xticks(chart.ticks, [chart.named(x) if x in kept else "" for x in chart.ticks])
    _scale_y(axes, chart)
    axes.minorticks_off()
    axes.set_xlabel(chart.axis)
    axes.set_ylabel(chart.quantity)


def frame(axes: Axes) -> None:
    """Draws the grid, and the left and the lower of the spines."""
    axes.grid(visible=True, color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def band_limits(lines: Sequence[Line]) -> tuple[float, float]:
    """Returns how far bands may widen a log or signed axis: to twice what the lines need.

    The band of two seeds that disagree spans orders of magnitude, and would flatten all lines.
    """
    drawn = [value for line in lines for value in _values(line)]
    low, high = min(drawn, default=0.0), max(drawn, default=0.0)
    return (low / 2 if low > 0 else 2 * low), (2 * high if high > 0 else high / 2)


def _values(line: Line) -> Iterator[float]:
    limit = math.inf if line.leaves_at is None else line.leaves_at
    for values in (line.values, *line.seeds):
        yield from (min(value, limit) for value in values.values() if math.isfinite(value))


def _scale_y(axes: Axes, chart: Chart) -> None:
    if chart.scale == "signed" and chart.zone is not None:
        zone, (low, high) = chart.zone, chart.extent or (0.0, 0.0)
        axes.set_yscale("symlog", linthresh=zone, linscale=0.5)
        axes.set_ylim(min(-2 * zone, 1.5 * low), max(2 * zone, 1.5 * high))
        ticks = signed_ticks(*axes.get_ylim(), linear=zone)
        axes.set_yticks(ticks, [signed(tick) for tick in ticks])
        return
    if chart.scale == "share":
        axes.set_ylim(-0.03, 1.03 + 0.09 * len(chart.trained))  # a row for the name of each T
        axes.set_yticks([n / 4 for n in range(5)], [f"{n * 25}%" for n in range(5)])
        return
    axes.set_yscale(chart.scale)
    low, high = chart.extent or (1.0, 10.0)
    if chart.scale == "linear":
        pad = 0.05 * (high - low) or 0.1
        axes.set_ylim(low - pad, high + pad)
        return
    pad = max(1.04, (high / low) ** 0.05)
    low, high = low / pad, high * pad
    if chart.floor is not None and floor_is_near(chart):
        low, high = min(low, chart.floor[1] / 1.06), max(high, chart.floor[1] * 1.06)
    axes.set_ylim(low, high)
    ticks = plain_ticks(low, high)
    axes.set_yticks(ticks, [plain(tick) for tick in ticks])


def floor_is_near(chart: Chart) -> bool:
    """Whether the floor lies among the values, or so near that the axis is stretched up to it."""
    if chart.floor is None or chart.extent is None:
        return False
    low, high = chart.extent
    return low / NEAR < chart.floor[1] < high * NEAR


def backdrop(axes: Axes, chart: Chart, *, gid: str) -> None:
    """Draws the lines behind, each T, the zone around 0 and the floor."""
    for i, one in enumerate(chart.behind):
        grey: dict[str, Any] = {"color": "0.72", "linewidth": 1.0, "zorder": 1.5}
        dashes = "-" if one.comparable else (0, (5, 4))
        places = (list(one.values), list(one.values.values()))
        axes.plot(*places, linestyle=dashes, gid=f"{gid}-behind-{i}", **grey)
    if chart.zone is not None:
        axes.axhspan(-chart.zone, chart.zone, color="0.93", linewidth=0, zorder=0)
        axes.axhline(0, color="0.6", linewidth=0.8, zorder=1)
    if chart.floor is not None and floor_is_near(chart):
        axes.axhline(chart.floor[1], color="0.6", linewidth=0.9, zorder=1)
    if chart.scale == "share":
        for length in chart.trained:
            axes.axvspan(0, length, color="0.94", linewidth=0, zorder=0)
    for length in chart.trained:
        axes.axvline(length, color=GREY, linestyle=(0, (5, 3)), linewidth=1.0, zorder=1)


def _notes(axes: Axes, chart: Chart) -> None:
    """Names what the backdrop shows."""
    if chart.floor is not None and floor_is_near(chart):
        name, value = chart.floor
        transform = axes.get_yaxis_transform()
        at_top = chart.extent is not None and value > chart.extent[1]  # the title is above
        _note(axes, name, (0, value), transform=transform, vertical="top" if at_top else "bottom")
    for i, length in enumerate(chart.trained):
        text = f"trained {'to ' if chart.scale == 'share' else 'at T='}{length}"
        place = (length, 0.975 - 0.055 * i)
        _note(axes, text, place, transform=axes.get_xaxis_transform(), vertical="top")


def _note(
    axes: Axes,
    text: str,
    place: tuple[float, float],
    *,
    transform: Any,
    vertical: Literal["bottom", "top"],
) -> None:
    axes.annotate(
        text,
        place,
        xycoords=transform,
        xytext=(5, 0 if vertical == "top" else 2),
        textcoords="offset points",
        horizontalalignment="left",
        verticalalignment=vertical,
        color=GREY,
        fontsize=FONT_SIZE - 1,
    )
