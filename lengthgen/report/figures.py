"""The figures of runs on text; a figure is None where nothing of what it shows was evaluated.

None of them needs a legend: lines are named at their ends.
"""

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lengthgen import escaping
from lengthgen.data.windows import position_bins
from lengthgen.evaluation.protocols import HEADLINE
from lengthgen.report import interactive, style
from lengthgen.report.series import short
from lengthgen.report.statistics import shown_number
from lengthgen.report.style import FONT_SIZE, GREY, LineEnd, styled

ABREAST = 3  # of small multiples
OFF_SCALE = 300  # times the least perplexity: a line may leave the axis above
LINEAR = 0.1  # nats up to which the axis of gains is about linear; logarithmic beyond
LINE = ["series", "scheme", "variant", "reference", "train_length"]
LAST_T = "last T tokens"
PANELS: Mapping[str, Callable[[float], str]] = {
    "train_length": lambda T: f"trained on {short(T)} tokens",
    "times_T": lambda n: f"at {n:g}T",
}
ROOM = 40  # characters beside a line that a panel has room for
NARROW = 5.6  # inches of a figure that a phone shows whole
NO_BAND: Mapping[str, Any] = {"low": math.nan, "high": math.nan}

Style = Mapping[str, Any]
Colours = Mapping[str, str]  # by series, in the order of the tables
Scale = Callable[[Axes], None]  # sets limits and ticks of y


class Across(NamedTuple):
    """What lines lie over: the name of the axis, and how it is drawn."""

    name: str
    draw: Callable[[Axes, pd.DataFrame, float | None], None]  # of lines; T where it has no name
    format_end: Callable[[float], str] | None = None  # of the place where a line ends early
    marker: str = ""  # of each value


def _draw_lengths(axes: Axes, rows: pd.DataFrame, unnamed: float | None) -> None:
    lengths, T = sorted(set(rows["length"])), unnamed or rows["train_length"].iloc[0]
    if len(lengths) > 16:  # positions
        lengths = [T * 2.0**n for n in range(-9, 20) if lengths[0] <= T * 2.0**n <= lengths[-1]]
    style.length_axis(axes, lengths, trained=T, name="" if unnamed else "trained")


OVER_LENGTH = Across("context length in tokens", _draw_lengths, short)


@styled()
def curve(
    findings: pd.DataFrame,
    *,
    title: str = "",
    width: float = style.WIDTH,
    colours: Colours | None = None,
    each: bool = False,
) -> Figure | None:
    """Draws perplexity over context length; references are thin, in the colour of their scheme.

    `width`, in inches, is that of a single panel. `colours`, here and below: those of series in all
    figures of a report. `each`: of many series in small multiples, None of few.
    """
    rows = _finite(findings, "loss")
    rows = rows[rows.groupby("series")["length"].transform("size") > 1]
    if each and not is_many(rows):
        return None
    rows = _drawn(rows)
    ppl: Any = np.exp(rows[["value", "low", "high"]].clip(upper=80))
    rows = rows.assign(**ppl)
    least, most = rows["value"].min(), rows["value"].max()

    def scale(axes: Axes) -> None:
        axes.set_ylim(least / 1.1, min(most, OFF_SCALE * least) * 1.1)
        style.log_axis(axes)

    name = findings["protocol"].iloc[0]
    what = "by context length, on the same tokens" if name == HEADLINE else f"under {name}"
    variants = sorted(set(rows.loc[rows["reference"], "variant"]) - {LAST_T})
    what += "; dotted: last T tokens only" * bool((rows["variant"] == LAST_T).any())
    what += f"; dashed: {', '.join(variants)}" if variants else ""
    title = title or f"Perplexity {what}"
    look: Any = {"width": width, "colours": colours, "each": each, "bands": False}
    return draw_lines(rows, scale, title, unit="perplexity", **look)


@styled()
def dots(
    findings: pd.DataFrame, lengths: Mapping[str, int], last: int, *, colours: Colours
) -> Figure | None:
    """Draws perplexity at T and at the length `last` of many series, as the tables are sorted.

    `lengths`: T of each series. A value beyond OFF_SCALE times the least is written at the edge.
    None of few series, whose lines can be distinguished.
    """
    losses = _finite(findings, "loss")
    losses = losses[~losses["reference"]].set_index(["series", "length"])["value"]
    ppl: dict[Any, float] = losses.clip(upper=80).map(math.exp).to_dict()
    names = [name for name in colours if (name, last) in ppl and last > lengths.get(name, last)]
    if len(names) <= style.MAX_LINES:
        return None
    at_T = {name: ppl.get((name, lengths[name]), math.nan) for name in names}
    shown = [*(ppl[name, last] for name in names), *at_T.values()]
    least = np.nanmin(shown)
    edge = min(np.nanmax(shown), OFF_SCALE * least)
    title = f"Perplexity at T (open) and at {short(last)} (filled), sorted by the latter"
    drawn = style.new_figure(title, width=NARROW, height=0.7 + 0.23 * len(names))
    axes = drawn.subplots()
    for y, name in enumerate(names):
        start, end = at_T[name], min(ppl[name, last], edge)
        look: Any = {"color": colours[name]}
        axes.plot([start, end], [y, y], linewidth=1.2, **look)
        axes.plot(start, y, "o", markersize=5, markerfacecolor="white", **look)
        axes.plot(end, y, "o" if end == ppl[name, last] else ">", markersize=6, **look)
        place: dict[str, Any] = {"va": "center", "size": FONT_SIZE - 1.5, **look}
        text = shown_number(ppl[name, last])
        axes.text(1.02, y, text, transform=axes.get_yaxis_transform(), **place)
    axes.set_xlim(least / 1.2, edge * 1.2)
    style.log_axis(axes, "x")
    names = [textwrap.shorten(escaping.visible(name), ROOM, placeholder="...") for name in names]
    axes.set_yticks(range(len(names)), names, fontsize=FONT_SIZE - 1)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", color="0.92", zorder=0)
    axes.set_axisbelow(True)
    drawn.supxlabel("perplexity", fontsize=FONT_SIZE)
    return drawn


def cropped(findings: pd.DataFrame, bases: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Returns the losses of each series if it reads the last T tokens only, as references.

    Under the matched tail that is the loss at T, on the same targets, at every length beyond T. Of
    a variant it is that of its base, the model without it, from which its gain counts.
    """
    losses = findings[(findings["quantity"] == "loss") & ~findings["reference"]]
    at_T = losses[losses["length"] == losses["train_length"]].set_index("series")["value"]
    crops = losses[losses["length"] >= losses["train_length"]]
    base = crops["series"].replace(dict(bases or {}))
    crops = crops.assign(value=base.map(at_T).astype(float), **NO_BAND).dropna(subset="value")
    return crops.assign(series=crops["series"] + f", {LAST_T}", variant=LAST_T, reference=True)


@styled()
def gain(findings: pd.DataFrame, *, colours: Colours | None = None) -> Figure | None:
    """Draws the gain loss(T) - loss(C) over lengths C from T on, with paired 95 % bands.

    At T it is 0, but of a variant what was measured.
    """
    rows = _finite(findings, "gain")
    rows = rows[~rows["reference"] & (rows["length"] >= rows["train_length"])]
    rows = rows[rows.groupby("series")["length"].transform("max") > rows["train_length"]]
    at_T = rows[rows["variant"].isna()].drop_duplicates("series")
    at_T = at_T.assign(value=0.0, low=0.0, high=0.0)
    rows = pd.concat([at_T.assign(length=at_T["train_length"]), rows])
    scale, unit = gain_scale(rows)
    title = "Gain from context beyond T: loss(T) - loss(C), with 95 % bands of paired differences"
    return draw_lines(rows, scale, title, unit=unit, colours=colours)


def gain_scale(rows: pd.DataFrame) -> tuple[Scale, str]:
    """Returns the axis of gains, and its unit."""
    low = min(-LINEAR, float(rows[["value", "low"]].min().min()))
    high = max(LINEAR, float(rows[["value", "high"]].max().max()))
    is_wide, unit = max(-low, high) > 4 * LINEAR, "nats per token; above 0 it helps"
    sizes = [digit * 10.0**e for e in range(-1, 3) for digit in (1, 3)]
    if is_wide:  # to the next tick, so that the lowest and the highest values lie between two
        unit = f"nats per token, logarithmic beyond {LINEAR}; above 0 it helps"
        low, high = (min((s for s in sizes if s >= most), default=most) for most in (-low, high))
        low = -low

    def scale(axes: Axes) -> None:
        if is_wide:
            axes.set_yscale("asinh", linear_width=LINEAR)
            axes.set_yticks([*(-size for size in reversed(sizes)), 0.0, *sizes])
        axes.set_ylim(1.15 * low, 1.15 * high)
        axes.yaxis.set_major_formatter(lambda nats, _: f"{nats:+.3g}" if nats else "0")
        axes.minorticks_off()
        axes.axhline(0, color=GREY, linewidth=0.8, zorder=1)

    return scale, unit


@styled()
def positions(rows: pd.DataFrame, *, colours: Colours | None = None) -> Figure | None:
    """Draws the loss at each position of one long window, averaged over quarter octaves.

    `rows` are those of a Selection. The mean over seeds, from position T/32 on: those before know
    no context.
    """
    rows = rows[rows["position_nats"].notna()]
    rows = rows[rows["length"] == rows.groupby(["series", "run"])["length"].transform("max")]
    if rows.empty:
        return None
    ends: list[Any] = [
        position_bins(*at) for at in zip(rows["train_length"], rows["length"], strict=True)
    ]
    lists = ["length", "position_nats", "position_tokens"]  # length: the last position of a bin
    bins = rows.assign(length=ends).explode(lists).astype(dict.fromkeys(lists, float))
    bins["octave"] = np.ceil(4 * np.log2(bins["length"] / bins["train_length"]))
    by_octave = bins[bins["octave"] >= -20].groupby([*LINE, "octave", "run"], dropna=False)
    sums = by_octave.agg({"position_nats": "sum", "position_tokens": "sum", "length": "max"})
    sums["value"] = sums["position_nats"] / sums["position_tokens"]
    by_line = sums.groupby([*LINE, "length"], dropna=False)["value"].mean()
    means = _drawn(by_line.reset_index())
    least, most = means["value"].min(), means["value"].max()

    def scale(axes: Axes) -> None:
        axes.set_ylim(least - 0.1, min(most, least + math.log(OFF_SCALE)) + 0.1)

    title = "Loss at each position of one long window, averaged over quarter octaves"
    across = OVER_LENGTH._replace(name="position in the window, in tokens")
    unit = "loss in nats per token"
    means = means.assign(**NO_BAND)
    return draw_lines(means, scale, title, unit=unit, across=across, colours=colours)


def _finite(findings: pd.DataFrame, quantity: str) -> pd.DataFrame:
    rows = findings[(findings["quantity"] == quantity) & np.isfinite(findings["value"])]
    return rows.sort_values(["series", "length"])


def is_many(rows: pd.DataFrame, by: str = "train_length") -> bool:
    """True if there are more lines than an axes can name."""
    plain = rows[~rows["reference"]]
    return bool(plain.groupby(by)["series"].nunique().max() > style.MAX_LINES)


def _drawn(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows without the variants for reference where there are many lines."""
    return rows.loc[~rows["reference"] | (rows["variant"] == LAST_T) | (not is_many(rows))]


def draw_lines(
    rows: pd.DataFrame,
    scale: Scale,
    title: str,
    *,
    unit: str,
    across: Across = OVER_LENGTH,
    by: str = "train_length",
    width: float = style.WIDTH,
    colours: Colours | None,
    each: bool = True,
    bands: bool = True,
) -> Figure | None:
    """Draws lines over the column `length`: a panel for each value of `by`, or small multiples.

    Those are of many lines; with `each` false their first MAX_LINES are named, the others grey.
    `bands`: from low to high, where there are any.
    """
    if rows.empty:
        return None
    plain = rows[~rows["reference"]]
    last = plain.drop_duplicates("series", keep="last").sort_values("value")
    order = [name for name in colours or last["series"] if name in {*last["series"]}]
    every, grey = rows, plain.iloc[:0]
    if is_small := each and is_many(rows, by):
        panels = {name: rows[rows["series"].isin([name, f"{name}, {LAST_T}"])] for name in order}
        grey = plain
        title += "; grey: the others"
    else:
        if is_many(rows, by):
            grey = plain[plain["series"].isin(order[style.MAX_LINES :])]
            named = order[: style.MAX_LINES]
            rows = rows[rows["series"].isin([*named, *(f"{name}, {LAST_T}" for name in named)])]
            title += f"; grey: the other {len(order) - len(named)}"
        panels = {PANELS[by](value): rows[rows[by] == value] for value in sorted({*rows[by]})}
    columns = ABREAST if is_small else min(2, len(panels))
    n_rows = math.ceil(len(panels) / columns)
    width, height = (NARROW, 1.4) if is_small else (width if columns == 1 else 11.0, 3.9)
    if not is_small:  # names are beside the lines
        width += 0.075 * columns * max(0, plain["series"].map(len).max() - ROOM)
    drawn = style.new_figure(title, width=width, height=0.6 + height * n_rows)
    grid = drawn.subplots(n_rows, columns, squeeze=False, sharex=is_small, sharey=True).ravel()
    styles = line_styles(every, series_colours(every) if colours is None else colours)
    for i, (axes, (name, panel)) in enumerate(zip(grid, panels.items(), strict=False)):
        for _, other in grey.groupby("series"):
            axes.plot(other["length"], other["value"], color="0.75", linewidth=0.8)
        for series in sorted({*panel["series"]}):
            line = panel[panel["series"] == series]
            solid = {"linestyle": "-"} if is_small and series == name else {}
            dot = {"marker": "." if len(line) == 1 else across.marker}
            _plot(axes, line, {**styles[series], **solid, **dot}, alpha=0.15 * bands)
        scale(axes)
        shown = rows if is_small else panel
        across.draw(axes, shown, panel["train_length"].iloc[0] if is_small else None)
        if is_small:
            axes.tick_params(labelsize=FONT_SIZE - 2, labelbottom=i >= len(panels) - ABREAST)
            name = textwrap.fill(escaping.visible(name), 26)
        else:
            style.label_ends(axes, _ends(panel, styles, across.format_end))
            T = panel["train_length"].iloc[0] if across.draw is _draw_lengths else None
            look: Any = {
                **{"names": (across.name, unit), "write_x": across.format_end or "{:.3f}".format},
                **{"trained": T, "bands": bands},
            }
            of_panel = every[every[by] == panel[by].iloc[0]]
            drawn.charts.append(interactive.chart(axes, of_panel, order, styles, **look))
        if len(panels) > 1:
            axes.set_title(name, loc="left", fontsize=FONT_SIZE - is_small, pad=3)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    drawn.supylabel(textwrap.fill(unit, 44), fontsize=FONT_SIZE)
    drawn.supxlabel(across.name, fontsize=FONT_SIZE)
    return drawn


def draw_shares(
    rows: pd.DataFrame,
    styles: Mapping[str, Style],
    title: str,
    *,
    across: str,
    trained: float,
    height: float = 4.4,
) -> Figure:
    """Draws shares of 1 by length in these styles; of a few series with bands.

    `trained`: up to where the axis is shaded. References have no band, and a name at their end only
    if they are of no scheme.
    """
    drawn = style.new_figure(title, height=height)
    axes, plain = drawn.subplots(), rows[~rows["reference"]]
    axes.set_ylim(-0.03, 1.1)  # room for the word above 100%
    style.length_axis(axes, rows["length"], trained=trained)
    bands = plain["series"].nunique() <= style.MAX_LINES  # of more they would cover the lines
    for series in rows["series"].unique():
        line = rows[rows["series"] == series]
        is_own = not line["reference"].iloc[0]
        marked = {"marker": "o" * is_own, "markersize": 3}
        _plot(axes, line, {**styles[series], **marked}, alpha=0.12 * (bands and is_own))
    axes.set_yticks([n / 4 for n in range(5)], [f"{25 * n}%" for n in range(5)])
    axes.set_xlabel(across)
    last = rows[~rows["reference"] | (rows["scheme"] == "")].drop_duplicates("series", keep="last")
    ends = zip(last["value"], last["series"], strict=True)
    style.label_ends(axes, [LineEnd(*end, styles[end[1]]["color"]) for end in ends])
    order = last.sort_values("value", ascending=False)["series"].tolist()
    words: Any = {"names": (across, "share"), "write_x": short, "write": "{:.1%}".format}
    look: Any = {"trained": trained, "bands": bands}
    rows = rows.assign(train_length=trained)
    rows.loc[rows["reference"], ["low", "high"]] = math.nan
    drawn.charts.append(interactive.chart(axes, rows, order, styles, **words, **look))
    return drawn


def _plot(axes: Axes, line: pd.DataFrame, look: Style, *, alpha: float) -> None:
    """Draws a line, and unless alpha is 0 its band from low to high."""
    axes.plot(line["length"], line["value"], **look)
    if alpha:
        band: Any = {"color": look["color"], "alpha": alpha, "linewidth": 0}
        axes.fill_between(line["length"], line["low"], line["high"], **band)


def _ends(
    panel: pd.DataFrame, styles: Mapping[str, Style], format_end: Callable[[float], str] | None
) -> list[LineEnd]:
    """Returns the names of lines without T, which the panel has, and where a line ends early."""
    ends: list[LineEnd] = []
    each: Any = panel[~panel["reference"]].drop_duplicates("series", keep="last")
    for last in each.itertuples():
        T = f"T={last.train_length}"
        text = last.series.replace(f" ({T})", "").replace(f"({T}, ", "(")
        if format_end and last.length < panel["length"].max():
            text += f" (to {format_end(last.length)})"
        ends.append(LineEnd(last.value, text, styles[last.series]["color"]))
    return ends


def series_colours(
    rows: pd.DataFrame, schemes: Iterable[str] = (), bases: Mapping[str, str] | None = None
) -> Colours:
    """Returns the colours of series: of their schemes among `schemes`, which are all of a report.

    Series of a single scheme have a colour each; a reference that of its base, and of its scheme.
    """
    lines = rows.drop_duplicates("series")
    names = {*schemes} or {*lines["scheme"]}
    plain = lines.loc[~lines["reference"], "series"]
    known, base = style.scheme_colours(plain if len(names) == 1 else names), bases or {}
    return {
        name: next((known[key] for key in (name, base.get(name), scheme) if key in known), GREY)
        for name, scheme in zip(lines["series"], lines["scheme"], strict=True)
    }


def line_styles(rows: pd.DataFrame, colours: Colours) -> Mapping[str, Style]:
    """Returns the drawing arguments of each series: dashes tell those of one colour apart.

    A reference is thin: dotted for the last T tokens only, dashed for a variant.
    """
    lines: Any = rows.drop_duplicates("series")
    styles: dict[str, Style] = {}
    for line in lines[lines["reference"]].itertuples():
        dashes = (0, (1, 1.5)) if line.variant == LAST_T else (0, (3, 2))
        colour = colours.get(line.series.removesuffix(f", {LAST_T}"), GREY)
        styles[line.series] = {"color": colour, "linewidth": 0.9, "linestyle": dashes}
    plain = lines[~lines["reference"]]
    plain = plain.assign(colour=plain["series"].map(colours))
    nth = plain.groupby(["colour", "train_length"]).cumcount()  # as panels are
    for name, colour, n in zip(plain["series"], plain["colour"], nth, strict=True):
        dashes = style.DASHES[n % len(style.DASHES)]
        styles[name] = {"color": colour, "linewidth": 1.8, "linestyle": dashes}
    return styles
