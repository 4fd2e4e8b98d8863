"""How every picture is set and written to a file."""

import io
from collections.abc import Mapping
from contextlib import AbstractContextManager

import matplotlib.style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

FONT_SIZE = 10.0  # points; 14 px where a figure is shown 800 px wide
GREY = "0.35"  # of what is said beside the lines


def style(**settings: str) -> AbstractContextManager[None]:
    """Returns matplotlib's own style, whatever the user's matplotlibrc says."""
    ours = {"svg.hashsalt": "lengthgen", "font.size": FONT_SIZE}
    return matplotlib.style.context(["default", ours | settings])


def files(drawn: Mapping[str, Figure]) -> dict[str, bytes]:
    """Returns figures as PNG and SVG files, by file name."""
    return {
        f"{name}.{kind}": rendered(figure, kind)
        for name, figure in drawn.items()
        for kind in ("png", "svg")
    }


def rendered(drawn: Figure, kind: str, **settings: str) -> bytes:
    """Returns the figure as a PNG or SVG file, the same bytes at every time.

    `settings` are of matplotlib, by name.
    """
    nothing = {"svg": {"Date": None}, "png": {"Software": None}}
    file = io.BytesIO()
    with style(**settings):
        FigureCanvasAgg(drawn).print_figure(file, format=kind, dpi=200, metadata=nothing[kind])
    return file.getvalue()
