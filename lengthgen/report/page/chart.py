"""A chart: inline SVG of lines with bands, and beside it a legend whose entries show values.

The script page.js finds what it needs in attributes: data-series on all that belongs to a line,
data-stops (where values can be read) on the chart, data-values (what they are) in the legend.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from xml.etree.ElementTree import Element

from lengthgen.report.page.looks import Stroke, swatch, symbols
from lengthgen.report.page.markup import Child, tag
from lengthgen.report.page.scales import Kind, Scale, scale

WIDTH, HEIGHT = 720.0, 440.0  # units of the drawing; about a pixel on a large screen
LEFT, RIGHT, TOP, BOTTOM = 78.0, 22.0, 44.0, 66.0  # wide enough for a phone's larger letters
INSET, HEADROOM = 14.0, 40.0  # between the outermost values and the edges; at the top
X_GAP, Y_GAP = 58.0, 36.0  # between labels
UNLIKE = "5 4"  # dashes of a published line of another protocol


class Value(NamedTuple):
    """A value of a line, the bounds of its band (or nan), and how all of it is written."""

    y: float
    low: float
    high: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line; those of one key are shown and hidden together in all charts."""

    key: str
    label: str
    stroke: Stroke
    values: Mapping[float, Value]  # by x
    crop: tuple[float, float] | None = None  # x and y from where a dotted horizontal line runs
    marked: bool = True  # whether each value has a symbol


@dataclass(frozen=True, kw_only=True)
class Behind:
    """A grey line behind the others, and what it is; those of one group share a button."""

    label: str
    group: str
    alike: bool  # measured as the others are; else dashed, and hidden until its button is pressed
    values: Mapping[float, float]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """What a chart shows."""

    name: str  # of letters and hyphens
    title: str
    caption: Sequence[Child]
    x_title: str
    y_title: str
    y_kind: Kind
    x_ticks: Mapping[float, str]  # labels of the axis, those that count most first
    stops: Mapping[float, str]  # places where values can be read, and what they are called
    lines: Sequence[Line]
    verticals: Mapping[float, str]
    level: float | None = None  # a horizontal line
    floor: tuple[float, str] | None = None  # one that may lie above all lines
    behind: Sequence[Behind] = ()


def drawn(chart: Chart) -> Element:
    """Returns the chart with its legend."""
    xs = sorted(chart.stops)
    across = scale("log", [*xs, *chart.verticals], start=LEFT + INSET, end=WIDTH - RIGHT - INSET)
    up = scale(chart.y_kind, _heights(chart), start=HEIGHT - BOTTOM - INSET, end=TOP + HEADROOM)
    clip = f"clip-{chart.name}"
    inner = tag("rect", x=LEFT, y=TOP, width=WIDTH - LEFT - RIGHT, height=HEIGHT - TOP - BOTTOM)
    lines = sorted(chart.lines, key=lambda line: (line.stroke.thin, -_last(line)))
    groups = {one.group: one for one in chart.behind}
    keys = {group: f"published-{chart.name}-{i}" for i, group in enumerate(groups)}
    picture = tag(
        "svg",
        tag("defs", tag("clipPath", inner, id=clip)),
        *_axes(chart, across, up),
        tag(
            "g",
            *(_behind(one, keys[one.group], across, up) for one in chart.behind),
            *_levels(chart, up),
            *(_line(line, across, up) for line in reversed(lines)),
            clip_path=f"url(#{clip})",
        ),
        *_names(chart, across, up),
        tag("line", class_="cross", y1=TOP, y2=HEIGHT - BOTTOM),
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        role="group",
        aria_label=f"{chart.title}: {', '.join(line.label for line in lines)}",
    )
    stops = [[round(across(x), 1), chart.stops[x]] for x in xs]
    return tag(
        "figure",
        tag("figcaption", tag("h3", chart.title), tag("p", *chart.caption)),
        tag(
            "div",
            tag("div", picture, _slider(len(xs)), class_="plot"),
            _legend(lines, xs, chart.stops[xs[-1]], published={keys[g]: groups[g] for g in keys}),
            class_="beside",
        ),
        class_="chart",
        id=chart.name,
        data_stops=json.dumps(stops),
    )


def _slider(n_stops: int) -> Element:
    last = n_stops - 1
    slider = tag("input", type="range", min=0, max=last, step=1, value=last, class_="script")
    slider.set("aria-label", "Where values are read")
    return slider


def _heights(chart: Chart) -> list[float]:
    """Returns the numbers that the vertical axis has to hold."""
    values = [value for line in chart.lines for value in line.values.values()]
    ys = [y for v in values for y in (v.y, v.low, v.high) if _can_stand(y, chart.y_kind)]
    if chart.level is not None:
        ys.append(chart.level)
    if chart.floor is not None and ys and chart.floor[0] <= 2 * max(ys):
        ys.append(chart.floor[0])
    low, high = min(ys, default=1.0) / 2, max(ys, default=1.0) * 2  # room that others may take
    behind = [y for one in chart.behind for x, y in one.values.items() if x <= max(chart.stops)]
    return [*ys, *(y for y in behind if low <= y <= high)]


def _can_stand(y: float, kind: Kind) -> bool:
    return math.isfinite(y) and (y > 0 or kind != "log")


def _last(line: Line) -> float:
    known = [x for x, value in line.values.items() if math.isfinite(value.y)]
    return line.values[max(known)].y if known else -math.inf


def _axes(chart: Chart, across: Scale, up: Scale) -> list[Element]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    found: list[Element] = []
    for y in up.ticks(gap=Y_GAP):
        found.append(tag("line", x1=LEFT, x2=right, y1=up(y), y2=up(y), class_="grid"))
        found.append(tag("text", f"{y:,.10g}", x=LEFT - 9, y=up(y), class_="tick y"))
    for x in across.spaced(chart.x_ticks, gap=X_GAP):
        found.append(tag("line", x1=across(x), x2=across(x), y1=TOP, y2=bottom, class_="grid"))
        found.append(tag("text", chart.x_ticks[x], x=across(x), y=bottom + 23, class_="tick x"))
    middle = (LEFT + right) / 2
    found.append(tag("text", chart.x_title, x=middle, y=HEIGHT - 10, class_="name x"))
    found.append(tag("text", chart.y_title, x=6, y=22, class_="name"))
    return found


def _levels(chart: Chart, up: Scale) -> list[Element]:
    levels = [chart.level, chart.floor[0] if chart.floor else None]
    return [
        tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=up(y), y2=up(y), class_="level")
        for y in levels
        if y is not None and up.low <= y <= up.high
    ]


def _names(chart: Chart, across: Scale, up: Scale) -> list[Element]:
    """Returns the vertical lines, and the names of these and of the floor."""
    found: list[Element] = []
    for i, (x, name) in enumerate(chart.verticals.items()):
        at = across(x)
        found.append(tag("line", x1=at, x2=at, y1=TOP, y2=HEIGHT - BOTTOM, class_="vertical"))
        found.append(tag("text", name, x=at + 7, y=TOP + 18 + 22 * i, class_="mark"))
    if chart.floor is not None:
        y, name = chart.floor
        inside = y <= up.high
        above = name if inside else f"{name} (off the axis, above)"
        place = up(y) - 7 if inside else TOP + 18
        found.append(tag("text", above, x=WIDTH - RIGHT - 6, y=place, class_="mark end"))
    return found


def _line(line: Line, across: Scale, up: Scale) -> Element:
    places = [(x, v) for x, v in sorted(line.values.items()) if _can_stand(v.y, up.kind)]
    points = [(across(x), up(v.y)) for x, v in places]
    group = tag("g", class_="line", data_series=line.key, style=f"--c:{line.stroke.colour}")
    if not points:
        return group
    banded = [(x, v) for x, v in places if _can_stand(v.low, up.kind) and math.isfinite(v.high)]
    if len(banded) > 1 and not line.stroke.thin:
        edge = [(across(x), up(v.high)) for x, v in banded]
        back = [(across(x), up(v.low)) for x, v in reversed(banded)]
        group.append(tag("path", d=f"{path([*edge, *back])}Z", class_="band"))
    if line.crop is not None and _can_stand(line.crop[1], up.kind):
        x, y = line.crop
        group.append(tag("path", d=f"M{across(x):.1f} {up(y):.1f}H{WIDTH:g}", class_="crop"))
    stroke = line.stroke
    width = 1.3 if stroke.thin else 2.4
    dashes = " ".join(f"{n * width:g}" for n in stroke.dashes) or None
    curve = tag("path", d=path(points), class_="curve", stroke_width=width, stroke_dasharray=dashes)
    group.append(curve)
    if line.marked and not stroke.thin:
        group.append(tag("path", d=symbols(stroke.marker, points), class_="symbols"))
    return group


def _behind(one: Behind, key: str, across: Scale, up: Scale) -> Element:
    places = [(across(x), up(y)) for x, y in sorted(one.values.items())]
    dashes = None if one.alike else UNLIKE
    lines = [
        tag("path", d=path(places), class_="reach"),
        tag("path", d=path(places), class_="curve", stroke_dasharray=dashes),
    ]
    return tag(
        "g",
        tag("title", one.label),
        *lines,
        class_="behind",
        data_series=key,
        hidden=None if one.alike else "",
        tabindex="0",
        aria_label=one.label,
    )


def path(points: Iterable[tuple[float, float]]) -> str:
    """Returns the path through some points."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _legend(
    lines: Sequence[Line], xs: Sequence[float], at: str, *, published: Mapping[str, Behind]
) -> Element:
    """Returns a button per line with its value at the longest length, where reading begins.

    `published`: one line of each group behind, by its key; a button per group.
    """
    entries = [
        _entry(line.key, line.label, line.stroke, [_text(line, x) for x in xs]) for line in lines
    ]
    for key, one in published.items():
        dashes = () if one.alike else tuple(float(n) for n in UNLIKE.split())
        grey = Stroke(colour="#8a8f98", marker="", dashes=dashes, thin=True)
        entries.append(_entry(key, one.group, grey, [""] * len(xs), shown=one.alike))
    return tag(
        "div",
        tag("p", "values at ", tag("output", at), class_="at"),
        tag("ul", *entries),
        tag("p", class_="said", aria_live="polite"),
        class_="legend",
    )


def _entry(
    key: str, label: str, stroke: Stroke, texts: Sequence[str], *, shown: bool = True
) -> Element:
    name = tag("span", label, class_="label")
    pressed = "true" if shown else "false"
    button = tag(
        "button", swatch(stroke), name, type="button", aria_pressed=pressed, data_series=key
    )
    value = tag("span", texts[-1], class_="value", data_values=json.dumps(texts))
    return tag("li", button, value)


def _text(line: Line, x: float) -> str:
    return line.values[x].text if x in line.values else "-"
