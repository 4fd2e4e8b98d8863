"""Pictures of the probes: each is drawn of the rows of one probe of one checkpoint."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lengthgen.analysis.formatting import short
from lengthgen.report.figures.scales import plain, plain_ticks
from lengthgen.report.figures.style import (
    COLOURS,
    DASHES,
    FONT_SIZE,
    GREY,
    MARKERS,
    framed,
    rc_style,
)

Row = Mapping[str, Any]
Draw = Callable[[Sequence[Row]], Figure]

FLOOR = 1e-12  # of logarithmic axes; equal numbers stand there
WIDTH = 8.6  # inches
DEPTH = 30  # of biases; a key this far below another has e^-30 of its weight
ROUNDING = 1e-5  # changes in nats below this are of fp32, not of the model
SINK_SCALE = 0.1  # a share that the colours of the first keys reach at least
WRITTEN = 8  # heads up to which the cells of a heat map hold their number


def shift_invariance(rows: Sequence[Row]) -> Figure:
    """Draws the changes of loss, distribution and logits over the shift k."""
    length = rows[0]["settings"]["length"]
    there = [row for row in rows if "skipped" not in row]
    lines = {
        "max_dlogit": "largest |change of a logit|",
        "dnll": "|mean change of the loss| (nats)",
        "kl": "mean KL of the prediction (nats)",
    }
    with rc_style():
        title = f"All positions of {length:,} tokens shifted by k"
        drawn = _framed(rows, title, unit="k", height=4.2)
        axes = drawn.subplots()
        for n, (name, label) in enumerate(lines.items()):
            values = [max(FLOOR, abs(row[name])) for row in there]
            k = [row["k"] for row in there]
            axes.plot(k, values, color=COLOURS[n], marker=MARKERS[n], label=label)
        axes.axhspan(FLOOR / 4, ROUNDING, color="0.93", zorder=0, label="rounding of fp32")
        _over_tokens(axes, sorted(row["k"] for row in rows), rows[0]["train_length"])
        axes.set_yscale("log")
        axes.set_ylim(FLOOR / 4, max(10, *axes.get_ylim()))
        ticks = [10.0**e for e in range(round(math.log10(FLOOR)), 2, 2)]
        axes.set_yticks(ticks, ["0" if tick == FLOOR else f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("shift k (tokens)")
        axes.set_ylabel("change against k = 0")
        _name_lines(axes)
    return drawn


def receptive_field(rows: Sequence[Row]) -> Figure:
    """Draws the share of the gradient that the nearest n tokens have, a line per length."""
    there = [row for row in rows if "skipped" not in row]
    with rc_style():
        title = "What the last prediction's loss depends on"
        drawn = _framed(rows, title, unit="length", height=4.4)
        axes = drawn.subplots()
        for i, row in enumerate(there):
            label = f"{row['length']:,} tokens; 99 % in {row['erf_99']:,}"
            axes.plot(row["n"], row["c"], color=COLOURS[i], linestyle=DASHES[i], label=label)
            axes.plot(row["erf_99"], 0.99, color=COLOURS[i], marker=MARKERS[i], clip_on=False)
        longest = max(row["length"] for row in there)
        T = rows[0]["train_length"]
        _over_tokens(axes, _ticks(T, longest), T)
        axes.axhline(0.99, color="0.6", linewidth=0.8, zorder=1)
        axes.set_ylim(0, 1.02)
        axes.set_yticks(
            [0, 0.25, 0.5, 0.75, 0.9, 0.99], ["0", "0.25", "0.5", "0.75", "0.9", "0.99"]
        )
        axes.set_xlabel("nearest n tokens")
        axes.set_ylabel("their share of the gradients' norms")
        _name_lines(axes)
    return drawn


def attention(rows: Sequence[Row]) -> Figure:
    """Draws a heat map of layers and heads for every measure and length."""
    there = [row for row in rows if "skipped" not in row]
    sinks, queries = (rows[0]["settings"][key] for key in ("sinks", "queries"))
    measures = {
        "distance": "mean distance\n/ length",
        "relative_entropy": "entropy / ln i",
        "sink": f"share of the\nfirst {sinks} keys",
    }
    n_layers, n_heads = np.asarray(there[0]["sink"]).shape
    with rc_style():
        greatest = "ln i: the largest entropy over the i keys that a query sees"
        title = f"Attention of the last {queries} queries; {greatest}"
        height = 1.4 + 3 * max(1.3, 0.3 * n_layers + 0.5)
        drawn = _framed(rows, title, unit="length", height=height)
        grid = drawn.subplots(len(measures), len(there), squeeze=False, sharex=True, sharey=True)
        for (name, label), line in zip(measures.items(), grid, strict=True):
            least = SINK_SCALE if name == "sink" else 0.0
            top = max(least, *(np.max(row[name]) for row in there))
            for axes, row in zip(line, there, strict=True):
                axes.imshow(row[name], cmap="viridis", vmin=0, vmax=top, aspect="auto")
                if n_heads <= WRITTEN:
                    _write_cells(axes, np.asarray(row[name]), top)
            bar = drawn.colorbar(line[0].images[0], ax=list(line), pad=0.02, aspect=12)
            bar.set_label(label)
        T = rows[0]["train_length"]
        for axes, row in zip(grid[0], there, strict=True):
            n = row["length"] // T
            axes.set_title(f"{row['length']:,} tokens ({'T' if n == 1 else f'{n}T'})", fontsize=10)
        for axes in grid[-1]:
            axes.set_xlabel("head")
            axes.set_xticks(range(0, n_heads, 1 + n_heads // 9))
        for axes in grid[:, 0]:
            axes.set_ylabel("layer")
            axes.set_yticks(range(0, n_layers, 1 + n_layers // 13))
    return drawn


def bias(rows: Sequence[Row]) -> Figure:
    """Draws what every head's logits get over the distance, a panel per layer."""
    panels = [
        (f"{row['kind'].replace('_', ' ')}, {where}", row["distances"], layer)
        for row in rows
        for where, layer in _distinct(row["bias"])
    ]
    n_columns = min(2, len(panels))
    n_lines = -(-len(panels) // n_columns)
    n_heads = max(len(layer) for _, _, layer in panels)
    T = rows[0]["train_length"]
    with rc_style():
        title = "What is added to the logits by distance"
        if any(np.ptp(layer) > DEPTH for _, _, layer in panels):
            title += f"; cut {DEPTH} below a panel's highest"
        drawn = _framed(rows, title, height=1.2 + 2.9 * n_lines)
        grid = list(drawn.subplots(n_lines, n_columns, squeeze=False, sharex=True).flat)
        colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, n_heads))
        for axes, (name, distances, layer) in zip(grid, panels, strict=False):
            for head, values in enumerate(layer):
                axes.plot(
                    distances, values, color=colours[head], linewidth=1.5, label=f"head {head}"
                )
            axes.set_xscale("symlog", base=4, linthresh=1, linscale=0.5)
            ticks = [0, *_ticks(T, distances[-1] + 1)]
            if ticks[-1] == 4 * T:
                ticks.remove(2 * T)  # no room for its label
            axes.set_xticks(ticks, [short(tick) for tick in ticks])
            axes.set_xlim(0, distances[-1] + 1)
            axes.minorticks_off()
            axes.set_title(name, fontsize=FONT_SIZE, loc="left")
            axes.set_ylabel("added to the logit")
            low, high = np.min(layer), np.max(layer)
            low = max(low, high - DEPTH)
            pad = 0.04 * (high - low) or 1.0
            axes.set_ylim(low - pad, high + pad)
            _tidy(axes, T, at=T)
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        for axes in grid[: len(panels)][-n_columns:]:
            axes.set_xlabel("distance from the query (tokens)")
            axes.tick_params(labelbottom=True)
        named = slice(None, None, 1 + (n_heads - 1) // 16)
        handles, labels = grid[0].get_legend_handles_labels()
        drawn.legend(handles[named], labels[named], loc="outside right center", frameon=False)
    return drawn


def head_distance(rows: Sequence[Row]) -> Figure:
    """Draws the distance of the attention from that of other runs over the layers."""
    there = [row for row in rows if "skipped" not in row]
    with rc_style():
        T = f"T={rows[0]['train_length']:,}"
        title = f"Distance of attention at {T}: the nearest pair of heads of each layer"
        drawn = _framed(rows, title, unit="other", height=4.2)
        axes = drawn.subplots()
        for i, row in enumerate(there):
            look: dict[str, Any] = {
                "color": COLOURS[i % len(COLOURS)],
                "marker": MARKERS[i % len(MARKERS)],
            }
            axes.plot(range(len(row["distance"])), row["distance"], label=row["other"], **look)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylim(bottom=0)
        axes.set_xlabel("layer")
        axes.set_ylabel("Jensen-Shannon divergence (nats)")
        axes.grid(visible=True, color="0.9", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        _name_lines(axes)
    return drawn


def word_position(rows: Sequence[Row]) -> Figure:
    """Draws the four terms of the first layer's logits, a line per head."""
    n_heads = len(rows[0]["map"])
    T = rows[0]["train_length"]
    with rc_style():
        title = "First layer: the four terms of q.k / sqrt(d), mean over windows"
        drawn = _framed(rows, title, height=1.3 + 1.75 * n_heads)
        grid = drawn.subplots(n_heads, len(rows), squeeze=False, sharex=True, sharey=True)
        for head, line in enumerate(grid):
            maps = [np.array(row["map"][head], dtype=float) for row in rows]
            top = max(float(np.nanmax(np.abs(one))) for one in maps)
            for axes, row, values in zip(line, rows, maps, strict=True):
                axes.imshow(
                    values, cmap="RdBu_r", vmin=-top, vmax=top, extent=(1, T, T, 1), aspect="auto"
                )
                size = f"mean |.| {row['size'][head]:.2g}"
                name = row["term"].replace("_", "-")
                axes.set_title(f"{name}\n{size}" if head == 0 else size, fontsize=FONT_SIZE - 1)
                axes.set_xticks([1, T // 2, T])
                axes.set_yticks([1, T // 2, T])
            line[0].set_ylabel(f"head {head}\nquery position")
            bar = drawn.colorbar(line[0].images[0], ax=list(line), pad=0.02, aspect=10)
            bar.set_label("part of the logit")
        for axes in grid[-1]:
            axes.set_xlabel("key position")
    return drawn


def position(rows: Sequence[Row]) -> Figure:
    """Draws errors over layers, and the reading of every layer over the true position."""
    [row] = rows
    n_states = len(row["error"])
    layers = range(n_states)
    with rc_style():
        drawn = _framed(rows, "Positions read off hidden states by small networks", height=4.4)
        errors, curves = drawn.subplots(1, 2)
        errors.plot(layers, row["error"], color=COLOURS[0], marker="o", label="up to T")
        if row["error_beyond"] is not None:
            label = f"from T to {row['length']:,}"
            errors.plot(layers, row["error_beyond"], color=COLOURS[1], marker="s", label=label)
        errors.axhline(0.25, color=GREY, linestyle=":", label="up to T, if always T/2")
        errors.set_yscale("log")
        low, high = errors.get_ylim()
        ticks = plain_ticks(low, high)
        errors.set_yticks(ticks, [plain(tick) for tick in ticks])
        errors.minorticks_off()
        errors.set_xlabel("layers below")
        errors.set_ylabel("mean absolute error / T")
        errors.xaxis.set_major_locator(MaxNLocator(integer=True))
        errors.grid(visible=True, color="0.9", linewidth=0.8)
        errors.spines[["top", "right"]].set_visible(False)
        colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, n_states))
        for n, predicted in zip(layers, row["predicted"], strict=True):
            curves.plot(row["positions"], predicted, color=colours[n], label=f"{n}")
        end = row["length"] / row["train_length"]
        curves.plot((0, end), (0, end), color=GREY, linestyle=":", label="true")
        curves.set_xticks(range(math.floor(end) + 1))
        _tidy(curves, row["train_length"], at=1)
        curves.set_xlabel("true position / T")
        curves.set_ylabel("mean prediction / T")
        for axes, columns in ((errors, 1), (curves, 1 + n_states // 4)):
            title = "layers below" if axes is curves else None
            axes.legend(
                loc="upper left",
                bbox_to_anchor=(0, -0.16),
                ncols=columns,
                title=title,
                frameon=False,
                fontsize=FONT_SIZE - 1,
            )
    return drawn


def columns(rows: Sequence[Row]) -> Figure:
    """Draws the numbers that all rows of a probe have over the first of them, a panel for each."""
    there = [row for row in rows if "skipped" not in row]
    own = list(there[0])[list(there[0]).index("settings") + 1 :]
    x, *names = [key for key in own if all(isinstance(row[key], (int, float)) for row in there)]
    with rc_style():
        title = rows[0]["probe"].replace("_", " ")
        drawn = _framed(rows, title, unit=x, height=1.2 + 2.4 * len(names))
        for axes, name in zip(drawn.subplots(len(names), squeeze=False).flat, names, strict=True):
            axes.plot([row[x] for row in there], [row[name] for row in there], marker="o")
            axes.set_xlabel(x.replace("_", " "))
            axes.set_ylabel(name.replace("_", " "))
            axes.grid(visible=True, color="0.9", linewidth=0.8)
            axes.spines[["top", "right"]].set_visible(False)
    return drawn


def _framed(rows: Sequence[Row], title: str, *, height: float, unit: str | None = None) -> Figure:
    """Returns an empty figure with its title, whose checkpoint it shows, and what is not there."""
    lines = [title, f"{rows[0]['run']}, {rows[0]['tokens_seen']:,} tokens seen"]
    missing: dict[str, list[str]] = {}
    for row in rows:
        if "skipped" in row and unit:
            value = row[unit]
            missing.setdefault(row["skipped"], []).append(
                f"{value:,}" if isinstance(value, int) else str(value)
            )
    for reason, values in missing.items():
        lines.append(f"n/a at {unit} {', '.join(values)}: {reason}")
    return framed(lines, size=(WIDTH, height))


def _over_tokens(axes: Axes, ticks: Sequence[int], train_length: int) -> None:
    """Gives an axis of tokens these ticks, in powers of two, and marks T."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [short(tick) for tick in ticks])
    axes.minorticks_off()
    _tidy(axes, train_length, at=train_length)


def _tidy(axes: Axes, train_length: int, *, at: float) -> None:
    """Marks T where it is on the axis, and draws a grid."""
    axes.axvline(at, color=GREY, linestyle=(0, (5, 3)), linewidth=1.0, zorder=1)
    axes.annotate(
        f"T={train_length:,}",
        (at, 1),
        xycoords=axes.get_xaxis_transform(),
        xytext=(0, 2),
        textcoords="offset points",
        horizontalalignment="center",
        color=GREY,
        fontsize=FONT_SIZE - 1,
    )
    axes.grid(visible=True, color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _ticks(train_length: int, longest: int) -> list[int]:
    """Returns 1, 4, 16 ... up to T/4, then T and its doublings."""
    below = [4**e for e in range(12) if 4 ** (e + 1) <= train_length]
    return [*below, *(n * train_length for n in (1, 2, 4) if n * train_length <= longest)]


def _name_lines(axes: Axes) -> None:
    """Names the lines next to the axes, where no line runs."""
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def _write_cells(axes: Axes, values: np.ndarray[Any, Any], top: float) -> None:
    """Writes every cell's number, dark on bright and bright on dark."""
    for (layer, head), value in np.ndenumerate(values):
        colour = "black" if value > 0.6 * top else "white"
        axes.text(
            head,
            layer,
            f"{value:.{2 if np.max(values) >= 0.1 else 3}f}",
            color=colour,
            fontsize=FONT_SIZE - 2,
            horizontalalignment="center",
            verticalalignment="center",
        )


def _distinct(layers: Sequence[Any]) -> list[tuple[str, Any]]:
    """Returns what layers add, with their numbers; layers that add the same stand together."""
    groups: list[tuple[list[int], Any]] = []
    for n, layer in enumerate(layers):
        if layer is None:
            continue
        same = next((group for group in groups if group[1] == layer), None)
        if same:
            same[0].append(n)
        else:
            groups.append(([n], layer))
    if len(groups) == 1 and len(groups[0][0]) == len(layers) > 1:
        return [("all layers", groups[0][1])]
    return [
        (f"layer{'s' * (len(ns) > 1)} {', '.join(map(str, ns))}", layer) for ns, layer in groups
    ]
