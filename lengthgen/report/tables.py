"""Tables of verdicts, perplexity and learning rates; as Markdown and for a terminal."""

import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pandas as pd

from lengthgen import escaping
from lengthgen.evaluation.protocols import HEADLINE, named
from lengthgen.report.series import Selection, short
from lengthgen.report.statistics import perplexity, shown_number

CellMark = Literal["", "best", "tie", "unknown", "faint"]
MARK_SIGNS = {"tie": "=", "unknown": "?"}  # behind a value
# Lengths that fit a window of 1,280 pixels; of more, T times powers of 2. All are in curves.csv.
MOST_VERDICTS, MOST_COLUMNS = 6, 12
COSTS = {"parameters": "parameters", "tokens/s": "tokens_per_s", "peak MiB": "peak_mib"}
VERDICTS = (
    "By the 95 % interval of G(C) = loss(T) - loss(C), in brackets. *: also after correction for "
    "all series and lengths beyond T (Holm)."
)
COPY_NOTE = (
    "Copy gain: G at the longest length, of targets whose two preceding tokens last occurred more "
    "than T tokens back."
)
MARKED = (
    "Bold: the lowest. =: may be as good, all series of a length compared jointly at 95 %. "
    "?: not comparable with it."
)
NONE = {
    **dict.fromkeys(("value", "low", "high", "bits"), math.nan),
    "word": "",
    "mark": "",
}  # of findings
NOT_MARKED = "Nothing is marked as the best: that takes two seeds and two documents in common."


class TableCell(NamedTuple):
    """What stands in a cell, and what it is to the best of its column; faint: it counts little."""

    text: str
    mark: CellMark = ""

    @property
    def sign(self) -> str:
        return MARK_SIGNS.get(self.mark, "")


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; every row begins with its name."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[TableCell]]
    notes: Sequence[str] = ()
    leaves_out: bool = False  # lengths, which the page says


def _body(table: Table) -> list[list[str]]:
    """Returns the cells as text, with their marks."""
    marked = {"best": "**{}**", "faint": "({})"}
    return [[marked.get(c.mark, "{}").format(c.text) + c.sign for c in row] for row in table.rows]


def markdown(table: Table) -> str:
    """Returns title, table and notes as Markdown, with the columns in line."""
    texts = [
        [escaping.escape_markdown(text).replace("|", "\\|") for text in row]
        for row in (table.head, *_body(table))
    ]
    widths = [max(3, *map(len, column)) for column in zip(*texts, strict=True)]
    head, *rows = ([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in texts)
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = [f"| {' | '.join(row)} |" for row in (head, rule, *rows)]
    notes = [line for note in table.notes for line in ("", escaping.escape_markdown(note))]
    return "\n".join([f"{escaping.escape_markdown(table.title)}.", "", *lines, *notes]) + "\n"


def latex(table: Table) -> str:
    """Returns the table for a paper, by booktabs, no wider than the text; notes stand below."""
    signs = str.maketrans({"<": "$<$", ">": "$>$", "~": r"\textasciitilde{}", "^": r"\^{}"})

    def cell(text: str, mark: str = "") -> str:
        plain = re.sub(r"([&%$#_{}])", r"\\\1", text.replace("\\", "/"))
        plain = plain.replace("<=", r"$\leq$").translate(signs)
        minus = re.sub(r"(?<![\w.])-(?=[\d.])", "$-$", plain)
        return {"best": rf"\textbf{{{minus}}}", "faint": f"({minus})"}.get(mark, minus)

    rows = [" & ".join(cell(c.text, c.mark) + c.sign for c in row) for row in table.rows]
    head = " & ".join(map(cell, table.head))
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{cell(table.title)}.}}"]
    fit = r"\ifdim\width>\linewidth\linewidth\else\width\fi"
    lines += [rf"\resizebox{{{fit}}}{{!}}{{%"]
    lines += [rf"\begin{{tabular}}{{l{'r' * (len(table.head) - 1)}}}", r"\toprule"]
    lines += [rf"{head} \\", r"\midrule", *(rf"{row} \\" for row in rows), r"\bottomrule"]
    notes = [rf"\par\smallskip\footnotesize {cell(note)}" for note in table.notes]
    return "\n".join([*lines, r"\end{tabular}}", *notes, r"\end{table}"]) + "\n"


def shown(table: Table) -> str:
    """Returns the table as Markdown, but drawn where standard output is a terminal.

    It has 80 columns, and more where they do not hold all numbers; names may be folded.
    """
    if not sys.stdout.isatty():
        return markdown(table)
    from rich import box
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    drawn = Drawn(box=box.SIMPLE_HEAD, title=Text(escaping.visible(table.title)))
    rows = [[Text(escaping.visible(text)) for text in row] for row in _body(table)]
    for i, cells in enumerate(
        zip(map(Text, map(escaping.visible, table.head)), *rows, strict=True)
    ):
        words = [word for cell in cells for word in cell.plain.split()]
        width = max(map(cell_len, words), default=0)
        look: Any = {"justify": "right"} if i else {"overflow": "fold"}
        drawn.add_column(cells[0], min_width=width if i else min(width, 8), **look)
    for row in rows:
        drawn.add_row(*row)
    console = Console(width=80, force_terminal=False)  # no style: echo() shows control characters
    with console.capture() as text:
        notes = (Text(escaping.visible(note)) for note in table.notes)
        console.print(drawn, *notes, sep="\n", crop=False)
    return text.get()


def csv_text(table: pd.DataFrame) -> str:
    """Returns a data frame as CSV in which no text is a formula."""
    return table.map(escaping.csv_cell).to_csv(index=False, lineterminator="\n")


class Numbers:
    """The findings of a protocol on competing series, by series, quantity and length.

    `common` are the lengths at which more than half of the series were evaluated, so that an extra
    length of one run changes nothing for the others. `series` are in order of the loss at the
    longest of them.
    """

    def __init__(self, findings: pd.DataFrame) -> None:
        rows = findings[~findings["reference"]].fillna({"length": 0}).astype({"length": int})
        facts = rows.drop_duplicates("series").set_index("series")
        self.T, self.n_seeds = facts["train_length"].to_dict(), facts["n_seeds"].to_dict()
        rows = rows[rows["quantity"] != "note"]
        known: Any = rows.set_index(["series", "quantity", "length"]).to_dict("index")
        self.rows: dict[tuple[str, str, int], dict[str, Any]] = known
        losses = rows[rows["quantity"] == "loss"]
        self.lengths = sorted(set(losses["length"]))
        counts = losses["length"].value_counts()
        self.common = [n for n in self.lengths if 2 * counts[n] > len(self.T)] or self.lengths
        by_length = losses.pivot(index="series", columns="length", values="value")
        order = [n for n in reversed(self.lengths) if n <= self.common[-1]]
        self.series = [*by_length.sort_values(order, kind="stable").index]

    def doubled(self, lengths: Sequence[int], *, most: int) -> list[int]:
        """Returns the lengths; of more than `most` the last, and those of T times a power of 2.

        Where these are few, also others, evenly spread.
        """
        if len(lengths) <= most:
            return [*lengths]
        T = {*self.T.values()}
        kept = [n for n in lengths[:-1] if any(math.log2(n / t).is_integer() for t in T)]
        kept.append(lengths[-1])
        if 2 * len(kept) < most:
            others, room = [n for n in lengths if n not in kept], most - len(kept)
            kept += [others[i * len(others) // room] for i in range(room)]
        return sorted(kept)

    def beyond(self, series: str) -> list[int]:
        """Returns the lengths beyond T at which a series has a gain."""
        T = self.T[series]
        return sorted(n for *key, n in self.rows if key == [series, "gain"] and n > T)

    def about(self, series: str) -> list[TableCell]:
        return [TableCell(series), TableCell(str(self.n_seeds[series]))]

    def finding(self, series: str, quantity: str, length: int = 0) -> Mapping[str, Any]:
        """Returns value, low, high, word and mark of a finding; nan and "" if there is none."""
        return self.rows.get((series, quantity, length), NONE)

    def verdict(self, series: str, length: int) -> str:
        """Returns "uses* [+0.019, +0.112]", with * if it holds jointly; "-" without a verdict."""
        gain = self.finding(series, "gain", length)
        word = gain["word"] + "*" * (gain["mark"] == "joint")
        return f"{word} {self.interval(series, 'gain', length)}".rstrip() if word else "-"

    def word_up_to(self, series: str, length: int) -> str:
        """Returns the verdict at a length, or "harmed at 256" at the longest there is before."""
        at = max((n for n in self.beyond(series) if n <= length), default=length)
        word = self.finding(series, "gain", at)["word"]
        return word if at == length else f"{word} at {short(at)}"

    def interval(self, series: str, quantity: str, length: int) -> str:
        """Returns "[-0.001, +0.004]"; nothing if there is none."""
        row = self.finding(series, quantity, length)
        low, high = row["low"], row["high"]
        return "" if math.isnan(low) or math.isnan(high) else f"[{low:+.3f}, {high:+.3f}]"

    def perplexity(self, series: str, length: int) -> TableCell:
        row = self.finding(series, "loss", length)
        if row["word"]:  # the reason why it was skipped
            return TableCell("n/a")
        loss = row["value"]
        return TableCell("-" if math.isnan(loss) else shown_number(perplexity(loss)), row["mark"])


def verdicts(numbers: Numbers) -> Iterator[Table]:
    """Yields what the context beyond T does to each series, with the interval of G, if known."""
    beyond = {name: numbers.beyond(name) for name in numbers.series}
    every = sorted({n for lengths_beyond in beyond.values() for n in lengths_beyond})
    if not every:
        return
    lengths = numbers.doubled(every, most=MOST_VERDICTS)[-MOST_VERDICTS:]
    title = "Verdicts on context beyond T, with the 95 % interval of the gain G in nats"
    head, notes = ["scheme", "seeds", "c*", *map(short, lengths)], [VERDICTS]
    rows, copies = list[list[TableCell]](), list[str]()
    for name, lengths_beyond in beyond.items():
        words = (numbers.verdict(name, n) for n in lengths)
        cells = map(TableCell, (numbers.finding(name, "c_star")["word"] or "n/a", *words))
        rows.append([*numbers.about(name), *cells])
        copies.append(numbers.interval(name, "copy_gain", max(lengths_beyond, default=0)))
    if any(copies):
        head.append("copy gain")
        notes.append(COPY_NOTE)
        for row, interval in zip(rows, copies, strict=True):
            row.append(TableCell(interval or "n/a"))
    less = len(lengths) < len(every)
    yield Table(title=title, head=head, rows=rows, notes=notes, leaves_out=less)


def perplexities(selection: Selection, numbers: Numbers, protocol: str) -> Table:
    """Returns perplexity by length, the lowest at the longest common length first, and costs.

    Beside them bits per byte, which other tokenizers share, at T or the longest common length. A
    variant has the cost of its checkpoint.
    """
    runs = selection.rows.drop_duplicates(["series", "run"])
    costs = {h: key for h, key in COSTS.items() if protocol == HEADLINE and runs[key].notna().any()}
    medians = runs.groupby("series")[[*costs.values()]].median()
    lengths = numbers.doubled(numbers.lengths, most=MOST_COLUMNS)[-MOST_COLUMNS:]
    at = T if (T := min(numbers.T.values())) in numbers.common else numbers.common[-1]
    bits = {name: numbers.finding(name, "loss", at)["bits"] for name in numbers.series}
    of_bytes = any(math.isfinite(x) for x in bits.values())
    rows = [
        [
            *numbers.about(name),
            *(numbers.perplexity(name, n) for n in lengths),
            *[TableCell("-" if math.isnan(bits[name]) else f"{bits[name]:.3f}")] * of_bytes,
            *(TableCell("-" if cost != cost else f"{cost:,.0f}") for cost in medians.loc[name]),
        ]
        for name in numbers.series
    ]
    skipped = {row["word"] for (_, what, _), row in numbers.rows.items() if what == "loss"}
    has_best = any(cell.mark == "best" for row in rows for cell in row)
    marked = [MARKED] if has_best else [NOT_MARKED] if len(rows) > 1 else []
    return Table(
        title=f"Perplexity, {_scored(selection.rows, protocol)}; {selection.title}",
        head=[
            *("scheme", "seeds", *map(short, lengths)),
            *[f"bits/byte at {short(at)}"] * of_bytes,
            *costs,
        ],
        rows=rows,
        notes=[*(f"n/a: {reason}." for reason in sorted(skipped - {""})), *marked],
        leaves_out=len(lengths) < len(numbers.lengths),
    )


def summary(numbers: Numbers, about: str, *, lengths: Sequence[int], notes: Sequence[str]) -> Table:
    """Returns the perplexity at lengths, and the verdict at the longest; `about` ends the title.

    Without lengths: at T and three longer ones. Of a series without that length the verdict is at
    its own longest, which it names.
    """
    lengths = sorted({*lengths} & {*numbers.lengths})
    if not lengths:
        T, last = min(numbers.T.values()), numbers.common[-1]
        lengths = sorted(
            {n for n in numbers.common if n >= min(T, last)} | {T} & {*numbers.lengths}
        )
        lengths = numbers.doubled(lengths, most=4)
        lengths = sorted({*lengths[:2], lengths[len(lengths) // 2], lengths[-1]})
    words = {name: numbers.word_up_to(name, lengths[-1]) for name in numbers.series}
    has_verdicts = any(words.values())
    rows = [
        [
            TableCell(name),
            *(TableCell(numbers.perplexity(name, n).text) for n in lengths),
            *[TableCell(word)] * has_verdicts,
        ]
        for name, word in words.items()
    ]
    verdict = f"verdict at {short(lengths[-1])}"
    head = ["scheme", *map(short, lengths), *[verdict] * has_verdicts]
    return Table(title=f"Perplexity by context length{about}", head=head, rows=rows, notes=notes)


def without_verdict(numbers: Numbers) -> Iterator[str]:
    """Yields a line on the series that have no gain, with the lengths that one takes."""
    names = [name for name in numbers.series if not numbers.beyond(name)]
    if names:
        T = min(numbers.T[name] for name in names)
        which = "" if len(names) == len(numbers.series) else f" on {', '.join(names)}"
        yield f"No verdict{which}: it takes T and beyond, --lengths {T},{4 * T}"


def _scored(rows: pd.DataFrame, protocol: str) -> str:
    """Returns what was scored: protocol, targets, endpoints, documents."""
    of_protocol = rows[rows["protocol"] == protocol]
    n_tokens = int(of_protocol.groupby(["run", "series", "length"])["n_tokens"].sum().max())
    if protocol != HEADLINE:
        return f"{protocol}: {named(protocol).summary}; up to {n_tokens:,} tokens"
    K, n_documents = (int(of_protocol[key].max()) for key in ("targets", "n_documents"))
    text = f"matched tail: K={K}, endpoints: {n_tokens // K}, documents: {n_documents}"
    return f"{text}{in_groups(of_protocol)}"


def in_groups(rows: pd.DataFrame) -> str:
    """Returns " of 24 groups (at most 6 of one)" for the documents of rows; "" if none is named."""
    scored = rows[rows["document"].notna()].drop_duplicates(["corpus", "document"])
    sizes = scored["group"].fillna(scored["document"]).value_counts()
    named = scored["group"].notna().any()
    return f" of {len(sizes)} groups (at most {sizes.max()} of one)" if named else ""


def rates(tuned: Mapping[str, Mapping[str, Any]]) -> Table:
    """Returns the learning rates that schemes were tuned on, the chosen ones marked."""
    rows, edges = list[list[TableCell]](), list[str]()
    for name, chosen in tuned.items():
        grid = chosen.get("grid", [])  # none of an entry that a user wrote
        for trial in grid:
            lr, ratio, losses = trial["lr"], trial["scheme_lr_ratio"], trial["losses"]
            loss = "diverged" if None in losses else f"{math.fsum(losses) / len(losses):.4f}"
            mark = "best" if (lr, ratio) == (chosen["lr"], chosen["scheme_lr_ratio"]) else ""
            words = name, f"{lr:g}", "-" if ratio is None else f"{ratio:g}"
            rows.append([*map(TableCell, words), TableCell(loss, mark)])
        for key in ("lr", "scheme_lr_ratio"):
            values = {trial[key] for trial in grid} - {None}
            if len(values) > 1 and chosen[key] in (min(values), max(values)):
                edges.append(f"{name} (train.{key}={chosen[key]:g})")
    return Table(
        title="Learning rates, by loss(T) on the tuning split in nats per token",
        head=["scheme", "train.lr", "train.scheme_lr_ratio", "loss(T)"],
        rows=rows,
        notes=[
            "Bold: chosen, by the lowest mean over seeds. The tuning split holds 1 in 20 training "
            "documents; no result is measured on it.",
            *([f"At the edge of the grid, so extend it: {', '.join(edges)}."] if edges else []),
        ],
    )
