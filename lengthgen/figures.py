"""The figure of a protocol: perplexity over length, a line per series, named at its end."""

import hashlib
import io
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.textpath import TextPath
from matplotlib.ticker import MaxNLocator

from lengthgen.series import Series
from lengthgen.statistics import HEADLINE, Point, perplexity
from lengthgen.wording import headline, short, subject

# Okabe-Ito and Tol's muted set without their light colours: told apart on white with any eyes.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
    *("#332288", "#882255", "#999933", "#117733", "#AA4499", "#666666"),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "*", "h")
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
SALT = 48036  # of the hash of a scheme's name; with this one the classic schemes do not collide

FONT_SIZE = 10.0  # points; 14 px where the figure is shown 800 px wide
LEFT, BOTTOM, TOP = 0.9, 0.55, 0.6  # inches around the axes
LINE_HEIGHT = 0.2  # inches between labels at the line ends


@dataclass(frozen=True, kw_only=True)
class Look:
    """Colour and marker of a scheme."""

    colour: str
    marker: str


def looks(schemes: Iterable[str]) -> dict[str, Look]:
    """Returns a look for each scheme, by a hash of its name, no two alike.

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
        name: Look(colour=COLOURS[slot % n], marker=MARKERS[(slot + slot // n) % len(MARKERS)])
        for slot, name in slots.items()
    }


def _slot(scheme: str) -> int:
    digest = hashlib.sha256(f"{SALT}:{scheme}".encode()).digest()
    return int.from_bytes(digest[:8]) % len(COLOURS)


def figure(lines: Sequence[Series]) -> Figure:
    """Draws perplexity over length, a line per series, with labels at the line ends.

    The lines are means over seeds (of the loss); several seeds are also drawn one by one, thin.
    """
    points = [p for line in lines for p in line.points]
    lengths = sorted({p.length for p in points})
    lines = sorted(lines, key=lambda line: _rank(line, lengths[-1]))
    names = [_name(line, lengths[-1]) for line in lines]
    with _style():
        text_width = max(
            TextPath((0, 0), name, size=FONT_SIZE).get_extents().width for name in names
        )
        right = 0.75 + text_width / 72
        width = max(4.2, 8.0 - LEFT - right)
        height = max(3.4, LINE_HEIGHT * (len(lines) + 1))
        size = (LEFT + width + right, BOTTOM + height + TOP)
        drawn = Figure(figsize=size, dpi=200)
        axes = drawn.add_axes((LEFT / size[0], BOTTOM / size[1], width / size[0], height / size[1]))
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        _draw_lines(axes, lines)
        _scale_axes(axes, lines, lengths)
        _mark_T(axes, sorted({p.train_length for p in points}))
        _label_ends(axes, lines, names, inches=(width, height))
        _title(axes, lines, points)
    return drawn


def rendered(drawn: Figure, kind: str) -> bytes:
    """Returns the figure as a PNG or SVG file, the same bytes at every time."""
    nothing = {"svg": {"Date": None}, "png": {"Software": None}}
    file = io.BytesIO()
    with _style():
        FigureCanvasAgg(drawn).print_figure(file, format=kind, dpi=200, metadata=nothing[kind])
    return file.getvalue()


def _style() -> AbstractContextManager[None]:
    """Returns matplotlib's own style, whatever the user's matplotlibrc says."""
    ours = {"svg.hashsalt": "lengthgen", "font.size": FONT_SIZE}
    return matplotlib.style.context(["default", ours])


def _rank(line: Series, longest: int) -> tuple[bool, float, str]:
    """Orders series by their loss at the longest length, those without one last."""
    last = line.losses().get(longest)
    return (last is None, 0.0 if last is None else -last, line.label)


def _name(line: Series, longest: int) -> str:
    """Returns the label, and up to where the line goes if it ends before the others."""
    scored = list(line.losses())
    if longest in scored:
        return line.label
    if longest not in line.skipped:
        return f"{line.label} (to {short(scored[-1])})" if scored else f"{line.label} (none)"
    return f"{line.label} (n/a past {short(scored[-1])})" if scored else f"{line.label} (n/a)"


def line_looks(lines: Sequence[Series]) -> dict[str, dict[str, Any]]:
    """Returns the drawing arguments of each label: a scheme's look, a line style per series."""
    by_scheme = looks(line.scheme for line in lines)
    found: dict[str, dict[str, Any]] = {}
    n_drawn = Counter[str]()
    for line in sorted(lines, key=lambda line: (line.variant is not None, line.label)):
        look, n = by_scheme[line.scheme], n_drawn[line.scheme]
        n_drawn[line.scheme] += 1
        found[line.label] = {
            "color": look.colour,
            "marker": look.marker,
            "linestyle": DASHES[n % len(DASHES)],
            "markerfacecolor": "white" if n // len(DASHES) % 2 else look.colour,
        }
    return found


def _draw_lines(axes: Axes, lines: Sequence[Series]) -> None:
    drawn_as = line_looks(lines)
    for line in lines:
        look = drawn_as[line.label]
        if len(line.runs) > 1:
            for run in line.runs:
                lengths, values = _finite(line.curve(run))
                axes.plot(lengths, values, color=look["color"], linewidth=0.7, alpha=0.45)
        lengths, values = _finite(line.losses())
        axes.plot(lengths, values, label=line.label, linewidth=1.8, markersize=5.5, **look)
        _draw_crop(axes, line, colour=look["color"])


def _draw_crop(axes: Axes, line: Series, *, colour: str) -> None:
    crop = _crop(line)
    if crop is not None:
        T, at_T = crop
        across = (T, max(line.losses()))
        axes.plot(across, (at_T, at_T), color=colour, linestyle=(0, (1, 2.5)), linewidth=1.0)


def _crop(line: Series) -> tuple[int, float] | None:
    """Returns T and the perplexity of the same targets from the last T tokens alone.

    That is the matched tail of length T itself. None if no longer length stands beside it.
    """
    trained, losses = {p.train_length for p in line.points}, line.losses()
    scored_alike = all(p.protocol == HEADLINE for p in line.points)
    if line.variant is not None or len(trained) > 1 or not scored_alike:
        return None
    [T] = trained
    if T not in losses or max(losses) == T or losses[T] >= 700:
        return None
    return T, perplexity(losses[T])


def _finite(losses: Mapping[int, float]) -> tuple[list[int], list[float]]:
    """Returns lengths and perplexities, without those that no axis can show."""
    kept = {n: perplexity(loss) for n, loss in losses.items() if loss < 700}
    return list(kept), list(kept.values())


def _scale_axes(axes: Axes, lines: Sequence[Series], lengths: Sequence[int]) -> None:
    shown = [y for line in lines for run in line.runs for y in _finite(line.curve(run))[1]]
    low, high = min(shown, default=1.0), max(shown, default=10.0)
    pad = max(1.04, (high / low) ** 0.05)
    low, high = low / pad, high * pad
    axes.set_ylim(low, high)
    ticks = plain_ticks(low, high)
    axes.set_yticks(ticks, [plain(tick) for tick in ticks])
    marked = [*lengths, *(p.train_length for line in lines for p in line.points)]
    pad = max(1.15, (max(marked) / min(marked)) ** 0.04)
    axes.set_xlim(min(marked) / pad, max(marked) * pad)
    axes.set_xticks(lengths, _spaced(lengths))
    axes.minorticks_off()
    axes.set_xlabel("tokens in the window")
    axes.set_ylabel("perplexity")
    axes.grid(visible=True, color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _spaced(lengths: Sequence[int]) -> list[str]:
    """Returns the tick labels, blank where one would run into a rounder neighbour's."""
    gap = math.log2(lengths[-1] / lengths[0]) / 16
    kept: list[int] = []
    for n in sorted(lengths, key=lambda n: (-(n & -n), n)):  # powers of two and the like first
        if all(abs(math.log2(n / other)) >= gap for other in kept):
            kept.append(n)
    return [short(n) if n in kept else "" for n in lengths]


def plain_ticks(low: float, high: float) -> list[float]:
    """Returns about three to nine round numbers between the ends of a log axis."""
    if high / low < 4:
        found = MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
        return [float(tick) for tick in found if low <= tick <= high]
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    digits = (1, 2, 3, 5) if high / low < 50 else (1, 3) if high / low < 30_000 else (1,)
    decades = range(first, last + 1, 1 + (last - first) // 10)
    return [d * 10.0**e for e in decades for d in digits if low <= d * 10.0**e <= high]


def plain(tick: float) -> str:
    """Returns 9.8, 20, 1,000; 1e6 and beyond with an exponent."""
    return f"{tick:,.10g}" if tick < 1e6 else f"{tick:.0e}".replace("e+0", "e").replace("e+", "e")


def _mark_T(axes: Axes, trained: Sequence[int]) -> None:
    for i, length in enumerate(trained):
        axes.axvline(length, color="0.35", linestyle=(0, (5, 3)), linewidth=1.0, zorder=1)
        axes.annotate(
            f"trained at T={length}",
            (length, 0.975 - 0.055 * i),
            xycoords=axes.get_xaxis_transform(),
            xytext=(5, 0),
            textcoords="offset points",
            verticalalignment="top",
            color="0.35",
            fontsize=FONT_SIZE - 1,
        )


def _label_ends(
    axes: Axes, lines: Sequence[Series], names: Sequence[str], *, inches: tuple[float, float]
) -> None:
    """Writes each name beside its line's end, moved apart; lines that end early stand below."""
    width, height = inches
    drawn_as = line_looks(lines)
    low, high = axes.get_ylim()
    ends = [_finite(line.losses()) for line in lines]
    longest = max((lengths[-1] for lengths, _ in ends if lengths), default=0)
    whole = [bool(lengths) and lengths[-1] == longest for lengths, _ in ends]
    wanted = [
        math.log(values[-1] / low) / math.log(high / low) if reaches else 0.0
        for (_, values), reaches in zip(ends, whole, strict=True)
    ]
    heights = spread(wanted, gap=LINE_HEIGHT / height)
    sample = (1 + 0.16 / width, 1 + 0.5 / width)
    for line, name, (_, values), reaches, y in zip(lines, names, ends, whole, heights, strict=True):
        if reaches:
            axes.annotate(
                "",
                (longest, values[-1]),
                xytext=(1 + 0.1 / width, y),
                textcoords="axes fraction",
                arrowprops={"arrowstyle": "-", "color": "0.7", "linewidth": 0.7, "shrinkB": 4},
                annotation_clip=False,
                zorder=1,
            )
        x_middle = sum(sample) / 2
        look = drawn_as[line.label]
        place: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False, "linewidth": 1.8}
        axes.plot(sample, (y, y), **{**look, "marker": ""}, **place)
        axes.plot((x_middle,), (y,), **look, **place, markersize=5.5)
        axes.text(
            1 + 0.58 / width, y, name, transform=axes.transAxes, verticalalignment="center_baseline"
        )


def spread(wanted: Sequence[float], *, gap: float) -> list[float]:
    """Moves positions, given from the top down, at least `gap` apart, and none below 0."""
    placed: list[float] = []
    for y in wanted:
        placed.append(min(y, placed[-1] - gap) if placed else y)
    floor = 0.0
    for i in reversed(range(len(placed))):
        placed[i] = max(placed[i], floor)
        floor = placed[i] + gap
    return placed


def _title(axes: Axes, lines: Sequence[Series], points: Sequence[Point]) -> None:
    seeds = max(len(line.runs) for line in lines)
    thin = f"; mean of {seeds} seeds, thin: each" if seeds > 1 else ""
    dotted = "; dotted: from the last T tokens alone" if any(map(_crop, lines)) else ""
    axes.annotate(
        f"{headline(points)}\n{subject(points)}{thin}{dotted}",
        (0, 1),
        xycoords="axes fraction",
        xytext=(0, 10),
        textcoords="offset points",
        linespacing=1.35,
    )
