"""How figures are styled and written to files; a scheme has the same style in every figure."""

import hashlib
import io
import itertools
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import matplotlib.style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lengthgen import escaping
from lengthgen.analysis.seed_groups import Series

FONT_SIZE = 10.0  # points; 14 px where a figure is shown 800 px wide
GREY = "0.35"  # of notes
# Okabe-Ito and Tol's muted set without their light colours, and a brown: safe for colour-blind
# readers on white. Grey is left to what does not count.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
    *("#332288", "#882255", "#999933", "#117733", "#AA4499", "#8C510A"),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "*", "h")
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
SALT = 48036  # of the hash of a scheme's name; with this one the classic schemes do not collide


def rc_style(**settings: str) -> AbstractContextManager[None]:
    """Returns matplotlib's own style, whatever the user's matplotlibrc says."""
    ours = {"svg.hashsalt": "lengthgen", "font.size": FONT_SIZE, "legend.handlelength": 3.5}
    plain = {"text.parse_math": False}  # a name may hold dollar signs
    return matplotlib.style.context(["default", ours | plain | settings])


def files(drawn: Mapping[str, Figure], **settings: str) -> dict[str, bytes]:
    """Returns figures as PNG and SVG files, by file name; `settings` are of matplotlib."""
    return {
        f"{name}.{kind}": rendered(figure, kind, **settings)
        for name, figure in drawn.items()
        for kind in ("png", "svg")
    }


def rendered(drawn: Figure, kind: str, **settings: str) -> bytes:
    """Returns the figure as a PNG or SVG file, the same bytes at every time.

    `settings` are of matplotlib, by name.
    """
    nothing = {"svg": {"Date": None}, "png": {"Software": None}}
    file = io.BytesIO()
    with rc_style(**settings):
        FigureCanvasAgg(drawn).print_figure(file, format=kind, dpi=200, metadata=nothing[kind])
    return file.getvalue()


def framed(title: Sequence[str], *, size: tuple[float, float]) -> Figure:
    """Returns an empty figure, its title broken where the figure ends.

    `size`: in inches, with a title of up to four lines; a longer one makes the figure taller.
    """
    width, height = size
    shown = (escaping.visible(text, keep="\n") for text in title)
    lines = [line for text in shown for line in textwrap.wrap(text, int(12.2 * width))]
    drawn = Figure(figsize=(width, height + 0.18 * max(0, len(lines) - 4)), dpi=200)
    drawn.set_layout_engine("constrained", h_pad=0.1)  # room between rows of colour bars
    drawn.suptitle("\n".join(lines), x=0.01, horizontalalignment="left", fontsize=FONT_SIZE)
    return drawn


@dataclass(frozen=True, kw_only=True)
class SchemeStyle:
    """Colour and marker of a scheme."""

    colour: str
    marker: str


def scheme_styles(schemes: Iterable[str]) -> dict[str, SchemeStyle]:
    """Returns a style for each scheme, by a hash of its name, no two alike.

    A scheme whose slot an alphabetically earlier one holds takes the next slot that no scheme of
    this figure wants, so the others keep theirs.
    """
    n = len(COLOURS)
    slots: dict[int, str] = {}
    displaced: list[str] = []
    for name in sorted(set(schemes)):
        if slots.setdefault(_slot(name), name) != name:
            displaced.append(name)
    for name in displaced:
        tried = (turn * n + (_slot(name) + i) % n for turn in itertools.count() for i in range(n))
        slots[next(slot for slot in tried if slot not in slots)] = name
    return {
        name: SchemeStyle(
            colour=COLOURS[slot % n], marker=MARKERS[(slot + slot // n) % len(MARKERS)]
        )
        for slot, name in slots.items()
    }


def _slot(scheme: str) -> int:
    digest = hashlib.sha256(f"{SALT}:{scheme}".encode()).digest()
    return int.from_bytes(digest[:8]) % len(COLOURS)


def line_styles(lines: Sequence[Series]) -> dict[str, dict[str, Any]]:
    """Returns the drawing arguments of each label: a scheme's style, a line style per series.

    Series of one scheme alone have a style each, by their labels. A reference has the colour of the
    series whose checkpoints it shows and no marker.
    """
    by_scheme = scheme_styles(line.scheme for line in lines)
    several = [line.label for line in lines if not line.reference]
    by_label = scheme_styles(several) if len(several) > len(by_scheme) == 1 else {}
    found: dict[str, dict[str, Any]] = {}
    n_drawn = Counter[str]()
    in_order = sorted(lines, key=lambda line: (line.variant is not None, line.label))
    for line in in_order:
        shown = (one for one in in_order if not one.reference and line.is_reference_of(one))
        style = by_label.get(next(shown, line).label, by_scheme[line.scheme])
        if line.reference:
            found[line.label] = {"color": style.colour, "marker": "", "linestyle": (0, (3, 2))}
            continue
        n = n_drawn[line.scheme]
        n_drawn[line.scheme] += 1
        found[line.label] = {
            "color": style.colour,
            "marker": style.marker,
            "linestyle": DASHES[n % len(DASHES)],
            "markerfacecolor": "white" if n // len(DASHES) % 2 else style.colour,
        }
    return found
