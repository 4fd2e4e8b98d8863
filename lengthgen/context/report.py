"""The section of a report on the use of context: how far, in sentences, a table and figures."""

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lengthgen import escaping
from lengthgen.context import lengths
from lengthgen.context.forgetting import FORGETTING
from lengthgen.context.key_tokens import KEY_TOKENS
from lengthgen.context.lengths import Reach, curve_points, hits, own_rows, share
from lengthgen.context.retrieval import DEPTHS, FORMS, RETRIEVAL
from lengthgen.report import figures, interactive, style
from lengthgen.report.load import eval_of
from lengthgen.report.report import ReportSection
from lengthgen.report.series import Selection, select, short
from lengthgen.report.statistics import Sums, perplexity, scores, shown_number
from lengthgen.report.tables import Table, TableCell

TITLE = "Use of context"
HEAT_AXES = "length in tokens", "depth in the text"  # of the figure of retrieval
OWN_PROTOCOLS = (FORGETTING.name, RETRIEVAL.name, KEY_TOKENS.name)
REACHES = [
    "A length is the longest one up to which all pass; in brackets the 95 % interval of its test, "
    "inverted. Perplexity holds: no more than 0.01 nats above T. Copies: at least 99 % of a "
    "repeated text, over that distance; some: more than behind other text. Finds: {:g} % of what "
    "it finds at the shortest length (eval.effective): a value behind its key, of 5 keys, 5 values "
    "of one key, over a chain of two. A value is found if it is likelier than 9 others: 10 % by "
    "chance.",
    "Copies counts the distance to the copied token: the model reads twice as many tokens.",
]
KEY_NOTE = (
    "Key tokens: of the targets those that T tokens predict (below 2 nats) and T/8 do not (2 nats "
    "more). Chosen by the losses of {}."
)
ITSELF = "the run itself, so that its loss at T is too low and its rise beyond too steep"


def section(rows: pd.DataFrame) -> ReportSection | None:
    """Returns how much context each series uses; None if no row is of a protocol of context."""
    texts = {*rows.loc[rows["protocol"].isin(OWN_PROTOCOLS), "fingerprint"]}
    if not texts:
        return None
    of_texts = rows[rows["fingerprint"].isin(texts) & (rows["protocol"] != "answers")]
    made = [context_text_section(s, f"-{i}" if i else "") for i, s in enumerate(select(of_texts))]
    return ReportSection(
        title=TITLE,
        drawings=lambda: {name: draw for s in made for name, draw in s.drawings().items()},
        sentences=[line for s in made for line in s.sentences],
        tables=[table for s in made for table in s.tables],
        data={name: table for s in made for name, table in s.data.items()},
        summary=[table for s in made for table in s.summary],
    )


def context_text_section(selection: Selection, end: str) -> ReportSection:
    """Returns what the series of one text show; names of files have the end."""
    rows = selection.rows
    competing = rows[~rows["reference"]]
    names = [*dict.fromkeys(competing.loc[competing["protocol"].isin(OWN_PROTOCOLS), "series"])]
    reaches = {name: reaches_of(rows, name) for name in names}
    table = _table(reaches, rows, about="" if not end else f", corpus {selection.text}")
    drawings = {
        "forgetting": partial(forgetting_figure, competing),
        "retrieval": partial(retrieval_figure, competing),
    }
    return ReportSection(
        title=TITLE,
        drawings=lambda: {f"{name}{end}": draw for name, draw in drawings.items()},
        sentences=[
            sentence(name, T, reaches[name], found_at_shortest(rows, name))
            for name, T in _trained(rows, names).items()
        ],
        tables=[table, *_key_tables(competing)],
        data={f"context{end}": pd.DataFrame(_data(reaches))},
        summary=[table],
    )


def reaches_of(rows: pd.DataFrame, series: str) -> dict[str, Reach | None]:
    """Returns the lengths up to which a series passes each test, by name of a column."""
    return {
        "perplexity holds": lengths.holds(rows, series),
        "copies": lengths.fine(rows, series),
        "some": lengths.coarse(rows, series),
        "finds": lengths.effective(rows, series, "single"),
        "of 5 keys": lengths.effective(rows, series, "keys"),
        "5 values": lengths.effective(rows, series, "values"),
        "chain": lengths.effective(rows, series, "chain"),
    }


def sentence(series: str, T: int, reaches: Mapping[str, Reach | None], found: str) -> str:
    """Returns "rope: T is 512 tokens; perplexity holds to 512, copies over 256, finds ...".

    `found` says how much it finds at the shortest length; it finds a share of that up to the
    effective length.
    """
    said = {
        "perplexity holds": "perplexity holds to {}",
        "copies": "copies over {}",
        "finds": f"finds {found}, and nearly as many to {{}}",
    }
    if (finds := reaches["finds"]) and not finds.value:
        said["finds"] = f"finds {found}, no more than by chance"
    parts = [text.format(r.text) for key, text in said.items() if (r := reaches[key])]
    line = f"{series}: T is {T:,} tokens; {', '.join(parts)}."
    return line.replace("< ", "fewer than ").replace(">= ", "at least ")


def found_at_shortest(rows: pd.DataFrame, series: str) -> str:
    """Returns "76% of values at 64 tokens"; nothing without a measurement."""
    sums = hits(own_rows(rows, RETRIEVAL.name), lengths.form_places("single"))
    first = curve_points(sums, series)[:1]
    return "".join(f"{share(sums, p).value:.0%} of values at {p.length:,} tokens" for p in first)


def _trained(rows: pd.DataFrame, names: list[str]) -> dict[str, int]:
    T = rows.drop_duplicates("series").set_index("series")["train_length"]
    return {name: int(T[name]) for name in names}


def _table(reaches: Mapping[str, Mapping[str, Reach | None]], rows: pd.DataFrame, *, about: str):
    T = _trained(rows, [*reaches])
    columns = [*next(iter(reaches.values()))]
    shown = [c for c in columns if any(by_test[c] for by_test in reaches.values())]
    return Table(
        title=f"How much context is used, in tokens{about}",
        head=["scheme", "T", *shown],
        rows=[
            [
                TableCell(name),
                TableCell(short(T[name])),
                *(TableCell(r.text if (r := by_test[c]) else "-") for c in shown),
            ]
            for name, by_test in reaches.items()
        ],
        notes=[note.format(100 * lengths.kept_share(rows)) for note in REACHES],
    )


def _data(reaches: Mapping[str, Mapping[str, Reach | None]]) -> Iterator[dict[str, Any]]:
    for series, by_test in reaches.items():
        for test, r in by_test.items():
            if r is not None:
                of_reach = asdict(r)
                yield {"series": series, "test": test, "length": of_reach.pop("value")} | of_reach


def _key_tables(rows: pd.DataFrame) -> Iterator[Table]:
    """Yields the perplexity of key tokens by length, their share, and the loss of the others."""
    of_keys = own_rows(rows, KEY_TOKENS.name)
    if of_keys.empty:
        return
    sums = Sums(of_keys, scores)
    columns = sorted({*of_keys["length"]})
    by_series, lines = of_keys.groupby("series", sort=False), list[list[TableCell]]()
    for name, of in by_series:
        counts = of.groupby("length")[["n_scores", "score", "n_tokens", "nats"]].sum()
        last = counts.iloc[-1]
        others = (last["nats"] - last["score"]) / (last["n_tokens"] - last["n_scores"])
        sample = {p.length: sums.sample([p]) for p in curve_points(sums, str(name))}
        cells = [
            TableCell(shown_number(perplexity(s.mean(0).value)) if (s := sample.get(n)) else "-")
            for n in columns
        ]
        part = f"{last['n_scores'] / last['n_tokens']:.1%}"
        lines.append([TableCell(str(name)), TableCell(part), *cells, TableCell(f"{others:.3f}")])
    chosen = eval_of(of_keys).get("evaluator")
    yield Table(
        title="Perplexity of key tokens, by context length",
        head=["scheme", "share", *map(short, columns), f"loss of others at {short(columns[-1])}"],
        rows=lines,
        notes=[KEY_NOTE.format(f"run {chosen}" if chosen else ITSELF)],
    )


# Figures


@style.styled()
def forgetting_figure(rows: pd.DataFrame) -> Figure | None:
    """Draws the share of tokens copied over the distance; dotted: right behind other text."""
    copies = own_rows(rows, FORGETTING.name)
    if copies.empty:
        return None
    points, looks = list[dict[str, Any]](), dict[str, dict[str, Any]]()
    for name, colour in style.scheme_colours(copies["series"]).items():
        for place, dashes in enumerate(("-", (0, (1, 1.5)))):
            sums, series = hits(copies, [place]), f"{name}{', other text' * place}"
            looks[series] = {"color": colour, "linestyle": dashes}
            about = {"series": series, "scheme": name, "reference": bool(place)}
            for point in curve_points(sums, name):
                found = share(sums, point)
                values = {"value": found.value, "low": found.low, "high": found.high}
                points.append({**about, "length": point.length, **values})
    return figures.draw_shares(
        pd.DataFrame(points),
        looks,
        "Forgetting curve: tokens copied; dotted: right behind other text",
        across="distance to the copied token, in tokens",
        trained=copies["train_length"].iloc[0] / 2,  # then T tokens are read
    )


@style.styled()
def retrieval_figure(rows: pd.DataFrame) -> Figure | None:
    """Draws a heat map of depth by length for each series: the mean over the forms."""
    retrieved = own_rows(rows, RETRIEVAL.name)
    if retrieved.empty:
        return None
    names, columns = [*dict.fromkeys(retrieved["series"])], sorted({*retrieved["length"]})
    n_wide = min(3, len(names))
    n_high = -(-len(names) // n_wide)
    drawn = style.new_figure(
        "Retrieval: share of values found, by depth and length; mean over four forms",
        width=style.WIDTH if n_wide < 3 else 11.0,
        height=1.2 + 2.4 * n_high,
    )
    grid = drawn.subplots(n_high, n_wide, squeeze=False, sharey=True).ravel()
    for axes in grid[len(names) :]:
        axes.set_axis_off()
    lengths, depths = [*map(short, columns)], [f"{depth:.0%}" for depth in DEPTHS]
    for axes, name in zip(grid, names, strict=False):
        shares, values = np.full((len(DEPTHS), len(columns)), np.nan), list[dict[str, Any]]()
        for n, of in retrieved[retrieved["series"] == name].groupby("length"):
            n_found, tries = (np.sum([*of[key]], axis=0) for key in ("hits", "tries"))
            shape = len(FORMS), len(DEPTHS)
            by_form = np.divide(n_found, tries, where=tries > 0, out=np.full(tries.shape, np.nan))
            by_form = by_form.reshape(shape)
            shares[:, columns.index(n)] = found = np.nanmean(by_form, axis=0)
            for depth, of_all, each in zip(depths, found, by_form.T, strict=True):
                parts = zip(FORMS, each, strict=True)
                hint = ", ".join(f"{form} {x:.0%}" for form, x in parts if x == x)
                values.append({"x": short(n), "y": depth, "share": of_all, "hint": hint})
        axes.imshow(shares, aspect="auto", vmin=0, vmax=1, cmap="viridis")
        for (i, j), found in np.ndenumerate(shares):
            if found == found:
                ink = "black" if found > 0.6 else "white"
                axes.text(j, i, f"{found:.0%}", ha="center", va="center", color=ink, fontsize=7)
        title = textwrap.fill(escaping.visible(name), 26)
        axes.set_title(title, loc="left", fontsize=style.FONT_SIZE, pad=3)
        axes.set_xticks(range(len(columns)), lengths)
        axes.set_yticks(range(len(DEPTHS)), depths)
        drawn.charts.append(
            interactive.heat_map(name, values, names=HEAT_AXES, orders=(lengths, depths))
        )
    for draw, name in zip((drawn.supxlabel, drawn.supylabel), HEAT_AXES, strict=True):
        draw(name, fontsize=style.FONT_SIZE)
    return drawn
