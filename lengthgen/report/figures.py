# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
"""The figures of runs on text, each a function of the data frame `findings` (results.statistics).

None of them needs a legend: lines are named at their ends. A figure is None where nothing of what
it shows was evaluated.
"""

import math
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure

from lengthgen import escaping
from lengthgen.data.windows import position_bins
from lengthgen.evaluation.protocols import HEADLINE
from lengthgen.report.series import short
from lengthgen.report.style import (
    DASHES,
    FONT_SIZE,
    GREY,
    MAX_LINES,
    LineEnd,
    label_ends,
    length_axis,
    log_axis,
    new_figure,
    scheme_colours,
    styled,
)

COLUMNS = 5  # of small multiples
FAILED = 300  # times the least perplexity: a line may leave the axis above
LINEAR = 0.1  # nats up to which the axis of gains is about linear; logarithmic beyond
EXCESS_LINEAR = 0.5  # the same of the colours of the heat map
FACTS = ["series", "scheme", "variant", "reference", "train_length"]

Style = Mapping[str, Any]
Log = tuple[str, str, Sequence[Mapping[str, Any]]]  # series, scheme and rows of train.jsonl


@styled()
def curve(findings: pd.DataFrame, *, title: str = "") -> Figure | None:
    """Draws perplexity over context length; a panel for each train length."""
    rows = _finite(findings, "loss")
    rows = rows[rows.groupby("series")["length"].transform("size") > 1]
    if rows.empty:
        return None
    rows = rows.assign(value=np.exp(rows["value"].clip(upper=80)), low=math.nan, high=math.nan)
    least = rows["value"].min()
    most = min(rows["value"].max(), FAILED * least)

    def scale(axes: Axes) -> None:
        axes.set_ylim(least / 1.1, most * 1.1)
        log_axis(axes)

    protocol = str(findings["protocol"].iloc[0])
    what = "of the same tokens, by how much context they have"
    what = what if protocol == HEADLINE else f"under the protocol {protocol}"
    variants = sorted(set(rows.loc[rows["reference"], "variant"].dropna()))
    note = f"; dashed: with {', '.join(variants)}" if variants else ""
    title = title or f"Perplexity {what}{note}"
    return _over_length(rows, title=title, unit="perplexity", scale=scale)


@styled()
def gain(findings: pd.DataFrame) -> Figure | None:
    """Draws the gain loss(T) - loss(C) over lengths C from T on, with paired 95 % bands."""
    rows = _finite(findings, "gain")
    rows = rows[~rows["reference"] & (rows["length"] > rows["train_length"])]
    if rows.empty:
        return None
    at_T = rows.drop_duplicates("series").assign(value=0.0, low=0.0, high=0.0)
    rows = pd.concat([at_T.assign(length=at_T["train_length"]), rows])
    low = min(-LINEAR, rows[["value", "low"]].min(axis=None))
    high = max(LINEAR, rows[["value", "high"]].max(axis=None))

    def scale(axes: Axes) -> None:
        if max(-low, high) > 4 * LINEAR:
            axes.set_yscale("asinh", linear_width=LINEAR)
            sizes = [digit * 10.0**e for e in range(-1, 3) for digit in (1, 3)]
            axes.set_yticks([*(-size for size in reversed(sizes)), 0.0, *sizes])
        axes.set_ylim(1.15 * low, 1.15 * high)
        axes.yaxis.set_major_formatter(lambda nats, _: f"{nats:+.3g}" if nats else "0")
        axes.minorticks_off()
        axes.axhline(0, color=GREY, linewidth=0.8, zorder=1)

    title = "Gain from context beyond T: loss(T) - loss(C), with 95 % bands of paired differences"
    return _over_length(rows, title=title, unit="nats per token; above 0 it helps", scale=scale)


@styled()
def excess(findings: pd.DataFrame) -> Figure | None:
    """Draws loss minus the least loss at T as a heat map of series and lengths.

    The best stands first: at the longest length that four in five of the series have.
    """
    rows = _finite(findings, "loss")
    rows = rows[~rows["reference"]]
    at_T = rows[rows["length"] == rows["train_length"]].groupby("train_length")["value"].min()
    rows = rows.assign(value=rows["value"] - rows["train_length"].map(at_T))
    table = rows.pivot_table(index="series", columns="length", values="value")
    if table.empty:
        return None
    common = max((n for n in table if table[n].notna().mean() >= 0.8), default=table.columns[-1])
    table = table.sort_values([common, *reversed(table.columns)])
    cells, lengths = table.to_numpy(), [*table.columns]
    top = max(EXCESS_LINEAR, float(np.nanmax(cells)))
    norm = SymLogNorm(EXCESS_LINEAR, vmin=-top, vmax=top)
    title = "Loss minus the least loss at T, nats per token; right of the line, context beyond T"
    title += "; grey: not evaluated" if np.isnan(cells).any() else ""
    drawn = new_figure(title, height=1.2 + 0.24 * len(table))
    axes = drawn.subplots()
    axes.set_facecolor("0.85")  # of what was not evaluated
    axes.imshow(np.ma.masked_invalid(cells), cmap="PuOr_r", norm=norm, aspect="auto")
    for (row, column), value in np.ndenumerate(cells):
        if not math.isnan(value):
            colour = "white" if abs(float(norm(value)) - 0.5) > 0.35 else "black"
            place: Style = {"ha": "center", "va": "center", "fontsize": FONT_SIZE - 3}
            axes.text(column, row, f"{value:+.2f}", color=colour, **place)
    axes.set_xticks(range(len(lengths)), [short(n) for n in lengths])
    names = [escaping.visible(name) for name in table.index]
    axes.set_yticks(range(len(table)), names, fontsize=FONT_SIZE - 2)
    for T in at_T.index:
        axes.axvline(lengths.index(T) + 0.5, color="black", linewidth=1.0)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("context length in tokens")
    return drawn


@styled()
def ranking(findings: pd.DataFrame) -> Figure | None:
    """Draws the loss at the longest length minus that of the best, with paired 95 % intervals.

    At the right are the ranks that a series may have, all compared jointly; a hollow dot is the
    best. None without three series.
    """
    behind = _finite(findings, "behind")
    behind = behind[behind["length"] == behind["length"].max()].sort_values("value")
    if len(behind) < 3:
        return None
    longest, best = behind[["length", "series"]].iloc[0]
    ranks = findings[(findings["quantity"] == "rank") & (findings["length"] == longest)]
    possible = {
        name: " to ".join(dict.fromkeys((f"{low:.0f}", f"{high:.0f}")))
        for name, low, high in ranks[["series", "low", "high"]].itertuples(index=False)
    }
    styles = line_styles(behind)
    right = "; right: possible ranks, compared jointly" if possible else ""
    title = f"Loss at {short(longest)} tokens minus that of {best}, paired 95 % intervals{right}"
    drawn = new_figure(title, height=1.1 + 0.24 * len(behind))
    axes = drawn.subplots()
    axes.axvline(0, color=GREY, linewidth=0.8, zorder=1)
    for row, line in enumerate(behind.itertuples()):
        colour = styles[line.series]["color"]
        face = "white" if row == 0 else colour
        axes.plot([line.low, line.high], [row, row], color=colour, linewidth=1.4)
        axes.plot(line.value, row, "o", color=colour, markersize=5.5, markerfacecolor=face)
        place: Style = {"va": "center", "fontsize": FONT_SIZE - 2, "color": GREY}
        text = possible.get(line.series, "")
        axes.text(1.01, row, text, transform=axes.get_yaxis_transform(), **place)
    names = [escaping.visible(name) for name in behind["series"]]
    axes.set_yticks(range(len(behind)), names, fontsize=FONT_SIZE - 2)
    axes.set_ylim(len(behind) - 0.5, -0.5)
    axes.set_xlabel("nats per token; further right is worse")
    return drawn


@styled()
def positions(rows: pd.DataFrame) -> Figure | None:
    """Draws the loss at each position of one long window, averaged over quarter octaves.

    `rows` are those of a Selection. The mean over seeds, from position T/32 on: those before know
    no context. None if no row holds sums by position.
    """
    scored = rows[rows["position_nats"].notna()]
    means: list[dict[str, Any]] = []
    for _, of_run in scored.groupby(["series", "run"]):
        of_run = of_run[of_run["length"] == of_run["length"].max()]
        facts = of_run[[*FACTS, "length"]].iloc[0].to_dict()
        T, longest = facts["train_length"], facts["length"]
        edges = position_bins(T, longest)  # the last position of each bin
        octaves = np.arange(-20, 4 * math.floor(math.log2(longest / T)) + 1) / 4
        ends = np.unique(np.searchsorted(edges, np.maximum(1, np.floor(T * 2.0**octaves))))
        nats, tokens = (
            np.diff(np.sum(of_run[f"position_{unit}"].tolist(), axis=0).cumsum()[ends])
            for unit in ("nats", "tokens")
        )
        losses = zip(edges[ends[1:]].tolist(), (nats / tokens).tolist(), strict=True)
        means += [{**facts, "length": position, "value": loss} for position, loss in losses]
    if not means:
        return None
    table = pd.DataFrame(means).groupby([*FACTS, "length"], dropna=False, as_index=False)["value"]
    lines = table.mean().assign(low=math.nan, high=math.nan)
    least = lines["value"].min()
    most = min(lines["value"].max(), least + math.log(FAILED))

    def scale(axes: Axes) -> None:
        axes.set_ylim(least - 0.1, most + 0.1)

    title = "Loss at each position of one long window, averaged over quarter octaves"
    unit, axis = "loss in nats per token", "position in the window, in tokens"
    return _over_length(lines, title=title, unit=unit, scale=scale, axis=axis)


@styled()
def training(logs: Sequence[Log]) -> Figure | None:
    """Draws the loss in training over the tokens seen, averaged over 2 % of the steps.

    Seeds of a series have its colour, and its name stands at the end of the first.
    """
    logs = [log for log in logs if log[2]]
    if not logs:
        return None
    colours = scheme_colours(scheme for _, scheme, _ in logs)
    drawn = new_figure("Loss in training, averaged over 2 % of the steps", height=3.6)
    axes = drawn.subplots()
    ends: dict[str, LineEnd] = {}
    for series, scheme, rows in logs:
        parts = np.array_split(np.arange(len(rows)), min(50, len(rows)))
        seen = [rows[part[-1]]["train/tokens"] / 1e6 for part in parts]
        losses = [fmean(rows[i]["train/loss"] for i in part) for part in parts]
        axes.plot(seen, losses, color=colours[scheme], linewidth=1.2)
        ends.setdefault(series, LineEnd(losses[-1], series, colours[scheme]))
    axes.set_xlim(0, axes.dataLim.x1)
    axes.set_ylim(axes.dataLim.y0 - 0.1, axes.dataLim.y1 + 0.1)
    label_ends(axes, [*ends.values()])
    axes.set_xlabel("million tokens seen")
    axes.set_ylabel("loss in nats per token")
    return drawn


def _finite(findings: pd.DataFrame, quantity: str) -> pd.DataFrame:
    rows = findings[(findings["quantity"] == quantity) & np.isfinite(findings["value"])]
    return rows.sort_values(["series", "length"])


def _over_length(
    rows: pd.DataFrame,
    *,
    title: str,
    unit: str,
    scale: Callable[[Axes], None],
    axis: str = "context length in tokens",
) -> Figure:
    """Draws lines over length: a panel for each train length, or small multiples of many lines.

    A band is drawn from low to high where there are any. `scale` sets limits and ticks of y.
    """
    panels = [panel for _, panel in rows.groupby("train_length")]
    shown = [panel.loc[~panel["reference"], "series"].nunique() for panel in panels]
    if max(shown) > MAX_LINES:
        return _small_multiples(rows, title=title, unit=unit, scale=scale, axis=axis)
    columns = min(2, len(panels))
    n_rows = math.ceil(len(panels) / columns)
    drawn = new_figure(title, width=8.0 if columns == 1 else 11.0, height=0.5 + 3.9 * n_rows)
    grid = drawn.subplots(n_rows, columns, squeeze=False, sharey=True)
    styles = line_styles(rows)
    for axes, panel in zip(grid.ravel(), panels, strict=False):
        T, longest = panel["train_length"].iloc[0], panel["length"].max()
        ends: list[LineEnd] = []
        for name, line in panel.groupby("series"):
            _plot(axes, line, styles[name])
            last = line.iloc[-1]
            if not last["reference"]:
                text = str(name).replace(f" (T={T})", "").replace(f"(T={T}, ", "(")
                text += f" (to {short(last['length'])})" if last["length"] < longest else ""
                ends.append(LineEnd(last["value"], text, styles[name]["color"]))
        scale(axes)
        length_axis(axes, _ticks(panel), trained=T)
        label_ends(axes, ends)
        axes.set_xlabel(axis)
        if len(panels) > 1:
            axes.set_title(f"trained on {short(T)} tokens", loc="left", fontsize=FONT_SIZE)
    for axes in grid.ravel()[len(panels) :]:
        axes.set_axis_off()
    for axes in grid[:, 0]:
        axes.set_ylabel(unit)
    return drawn


def _small_multiples(
    rows: pd.DataFrame, *, title: str, unit: str, scale: Callable[[Axes], None], axis: str
) -> Figure:
    """Draws a small pair of axes for each line, the others in light grey; the least end first."""
    styles = line_styles(rows)
    own = rows[~rows["reference"]]
    last = own.drop_duplicates("series", keep="last")
    names = last.sort_values(["length", "value"], ascending=[False, True])["series"].tolist()
    references = [line for _, line in rows[rows["reference"]].groupby("series")]
    n_rows = math.ceil(len(names) / COLUMNS)
    drawn = new_figure(title, width=10.0, height=0.8 + 1.6 * n_rows)
    grid = drawn.subplots(n_rows, COLUMNS, squeeze=False, sharex=True, sharey=True).ravel()
    for i, (axes, name) in enumerate(zip(grid, names, strict=False)):
        for _, other in own.groupby("series"):
            axes.plot(other["length"], other["value"], color="0.86", linewidth=0.6)
        for reference in references if len(references) <= 2 else ():
            _plot(axes, reference, styles[reference["series"].iloc[0]])
        line = own[own["series"] == name]
        _plot(axes, line, {**styles[name], "linestyle": "-"})
        scale(axes)
        length_axis(axes, _ticks(rows), trained=line["train_length"].iloc[0], named=False)
        axes.tick_params(labelsize=FONT_SIZE - 3, labelbottom=i >= len(names) - COLUMNS)
        text = textwrap.fill(escaping.visible(name), 26)
        axes.set_title(text, fontsize=FONT_SIZE - 2, loc="left", pad=3)
    for axes in grid[len(names) :]:
        axes.set_axis_off()
    drawn.supylabel(unit, fontsize=FONT_SIZE)
    drawn.supxlabel(axis, fontsize=FONT_SIZE)
    return drawn


def _plot(axes: Axes, line: pd.DataFrame, style: Style) -> None:
    """Draws a line, and the band from low to high if it has one."""
    axes.plot(line["length"], line["value"], **style)
    if line["low"].notna().any():
        band: Style = {"color": style["color"], "alpha": 0.15, "linewidth": 0}
        axes.fill_between(line["length"], line["low"], line["high"], **band)


def _ticks(rows: pd.DataFrame) -> list[float]:
    """Returns the lengths of lines; of many positions, T and its doublings and halvings."""
    lengths = sorted(set(rows["length"]))
    if len(lengths) <= 16:
        return lengths
    T = rows["train_length"].iloc[0]
    return [T * 2.0**n for n in range(-9, 20) if lengths[0] <= T * 2.0**n <= lengths[-1]]


def line_styles(rows: pd.DataFrame) -> Mapping[str, Style]:
    """Returns the drawing arguments of each series: its scheme's colour, dashes for a second one.

    Series of a single scheme have a colour each. A reference is a thin grey line.
    """
    lines = rows.drop_duplicates("series")
    shown = lines[~lines["reference"]]
    keys = shown["series"] if shown["scheme"].nunique() == 1 else shown["scheme"]
    colours = scheme_colours(keys)
    thin: Style = {"color": "0.6", "linewidth": 0.8, "linestyle": (0, (3, 2))}
    styles = {str(name): thin for name in lines["series"]}
    drawn = Counter[tuple[str, int]]()  # by colour and train length, as panels are
    for name, key, T in zip(shown["series"], keys, shown["train_length"], strict=True):
        dashes = DASHES[drawn[key, T] % len(DASHES)]
        drawn[key, T] += 1
        styles[name] = {"color": colours[key], "linewidth": 1.8, "linestyle": dashes}
    return styles
