"""Pictures of the probes: each is drawn of the rows of one probe of one checkpoint."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lengthgen.report.series import short
from lengthgen.report.style import COLOURS, GREY, new_figure, styled

Row = Mapping[str, Any]

ROUNDING = 1e-5  # changes in nats below this are of fp32, not of the model
DEPTH = 30  # of biases; a key this far below another has e^-30 of its weight


@styled()
def shift_invariance(rows: Sequence[Row]) -> Figure:
    """Draws the changes of loss, distribution and logits over the shift k."""
    there, length = _measured(rows), rows[0]["settings"]["length"]
    drawn = _framed(rows, f"All positions of {length:,} tokens shifted by k", unit="k")
    axes = drawn.subplots()
    lines = {
        "max_dlogit": "largest |change of a logit|",
        "dnll": "|mean change of the loss| (nats)",
        "kl": "mean KL of the prediction (nats)",
    }
    for name, label in lines.items():
        values = [abs(row[name]) for row in there]
        axes.plot([row["k"] for row in there], values, marker="o", label=label)
    axes.axhspan(0, ROUNDING, color="0.93", zorder=0, label="rounding of fp32")
    axes.set_yscale("symlog", linthresh=ROUNDING / 100)
    _token_axis(axes, [row["k"] for row in rows], rows[0]["train_length"])
    axes.set_xlabel("shift k (tokens)")
    axes.set_ylabel("change against k = 0")
    _legend(axes)
    return drawn


@styled()
def receptive_field(rows: Sequence[Row]) -> Figure:
    """Draws the share of the gradient that the nearest n tokens have, a line per length."""
    there, T = _measured(rows), rows[0]["train_length"]
    drawn = _framed(rows, "What the last prediction's loss depends on", unit="length")
    axes = drawn.subplots()
    for colour, row in zip(COLOURS, there, strict=False):
        label = f"{row['length']:,} tokens; 99 % in {row['erf_99']:,}"
        axes.plot(row["n"], row["c"], color=colour, label=label)
        axes.plot(row["erf_99"], 0.99, color=colour, marker="o")
    _token_axis(axes, _ticks(T, max(row["length"] for row in there)), T)
    axes.axhline(0.99, color=GREY, linewidth=0.8)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("nearest n tokens")
    axes.set_ylabel("their share of the gradients' norms")
    _legend(axes)
    return drawn


@styled()
def attention(rows: Sequence[Row]) -> Figure:
    """Draws a heat map of layers and heads for every measure and length."""
    there = _measured(rows)
    sinks, queries = (rows[0]["settings"][key] for key in ("sinks", "queries"))
    measures = {
        "distance": "mean distance\n/ length",
        "relative_entropy": "entropy / ln i\nof i keys",
        "sink": f"share of the\nfirst {sinks} keys",
    }
    drawn = _framed(rows, f"Attention of the last {queries} queries", unit="length", height=7)
    grid = drawn.subplots(len(measures), len(there), squeeze=False, sharex=True, sharey=True)
    for (name, label), line in zip(measures.items(), grid, strict=True):
        top = max(0.1, *(np.max(row[name]) for row in there))
        for axes, row in zip(line, there, strict=True):
            axes.imshow(row[name], vmin=0, vmax=top, aspect="auto")
        drawn.colorbar(line[0].images[0], ax=list(line), pad=0.02, aspect=12, label=label)
    for axes, row in zip(grid[0], there, strict=True):
        axes.set_title(f"{row['length']:,} tokens")
    for axes in grid.flat:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    drawn.supxlabel("head")
    drawn.supylabel("layer")
    return drawn


@styled()
def bias(rows: Sequence[Row]) -> Figure:
    """Draws what every head's logits get over the distance, a panel per layer."""
    panels = [
        (f"{row['kind'].replace('_', ' ')}, {layers}", row["distances"], heads)
        for row in rows
        for layers, heads in _distinct(row["bias"])
    ]
    T, n_lines = rows[0]["train_length"], -(-len(panels) // 2)
    title = f"What is added to the logits by distance, down to {DEPTH} below the highest"
    drawn = _framed(rows, title, height=1.4 + 2.9 * n_lines)
    grid = list(drawn.subplots(n_lines, min(2, len(panels)), squeeze=False).flat)
    for axes, (name, distances, heads) in zip(grid, panels, strict=False):
        colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(heads)))
        for head, (values, colour) in enumerate(zip(heads, colours, strict=True)):
            axes.plot(distances, values, color=colour, linewidth=1.5, label=f"head {head}")
        axes.set_xscale("symlog", base=4, linthresh=1, linscale=0.5)
        ticks = [0, *_ticks(T, distances[-1] + 1)]
        axes.set_xticks(ticks, [short(tick) for tick in ticks])
        axes.axvline(T, color=GREY, linestyle="--", linewidth=1)
        axes.set_title(name, loc="left")
        axes.set_xlabel("distance from the query (tokens)")
        low, high = np.min(heads), np.max(heads)
        low = max(low, high - DEPTH)
        pad = 0.04 * (high - low) or 1.0
        axes.set_ylim(low - pad, high + pad)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    _legend(grid[min(1, len(panels) - 1)])
    return drawn


@styled()
def head_distance(rows: Sequence[Row]) -> Figure:
    """Draws the distance of the attention from that of other runs over the layers."""
    title = f"Distance of attention at T={rows[0]['train_length']:,}: nearest heads of each layer"
    drawn = _framed(rows, title, unit="other")
    axes = drawn.subplots()
    for row in _measured(rows):
        axes.plot(range(len(row["distance"])), row["distance"], marker="o", label=row["other"])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("layer")
    axes.set_ylabel("Jensen-Shannon divergence (nats)")
    _legend(axes)
    return drawn


@styled()
def word_position(rows: Sequence[Row]) -> Figure:
    """Draws the four terms of the first layer's logits, a line per head."""
    n_heads, T = len(rows[0]["map"]), rows[0]["train_length"]
    title = "First layer: the four terms of q.k / sqrt(d), mean over windows"
    drawn = _framed(rows, title, height=1.3 + 1.75 * n_heads)
    grid = drawn.subplots(n_heads, len(rows), squeeze=False, sharex=True, sharey=True)
    for head, line in enumerate(grid):
        maps = [np.array(row["map"][head], dtype=float) for row in rows]
        top = max(float(np.nanmax(np.abs(values))) for values in maps)
        for axes, row, values in zip(line, rows, maps, strict=True):
            extent = (1, T, T, 1)
            axes.imshow(values, cmap="RdBu_r", vmin=-top, vmax=top, extent=extent)
            name = row["term"].replace("_", "-")
            axes.set_title(f"{name}\nmean |.| {row['size'][head]:.2g}", fontsize=9)
            axes.set_aspect("auto")
        line[0].set_ylabel(f"head {head}\nquery position")
        drawn.colorbar(
            line[0].images[0], ax=list(line), pad=0.02, aspect=10, label="part of the logit"
        )
    for axes in grid[-1]:
        axes.set_xlabel("key position")
    return drawn


@styled()
def position(rows: Sequence[Row]) -> Figure:
    """Draws errors over layers, and the reading of every layer over the true position."""
    [row] = rows
    layers = range(len(row["error"]))
    drawn = _framed(rows, "Positions read off hidden states by small networks")
    errors, curves = drawn.subplots(1, 2)
    errors.plot(layers, row["error"], marker="o", label="up to T")
    if row["error_beyond"] is not None:
        label = f"from T to {row['length']:,}"
        errors.plot(layers, row["error_beyond"], marker="s", label=label)
    errors.axhline(0.25, color=GREY, linestyle=":", label="up to T, if always T/2")
    errors.set_yscale("log")
    errors.xaxis.set_major_locator(MaxNLocator(integer=True))
    errors.set_xlabel("layers below")
    errors.set_ylabel("mean absolute error / T")
    errors.legend(fontsize=8)
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(layers)))
    for n, predicted in zip(layers, row["predicted"], strict=True):
        curves.plot(row["positions"], predicted, color=colours[n], label=f"{n}")
    end = row["length"] / row["train_length"]
    curves.plot((0, end), (0, end), color=GREY, linestyle=":", label="true")
    curves.axvline(1, color=GREY, linestyle="--", linewidth=1)
    curves.set_xlabel("true position / T")
    curves.set_ylabel("mean prediction / T")
    curves.legend(fontsize=8, title="layers below")
    return drawn


@styled()
def columns(rows: Sequence[Row]) -> Figure:
    """Draws the numbers that all rows of a probe have over the first of them, a panel for each."""
    there = _measured(rows)
    own = list(there[0])[list(there[0]).index("settings") + 1 :]
    x, *names = [key for key in own if all(isinstance(row[key], (int, float)) for row in there)]
    title = rows[0]["probe"].replace("_", " ")
    drawn = _framed(rows, title, unit=x, height=1.2 + 2.4 * len(names))
    for axes, name in zip(drawn.subplots(len(names), squeeze=False).flat, names, strict=True):
        axes.plot([row[x] for row in there], [row[name] for row in there], marker="o")
        axes.set_xlabel(x.replace("_", " "))
        axes.set_ylabel(name.replace("_", " "))
    return drawn


def _measured(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if "skipped" not in row]


def _framed(rows: Sequence[Row], title: str, *, height: float = 4.4, unit: str = "") -> Figure:
    """Returns an empty figure with its title, whose checkpoint it shows, and what is not there."""
    missing: dict[str, list[str]] = {}
    for row in rows:
        if "skipped" in row:
            missing.setdefault(row["skipped"], []).append(str(row.get(unit, "")))
    parts = [title, f"{rows[0]['run']}, {rows[0]['tokens_seen']:,} tokens seen"]
    parts += [f"n/a at {unit} {', '.join(at)}: {reason}" for reason, at in missing.items()]
    return new_figure("; ".join(parts), height=height)


def _token_axis(axes: Axes, ticks: Sequence[int], train_length: int) -> None:
    """Gives an axis of tokens these ticks, in powers of two, and marks T."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [short(tick) for tick in ticks])
    axes.minorticks_off()
    axes.axvline(train_length, color=GREY, linestyle="--", linewidth=1, label="T")


def _ticks(train_length: int, longest: int) -> list[int]:
    """Returns 1, 4, 16 ... up to T/4, then T and its doublings."""
    below = [4**e for e in range(12) if 4 ** (e + 1) <= train_length]
    return [*below, *(n * train_length for n in (1, 2, 4) if n * train_length <= longest)]


def _legend(axes: Axes) -> None:
    """Names the lines next to the axes, where no line runs."""
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)


def _distinct(layers: Sequence[Any]) -> list[tuple[str, Any]]:
    """Returns what layers add, with their numbers; layers that add the same stand together."""
    groups: list[tuple[list[int], Any]] = []
    for n, layer in enumerate(layers):
        same = next((numbers for numbers, other in groups if other == layer), None)
        if same is not None:
            same.append(n)
        elif layer is not None:
            groups.append(([n], layer))
    return [(f"layer {', '.join(map(str, numbers))}", layer) for numbers, layer in groups]
