"""How a line looks on the page: colour and symbol of its scheme, dashes of its own."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from lengthgen.analysis.seed_groups import Series
from lengthgen.report.figures.looks import DASHES, looks
from lengthgen.report.page.markup import tag

# Corners, where the first one stands (degrees, from the right, clockwise), and how far the corners
# between them are in (1: as far out); matplotlib's names.
SYMBOLS = {
    **{"o": (24, 0, None), "s": (4, 45, None), "D": (4, 0, None)},
    **{"^": (3, -90, None), "v": (3, 90, None), "<": (3, 180, None), ">": (3, 0, None)},
    **{"p": (5, -90, None), "h": (6, -90, None)},
    **{"P": (4, 0, 0.4), "X": (4, 45, 0.4), "*": (5, -90, 0.45)},
}
RADIUS = 5.0


@dataclass(frozen=True, kw_only=True)
class Stroke:
    """How a line is drawn."""

    colour: str
    marker: str
    dashes: tuple[float, ...]  # in units of the width
    thin: bool


def strokes(lines: Sequence[Series]) -> dict[str, Stroke]:
    """Returns the stroke of each label; those of references are thin."""
    by_scheme = looks(line.scheme for line in lines)
    n_drawn = Counter[str]()
    found: dict[str, Stroke] = {}
    for line in sorted(lines, key=lambda line: (line.variant is not None, line.label)):
        look, style = by_scheme[line.scheme], DASHES[n_drawn[line.scheme] % len(DASHES)]
        dashes = () if isinstance(style, str) else tuple(map(float, style[1]))
        found[line.label] = Stroke(
            colour=look.colour,
            marker=look.marker,
            dashes=(3.0, 2.0) if line.reference else dashes,
            thin=line.reference,
        )
        n_drawn[line.scheme] += not line.reference
    return found


def symbols(marker: str, places: Iterable[tuple[float, float]]) -> str:
    """Returns the path of a symbol at each place."""
    corners, first, inner = SYMBOLS[marker]
    radii = (RADIUS,) if inner is None else (RADIUS * 1.2, RADIUS * 1.2 * inner)
    n = corners * len(radii)
    outline = [
        (
            radii[i % len(radii)] * math.cos(math.radians(first + 360 * i / n)),
            radii[i % len(radii)] * math.sin(math.radians(first + 360 * i / n)),
        )
        for i in range(n)
    ]
    return "".join(
        "M" + "L".join(f"{x + dx:.1f} {y + dy:.1f}" for dx, dy in outline) + "Z" for x, y in places
    )


def swatch(stroke: Stroke) -> Element:
    """Returns a sample of a line."""
    width = 1.3 if stroke.thin else 2.4
    dashes = " ".join(f"{n * width:g}" for n in stroke.dashes) or None
    drawn = [
        tag("path", d="M1 8H37", class_="curve", stroke_width=width, stroke_dasharray=dashes),
    ]
    if not stroke.thin:
        drawn.append(tag("path", d=symbols(stroke.marker, [(19.0, 8.0)]), class_="symbols"))
    return tag(
        "svg",
        *drawn,
        viewBox="0 0 38 16",
        class_="swatch line",
        style=f"--c:{stroke.colour}",
        aria_hidden="true",
    )
