"""How figures look, and the bytes they are saved as; a scheme has one colour in every figure.

A function that draws is decorated with `@styled()`, begins with `new_figure`, and names its lines
at their ends with `label_ends` instead of a legend.
"""

import hashlib
import io
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ContextDecorator
from typing import Any, Literal, NamedTuple, cast

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator
from scipy.optimize import isotonic_regression

from lengthgen import escaping
from lengthgen.report.series import short

FONT_SIZE = 10.0  # points; 13 px where a figure of 8 inches is shown 768 px wide
GREY = "0.45"  # of notes and of what is there for reference
WIDTH = 8.0  # inches
MAX_LINES = 8  # of one axes; more are small multiples
# Okabe-Ito and Tol's muted set without their light colours and a second green, and a brown: safe
# for colour-blind readers on white.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
    *("#332288", "#882255", "#999933", "#000000", "#AA4499", "#8C510A"),
)
DASHES: Sequence[Any] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
SALT = 48036  # of the hash of a scheme's name; with it the classic schemes do not collide


def styled() -> ContextDecorator:
    """Matplotlib's own style and ours, whatever the user's matplotlibrc says; a decorator too."""
    settings = {
        "font.size": FONT_SIZE,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": "lengthgen",  # ids are the same at every time
        "text.parse_math": False,  # a name may hold dollar signs
    }
    return cast(ContextDecorator, matplotlib.style.context(["default", settings]))


class PageFigure(Figure):
    """A figure, and the charts (Vega-Lite) that a page shows instead where scripts run."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.charts: list[dict[str, Any]] = []


def new_figure(title: str, *, width: float = WIDTH, height: float = 4.4) -> PageFigure:
    """Returns an empty figure with a title of one or more lines; sizes in inches."""
    lines = textwrap.wrap(escaping.visible(title), int(12.2 * width)) or [""]
    drawn = PageFigure(figsize=(width, height + 0.17 * (len(lines) - 1)), layout="constrained")
    drawn.suptitle("\n".join(lines), x=0.01, horizontalalignment="left", fontsize=FONT_SIZE + 1)
    return drawn


def saved(figure: Figure, kind: Literal["svg", "png", "pdf"]) -> bytes:
    """Returns the figure as a file, the same bytes at every time."""
    of_kinds: dict[str, Any] = {"svg": {"Date": None}, "png": {"Software": None}}
    metadata: Mapping[str, Any] = of_kinds.get(kind, {"CreationDate": None})
    file = io.BytesIO()
    with cast(AbstractContextManager[None], styled()):
        FigureCanvasAgg(figure).print_figure(file, format=kind, dpi=150, metadata=metadata)
    return file.getvalue()


def scheme_colours(schemes: Iterable[str]) -> dict[str, str]:
    """Returns the colour of each scheme, by a hash of its name.

    A scheme whose colour an alphabetically earlier one has takes the next that no scheme wants, so
    that the others keep theirs. Of more than twelve schemes some share a colour.
    """
    names, n = sorted(set(schemes)), len(COLOURS)
    digests = (hashlib.sha256(f"{SALT}:{name}".encode()).digest() for name in names)
    wanted = [int.from_bytes(digest[:8]) % n for digest in digests]
    free = [slot for slot in range(n) if slot not in wanted]
    slots: dict[str, int] = {}
    for name, slot in zip(names, wanted, strict=True):
        steps = [(other - slot) % n for other in free]
        is_taken = slot in slots.values() and free
        slots[name] = free.pop(steps.index(min(steps))) if is_taken else slot
    return {name: COLOURS[slot] for name, slot in slots.items()}


def length_axis(
    axes: Axes, lengths: Iterable[float], *, trained: float | None = None, name: str = "trained"
) -> None:
    """Makes x a log2 axis over lengths in tokens; shades, and names, those up to `trained`.

    Limits of y must be set before. A tick whose name would run into a rounder neighbour's has none.
    """
    ticks = sorted(set(lengths))
    room = 20 * axes.get_position().width * axes.figure.get_figwidth() / WIDTH  # pyright: ignore
    gap = math.log2(ticks[-1] / ticks[0]) / max(room, 1)
    written: list[float] = []
    for tick in sorted(ticks, key=lambda tick: (-(int(tick) & -int(tick)), tick)):
        if all(abs(math.log2(tick / other)) >= gap for other in written):
            written.append(tick)
    low, high = ticks[0] / 2**0.25, ticks[-1] * 2**0.1
    axes.set_xscale("log", base=2)
    axes.set_xlim(low, high)
    marked = ticks if name else written  # small multiples have no room for the others
    axes.set_xticks(marked, [short(tick) if tick in written else "" for tick in marked])
    axes.minorticks_off()
    if trained is not None and trained > ticks[0]:
        axes.axvspan(low, trained, color="0.94", zorder=0, linewidth=0)
        place: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "color": GREY}
        axes.text(min(trained, high) / 2**0.06, 0.985, name, ha="right", va="top", size=8, **place)


def token_axis(axes: Axes, tokens: Iterable[float]) -> None:
    """Makes x a log axis over training tokens, named from the last one down where there is room."""
    ticks = sorted(set(tokens))
    room = 12 * axes.get_position().width * axes.figure.get_figwidth() / WIDTH  # pyright: ignore
    gap, written = max(math.log2(ticks[-1] / ticks[0]) / max(room, 1), 0.1), list[float]()
    for tick in reversed(ticks):
        if not written or math.log2(written[-1] / tick) >= gap:
            written.append(tick)
    axes.set_xscale("log", base=2)
    axes.set_xlim(ticks[0] / 2**0.2, ticks[-1] * 2**0.1)
    axes.set_xticks(written, [f"{tick / 1e6:.2g}M" for tick in written])
    axes.minorticks_off()


def log_axis(axes: Axes, which: Literal["x", "y"] = "y") -> None:
    """Makes y, or x, a log axis with round ticks within its limits, written in full."""
    axis = axes.yaxis if which == "y" else axes.xaxis
    low, high = axis.get_view_interval()
    ratios = {8: (1, 1.5, 2, 3, 4, 5, 7), 60: (1, 1.5, 2, 3, 5), 3e4: (1, 3), math.inf: (1,)}
    digits = next(digits for ratio, digits in ratios.items() if high / low < ratio)
    axes.set(**{f"{which}scale": "log", f"{which}lim": (low, high)})
    ticks = LogLocator(subs=digits, numticks=12)
    is_narrow = sum(low <= tick <= high for tick in ticks.tick_values(low, high)) < 3
    axis.set_major_locator(MaxNLocator(5) if is_narrow else ticks)
    axis.set_major_formatter(lambda value, _: f"{value:,.10g}" if value < 1e6 else f"{value:.0e}")
    axes.minorticks_off()


class LineEnd(NamedTuple):
    """The last value of a line in units of the axis, and what is written there."""

    value: float
    name: str
    colour: str


def heights(axes: Axes, values: Iterable[float]) -> list[float]:
    """Returns where values lie on y, from 0 to 1; those beyond its limits at the edge."""
    low, high = axes.get_ylim()
    to_axes, x = axes.transScale + axes.transLimits, axes.get_xlim()[1]
    return [float(to_axes.transform((x, min(max(value, low), high)))[1]) for value in values]


def apart(wanted: Sequence[float], gap: float) -> list[float]:
    """Returns heights between 0 and 1 near the wanted ones, each a gap or more from the next."""
    gap = min(gap, 1 / max(len(wanted) - 1, 1))
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    # Least squares under the condition that each is at least a gap above the one before.
    shifted = isotonic_regression([wanted[i] - n * gap for n, i in enumerate(order)]).x
    top = 1 - (len(wanted) - 1) * gap
    placed = [min(max(float(start), 0.0), top) + n * gap for n, start in enumerate(shifted)]
    return [placed[order.index(i)] for i in range(len(wanted))]


def label_ends(axes: Axes, ends: Sequence[LineEnd], *, size: float = FONT_SIZE - 1) -> None:
    """Writes names right of the axes, at the height of the ends of lines but never on each other.

    Limits must be set before. A name that had to move is tied to its line's end.
    """
    if not ends:
        return
    ends = sorted(ends, key=lambda end: end.name)
    wanted = heights(axes, [end.value for end in ends])
    box = axes.get_position().height * axes.figure.get_figheight() * 72  # pyright: ignore
    for end, start, height in zip(ends, wanted, apart(wanted, 1.25 * size / box), strict=True):
        line: dict[str, Any] = {"color": end.colour, "transform": axes.transAxes}
        axes.plot([1.0, 1.018], [start, height], clip_on=False, linewidth=0.7, **line)
        place: dict[str, Any] = {"va": "center", "fontsize": size, **line}
        axes.text(1.024, height, escaping.visible(end.name), **place)
