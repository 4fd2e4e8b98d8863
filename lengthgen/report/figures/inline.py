"""Charts as SVG that stands in a page: text stays text, and classes name what a script needs."""

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from matplotlib.figure import Figure

from lengthgen.report.figures.chart import Chart, draw
from lengthgen.report.figures.style import rc_style, rendered

WIDTH, HEIGHT = 554.0, 338.0  # points
PART = re.compile(r"line-(behind-)?(\d+)(?:-([a-z]+)\d*)?")
SHARED = re.compile(r"[mp][0-9a-f]{10}")  # ids of markers and clip paths


class Picture(NamedTuple):
    """A figure: the text of an SVG file."""

    name: str
    svg: str

    @property
    def address(self) -> str:
        """The picture as a data URI; as an image, an SVG can neither run nor load anything."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.svg.encode()).decode()}"


class Inline(NamedTuple):
    """A chart's SVG, and how far from its left edge (0) to its right (1) some places lie."""

    svg: str
    across: list[float]


def inline(chart: Chart, *, keys: Mapping[str, str], name: str, at: Sequence[float]) -> Inline:
    """Draws a chart without the names of its lines; `name` is unique among charts.

    `keys`: what data-series holds by the name of a line or of a group of published ones. `at`:
    places on the x axis.
    """
    with rc_style():
        figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), dpi=72)
        axes = figure.add_axes((0.14, 0.135, 0.845, 0.845))
        figure.patch.set_visible(False)
        axes.patch.set_visible(False)
        draw(axes, chart, room=12, gid="line")
        places = axes.transData.transform([(x, axes.get_ylim()[0]) for x in at])
    svg = _svg(figure, name)
    for group in list(svg.iter("g")):
        part = PART.fullmatch(group.get("id", ""))
        if part is not None and part[1]:
            _publish(group, chart, keys, int(part[2]))
        elif part is not None:
            group.set("class", f"line {part[3]}")
            group.set("data-series", keys[chart.lines[int(part[2])].name])
    return Inline(_text(svg), [round(float(x) / WIDTH, 4) for x, _ in places])


def _publish(group: Element, chart: Chart, keys: Mapping[str, str], i: int) -> None:
    """Makes a published line one that can be reached by pointer and keyboard."""
    one = chart.behind[i]
    about = {"class": "behind", "data-series": keys[one.group], "aria-label": one.label}
    group.attrib.update(about | {"tabindex": "0"} | ({} if one.comparable else {"hidden": ""}))
    path = next(group.iter("path"), None)
    if path is not None:
        reach = {key: value for key, value in path.attrib.items() if key != "style"}
        group.insert(0, Element("path", reach | {"class": "reach"}))


def swatch(style: Mapping[str, Any], *, thin: bool) -> str:
    """Returns a sample of a line with its marker as SVG."""
    with rc_style():
        figure = Figure(figsize=(38 / 72, 16 / 72), dpi=72)
        figure.patch.set_visible(False)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        size: dict[str, Any] = {"linewidth": 0.9 if thin else 1.8, "markersize": 7}
        axes.plot((0, 1, 2), (0, 0, 0), markevery=[1], clip_on=False, **size, **style)
    svg = _svg(figure, "swatch")
    svg.attrib.update({"class": "swatch", "aria-hidden": "true"})
    return _text(svg)


def _svg(figure: Figure, name: str) -> Element:
    """Returns the drawn SVG without namespaces, metadata and styles of its own."""
    settings = {"svg.fonttype": "none", "svg.hashsalt": name}
    written = rendered(figure, "svg", **settings)
    written = re.sub(r"<(metadata|style)\b.*?</\1>", "", written.decode(), flags=re.DOTALL)
    svg = ElementTree.fromstring(written)
    for element in svg.iter():
        element.tag = element.tag.rpartition("}")[2]
        for key in list(element.attrib):
            element.set(key.rpartition("}")[2], element.attrib.pop(key))
    return svg


def _text(svg: Element) -> str:
    """Returns an element as text in ASCII, with the ids alone that something in it refers to."""
    for element in svg.iter():
        if not SHARED.fullmatch(element.get("id", "m0123456789")):
            del element.attrib["id"]
        element.tail, element.text = None, (element.text or "").strip()
    for name in ("width", "height", "version"):
        svg.attrib.pop(name, None)
    return ElementTree.tostring(svg, encoding="us-ascii").decode()
