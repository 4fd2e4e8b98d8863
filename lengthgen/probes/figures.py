"""How probes are drawn: panels of lines and heat maps."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from lengthgen.report.style import new_figure, styled

Line = Sequence[float] | tuple[Sequence[float], Sequence[float]]  # y over its index, or x and y
Panel = Mapping[str, Line] | Sequence[Sequence[float | None]]  # lines by label, or a heat map


@styled()
def draw(title: str, panels: Mapping[str, Panel], *, columns: int) -> Figure:
    """Draws panels by their titles, so many beside each other."""
    n = -(-len(panels) // columns)
    drawn = new_figure(title, width=1 + 3.2 * columns, height=1.2 + 2.4 * n)
    grid = drawn.subplots(n, columns, squeeze=False).flatten()
    for axes, (name, panel) in zip(grid, panels.items(), strict=False):
        if not isinstance(panel, Mapping):
            matrix = np.array(panel, dtype=float)  # None is nan
            axes.imshow(matrix, aspect="auto")
            axes.locator_params(integer=True)
            ends = f"{np.nanmin(matrix):.2g} (dark) to {np.nanmax(matrix):.2g}"
            axes.set_title(f"{name}\n{ends}", fontsize=8)
            continue
        axes.set_title(name, fontsize=8)
        for label, line in panel.items():
            x, y = np.array(line if isinstance(line, tuple) else (range(len(line)), line))
            axes.plot(x, y, marker="." if len(x) < 40 else "", label=label)
            if x[-1] > 40:
                axes.set_xscale("symlog", base=4, linthresh=1)
                axes.xaxis.set_major_formatter("{x:g}")
        axes.legend(frameon=False, fontsize=7)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    return drawn
