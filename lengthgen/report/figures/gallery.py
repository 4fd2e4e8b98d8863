"""Figures of curves that follow from formulas: panels side by side, each with names below."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lengthgen.analysis.formatting import short
from lengthgen.report.figures.scales import plain, plain_ticks
from lengthgen.report.figures.style import COLOURS, DASHES, FONT_SIZE, GREY, framed, rc_style

SIZE = (4.5, 4.4)  # of a panel, in inches


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Curves over x = first, first + 1 ..., or the rows of a heat map."""

    title: str
    x: str = "distance (tokens)"
    y: str = "added to the logit"
    first: int = 0
    curves: Mapping[str, Sequence[float]]
    log: str = ""  # the logarithmic axes, of "xy"
    ordered: bool = False  # colours in order, as for heads
    heat: bool = False
    marks: Mapping[str, float] = field(default_factory=dict[str, float])  # x of lines, by name
    levels: Mapping[str, float] = field(default_factory=dict[str, float])  # y of lines


def draw(panels: Sequence[Panel], *, title: str) -> Figure:
    """Draws panels side by side."""
    with rc_style():
        drawn = framed([title], size=(SIZE[0] * len(panels), SIZE[1]))
        grid = drawn.subplots(1, len(panels), squeeze=False)[0]
        for axes, panel in zip(grid, panels, strict=True):
            if panel.heat:
                values = np.array([*panel.curves.values()])
                top = float(np.abs(values).max())
                image = axes.imshow(values, cmap="RdBu_r", vmin=-top, vmax=top, aspect="auto")
                drawn.colorbar(image, ax=axes, location="bottom", aspect=30)
            else:
                _curves(axes, panel)
            axes.set_title(panel.title, loc="left", fontsize=FONT_SIZE)
            axes.set_xlabel(panel.x)
            axes.set_ylabel(panel.y)
    return drawn


def _curves(axes: Axes, panel: Panel) -> None:
    n = len(panel.curves)
    spread = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, n))
    for i, (name, values) in enumerate(panel.curves.items()):
        colour, dashes = (spread[i], "-") if panel.ordered else (COLOURS[i], DASHES[i % 4])
        x = range(panel.first, panel.first + len(values))
        axes.plot(x, values, color=colour, linestyle=dashes, linewidth=1.5, label=name)
    if "x" in panel.log:
        axes.set_xscale("log", base=2)
        longest = max(map(len, panel.curves.values()))
        ticks = [4**e for e in range(12) if panel.first <= 4**e <= panel.first + longest]
        axes.set_xticks(ticks, [short(tick) for tick in ticks])
    if "y" in panel.log:
        axes.set_yscale("log")
        ticks = plain_ticks(*axes.get_ylim())
        axes.set_yticks(ticks, [plain(tick) for tick in ticks])
    axes.minorticks_off()
    dashed: dict[str, Any] = {"color": GREY, "linestyle": (0, (5, 3)), "linewidth": 1.0}
    text: dict[str, Any] = {"textcoords": "offset points", "color": GREY, "fontsize": FONT_SIZE - 1}
    for name, at in panel.marks.items():
        axes.axvline(at, zorder=1, **dashed)
        place = (at, 1), axes.get_xaxis_transform()
        axes.annotate(name, place[0], xycoords=place[1], xytext=(0, 2), ha="center", **text)
    for name, at in panel.levels.items():
        axes.axhline(at, zorder=1, **dashed)
        place = (0, at), axes.get_yaxis_transform()
        axes.annotate(name, place[0], xycoords=place[1], xytext=(3, 2), **text)
    axes.grid(visible=True, color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if n > 1:
        small: dict[str, Any] = {"frameon": False, "fontsize": FONT_SIZE - 2}
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.16), ncols=1 + n // 4, **small)
