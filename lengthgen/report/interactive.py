"""Charts of a page: what a figure of lines shows, with hover and a legend that filters.

Vega-Lite draws them in the browser, as chart.json says; vl-convert-python carries its code.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from lengthgen.config.user import user_cache
from lengthgen.errors import UserError
from lengthgen.escaping import visible
from lengthgen.files import replace_file
from lengthgen.report import style
from lengthgen.report.statistics import shown_number

GAP = 15 / 330  # between the names of lines, of the height of the chart
SCALES = {"log": {"type": "log"}, "asinh": {"type": "symlog", "constant": 0.1}}  # of matplotlib
Spec = dict[str, Any]


@cache
def vega() -> str:
    """Returns Vega, Vega-Lite and Vega-Embed as one script, made once for all reports: 1.6 s."""
    kept = user_cache() / f"vega-{version('vl-convert-python')}.js"
    with suppress(OSError, ValueError):
        return kept.read_bytes().decode()
    import vl_convert

    script = vl_convert.javascript_bundle()  # pyright: ignore[reportCallIssue]
    with suppress(UserError):  # a folder that cannot be written
        replace_file(kept, script.encode())
    return script


def charts(figure: Figure) -> Sequence[Spec]:
    """Returns the charts that a page shows instead of a figure where scripts run."""
    return figure.charts if isinstance(figure, style.PageFigure) else []


def chart(
    axes: Axes,
    rows: pd.DataFrame,
    order: Sequence[str],
    styles: Mapping[str, Mapping[str, Any]],
    *,
    names: tuple[str, str],
    write_x: Callable[[float], str],
    write: Callable[[float], str] | None = None,
    trained: float | None,
    bands: bool,
) -> Spec:
    """Returns the Vega-Lite chart of the lines `rows`, with the scales of the axes they lie on.

    `order`: the series, the named ones first. `names` are those of x and y. `write_x` writes a
    place on x, and `write` a value. `trained`: the length up to which x is shaded.
    """
    spec = json.loads((files("lengthgen.report") / "chart.json").read_text())
    x, y, colour = (spec["encoding"][key] for key in ("x", "y", "color"))
    *_, lines, _, _ = spec["layer"]
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    x["title"], y["title"] = names
    x["scale"]["domain"] = [left, right]
    for channel, axis in ((x, axes.xaxis), (y, axes.yaxis)):
        kind = axis.get_scale()
        channel["scale"] |= SCALES.get(kind, {"zero": False})
        if (kind == "log") == (channel is x):
            channel["axis"] = {**channel.get("axis", {}), **_ticks(axis)}
    spec["datasets"] |= {
        "trained": [{"x": left, "to": float(trained), "of": right}] if trained else [],
        "limits": [{"y": low}, {"y": high}],
        "zero": [{"y": 0}] if low < 0 < high else [],
    }
    last = rows[~rows["reference"]].drop_duplicates("series", keep="last")
    is_end, last = rows.index.isin(last.index), last.set_index("series")
    named = [name for name in order[: style.MAX_LINES] if name in last.index]
    placed = style.apart(style.heights(axes, last["value"][named]), GAP)
    to_values = (axes.transScale + axes.transLimits).inverted()
    labels = {s: to_values.transform((1, at))[1] for s, at in zip(named, placed, strict=True)}
    write = write or (shown_number if axes.get_yscale() == "log" else "{:.3f}".format)
    shown = [name for name in order if name in last.index]
    keys = zip(last["scheme"], last["train_length"], last.index, strict=True)
    bases = {(scheme, T): str(name) for scheme, T, name in reversed([*keys])}
    every: Any = rows.reset_index(drop=True)
    for row in every.itertuples():
        has_interval, name = math.isfinite(row.high - row.low), row.series
        base = next((n for n in (name, name.rpartition(", ")[0]) if n in shown), None)
        of = str(base or bases.get((row.scheme, row.train_length), name))
        interval = f" [{write(row.low)}, {write(row.high)}]" if has_interval else ""
        value = {
            **{"series": visible(name), "of": visible(of), "named": of in named},
            **{"x": float(row.length), "y": min(max(row.value, low), high)},
            "hint": f"{visible(of)} at {write_x(row.length)}: {write(row.value)}{interval}",
            "thin": bool(row.reference),
        }
        if bands and has_interval:
            value |= {"low": max(row.low, low), "high": min(row.high, high)}
        if name in labels and is_end[row.Index]:
            value["label"] = labels[name]
        spec["datasets"]["lines"].append(value)
    colour["condition"]["scale"] = {
        "domain": [*map(visible, shown)],
        "range": [to_hex(styles[name]["color"]) for name in shown],
    }
    dashes = {visible(name): look["linestyle"] for name, look in styles.items()}
    lines["encoding"]["strokeDash"]["scale"] = {
        "domain": [*dashes],
        "range": [
            [1, 0] if dash == "-" else [*map(float, 2 * np.array(dash[1]))]
            for dash in dashes.values()
        ],
    }
    spec["usermeta"] = {"margin": 70 + 7 * min(18, max(map(len, named), default=0))}
    return spec


def heat_map(
    title: str,
    values: Sequence[Mapping[str, Any]],
    *,
    names: tuple[str, str],
    orders: tuple[Sequence[str], Sequence[str]],
) -> Spec:
    """Returns the Vega-Lite chart of shares: `values` have x, y, share and hint.

    `names` are those of x and y, and `orders` all their places.
    """
    spec = json.loads((files("lengthgen.report") / "heat.json").read_text())
    spec |= {"title": visible(title), "data": {"values": values}}
    for channel, name, order in zip("xy", names, orders, strict=True):
        spec["encoding"][channel] |= {"title": name, "sort": order}
    return spec


def _ticks(axis: Axis) -> Spec:
    """Returns the ticks of an axis that have names, as properties of one of Vega-Lite."""
    places = axis.get_ticklocs()
    labels = axis.get_major_formatter().format_ticks([*map(float, places)])
    ticks = {f"{at:.10g}": label for at, label in zip(places, labels, strict=True) if label}
    names = f"({json.dumps(ticks)})[toString(datum.value)]"
    return {
        "values": [*map(float, ticks)],
        "labelExpr": names,
        "labelOverlap": "greedy",
        "tickCount": 40,
    }
