# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportIndexIssue=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportInvalidTypeArguments=false, reportOperatorIssue=false, reportReturnType=false
"""The tables of curves: verdicts on context beyond T, perplexity, tuned learning rates."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from lengthgen.evaluation.protocols import HEADLINE, named
from lengthgen.report.series import Selection, short
from lengthgen.report.statistics import number, perplexity
from lengthgen.report.tables import Cell, Mark, Table

MOST_LENGTHS = 6  # of verdicts; of more, T times powers of 2
VERDICTS = (
    "By the 95 % interval of G(C) = loss(T) - loss(C), in brackets; not corrected for multiple "
    "comparisons. Copy gain: G at the longest length on targets whose bigram stands beyond T only."
)
MARKED = (
    "Bold: the lowest. =: may be as good, all series of a length compared jointly at 95 %. "
    "?: not comparable with it. Rank: those that a series may have at the longest common length."
)
NOT_MARKED = "Nothing is marked as the best: that takes two seeds and two documents in common."


class Numbers:
    """The findings of a protocol on competing series, by series, quantity and length.

    `series` are in order of the loss at the longest common length: the longest at which more than
    half of them were evaluated, so that an extra length of one run changes nothing for the others.
    """

    def __init__(self, findings: pd.DataFrame) -> None:
        rows = findings[~findings["reference"]].fillna({"length": 0}).to_dict("records")
        self.rows = {(r["series"], r["quantity"], int(r["length"])): r for r in rows}
        self.facts = {row["series"]: row for row in rows}
        evaluated = [length for _, quantity, length in self.rows if quantity == "loss"]
        self.lengths = sorted(set(evaluated))
        common = [n for n in self.lengths if 2 * evaluated.count(n) > len(self.facts)]
        self.longest = max(common or self.lengths, default=0)
        self.series = sorted(self.facts, key=self._order)

    def _order(self, series: str) -> tuple[Any, ...]:
        lengths = [self.longest, *(n for n in reversed(self.lengths) if n < self.longest)]
        losses = [self.value(series, "loss", n) for n in lengths]
        return [math.inf if math.isnan(loss) else loss for loss in losses], series

    def T(self, series: str) -> int:
        return int(self.facts[series]["train_length"])

    def about(self, series: str) -> list[Cell]:
        """Returns the name and the number of seeds."""
        return [Cell(series), Cell(str(int(self.facts[series]["n_seeds"])))]

    def value(self, series: str, quantity: str, length: int) -> float:
        """Returns a value; nan if there is none."""
        return self.rows.get((series, quantity, length), {}).get("value", math.nan)

    def word(self, series: str, quantity: str, length: int = 0) -> str:
        return self.rows.get((series, quantity, length), {}).get("word", "")

    def interval(self, series: str, quantity: str, length: int) -> str:
        """Returns "[-0.001, +0.004]"; nothing if there is none."""
        row = self.rows.get((series, quantity, length), {})
        low, high = (round(row.get(key, math.nan), 3) + 0.0 for key in ("low", "high"))
        return "" if math.isnan(low) or math.isnan(high) else f"[{low:+.3f}, {high:+.3f}]"

    def perplexity(self, series: str, length: int) -> str:
        if self.word(series, "loss", length):  # the reason why it was skipped
            return "n/a"
        loss = self.value(series, "loss", length)
        return "-" if math.isnan(loss) else number(perplexity(loss))

    def mark(self, series: str, length: int) -> Mark:
        """Returns the mark of a loss; one below that of the best, of more seeds, is unknown."""
        mark = self.rows.get((series, "loss", length), {}).get("mark", "")
        best = self.value(self.word(series, "behind", length), "loss", length)
        return "unknown" if not mark and self.value(series, "loss", length) < best else mark

    def rank(self, series: str) -> str:
        """Returns the ranks that a series may have, "2" or "2 to 4"."""
        row = self.rows.get((series, "rank", self.longest))
        return " to ".join({f"{row[key]:g}": 0 for key in ("low", "high")}) if row else "n/a"

    def ratio(self, series: str) -> str:
        """Returns the perplexity at the longest common length over that at T."""
        rise = self.value(series, "loss", self.longest) - self.value(series, "loss", self.T(series))
        return "n/a" if math.isnan(rise) else number(perplexity(rise))


def verdicts(numbers: Numbers) -> Iterator[Table]:
    """Yields what the context beyond T does to each series, with the interval of G, if known."""
    gains = [(series, n) for series, quantity, n in numbers.rows if quantity == "gain"]
    judged = {(series, n) for series, n in gains if n > numbers.T(series)}
    lengths = sorted({n for _, n in judged})
    if not lengths:
        return
    if len(lengths) > MOST_LENGTHS:
        doubled = {numbers.T(series) << i for series in numbers.series for i in range(1, 12)}
        lengths = [n for n in lengths if n in doubled or n == numbers.longest][-MOST_LENGTHS:]
    rows: list[list[Cell]] = []
    for name in numbers.series:
        row = [Cell(numbers.word(name, "c_star") or "n/a")]
        for n in lengths:
            verdict = f"{numbers.word(name, 'gain', n)} {numbers.interval(name, 'gain', n)}"
            row.append(Cell(verdict.rstrip() if (name, n) in judged else "-"))
        last = max((n for series, n in judged if series == name), default=0)
        row.append(Cell(numbers.interval(name, "far_gain", last) or "n/a"))
        rows.append([*numbers.about(name), *row])
    yield Table(
        key="verdicts",
        title="Verdicts on context beyond T, with the 95 % interval of the gain G in nats",
        head=["scheme", "seeds", "c*", *map(short, lengths), "copy gain"],
        rows=rows,
        notes=[VERDICTS],
    )


def perplexities(selection: Selection, numbers: Numbers) -> Table:
    """Returns perplexity by length, the lowest at the longest common length first, and costs.

    A variant has the cost of its checkpoint.
    """
    protocol = next(iter(numbers.facts.values()))["protocol"]
    runs = selection.rows.drop_duplicates(["series", "run"])
    costs = {"parameters": "parameters", "tokens/s": "tokens_per_s", "peak MiB": "peak_mib"}
    costs = costs if protocol == HEADLINE else {}
    costs = {head: column for head, column in costs.items() if runs[column].notna().any()}
    medians = runs.groupby("series")[[*costs.values()]].median()
    rows = [
        [
            *numbers.about(name),
            *(Cell(numbers.perplexity(name, n), numbers.mark(name, n)) for n in numbers.lengths),
            *(Cell(numbers.ratio(name)), Cell(numbers.rank(name))),
            *(Cell("-" if cost != cost else f"{cost:,.0f}") for cost in medians.loc[name]),
        ]
        for name in numbers.series
    ]
    lengths = {numbers.T(name) for name in numbers.series}
    ratio = f"{short(numbers.longest)}/{short(min(lengths)) if len(lengths) == 1 else 'T'}"
    skipped = {row["word"] for (_, what, _), row in numbers.rows.items() if what == "loss"}
    has_best = any(cell.mark == "best" for row in rows for cell in row)
    marked = [MARKED] if has_best else [NOT_MARKED] if len(rows) > 1 else []
    return Table(
        key=f"perplexity-{protocol}".replace("_", "-"),
        title=f"Perplexity, {_scored(selection.rows, protocol)}; {selection.title}",
        head=["scheme", "seeds", *map(short, numbers.lengths), ratio, "rank", *costs],
        rows=rows,
        notes=[*(f"n/a: {reason}." for reason in sorted(skipped - {""})), *marked],
    )


def summary(numbers: Numbers, protocol: str) -> Table:
    """Returns the perplexity at T and three longer lengths, and the verdict at the longest."""
    T = min(map(numbers.T, numbers.series))
    lengths = [n for n in numbers.lengths if T <= n <= numbers.longest] or [numbers.longest]
    lengths = sorted({*lengths[:2], lengths[len(lengths) // 2], lengths[-1]})
    rows = [
        [
            name,
            *(numbers.perplexity(name, n) for n in lengths),
            numbers.word(name, "gain", lengths[-1]),
        ]
        for name in numbers.series
    ]
    head = ["scheme", *map(short, lengths), "verdict"]
    cells = [[*map(Cell, row)] for row in rows]
    title = "Perplexity by context length" + (f", {protocol}" if protocol != HEADLINE else "")
    return Table(key="summary", title=title, head=head, rows=cells)


def _scored(rows: pd.DataFrame, protocol: str) -> str:
    """Returns what was scored: protocol, targets, endpoints, documents."""
    own = rows[rows["protocol"] == protocol]
    n_tokens = int(own.groupby(["run", "series", "length"])["n_tokens"].sum().max())
    if protocol != HEADLINE:
        return f"{protocol}: {named(protocol).summary}; up to {n_tokens:,} tokens"
    K, n_documents = (int(own[key].max()) for key in ("targets", "n_documents"))
    return f"matched tail: K={K}, endpoints: {n_tokens // K}, documents: {n_documents}"


def rates(tuned: Mapping[str, Mapping[str, Any]]) -> Table:
    """Returns the learning rates that schemes were tuned on, the chosen ones marked."""
    rows, edges = list[list[Cell]](), list[str]()
    for name, chosen in tuned.items():
        for trial in chosen["grid"]:
            lr, ratio, losses = trial["lr"], trial["scheme_lr_ratio"], trial["losses"]
            loss = "diverged" if None in losses else f"{math.fsum(losses) / len(losses):.4f}"
            mark = "best" if (lr, ratio) == (chosen["lr"], chosen["scheme_lr_ratio"]) else ""
            words = name, f"{lr:g}", "-" if ratio is None else f"{ratio:g}"
            rows.append([*map(Cell, words), Cell(loss, mark)])
        for key in ("lr", "scheme_lr_ratio"):
            values = {trial[key] for trial in chosen["grid"]} - {None}
            if len(values) > 1 and chosen[key] in (min(values), max(values)):
                edges.append(f"{name} (train.{key}={chosen[key]:g})")
    return Table(
        key="rates",
        title="Learning rates, by loss(T) on the tuning split in nats per token",
        head=["scheme", "train.lr", "train.scheme_lr_ratio", "loss(T)"],
        rows=rows,
        notes=[
            "Bold: chosen, by the lowest mean over seeds. The tuning split holds 1 in 20 training "
            "documents; no result is measured on it.",
            *([f"At the edge of the grid, so extend it: {', '.join(edges)}."] if edges else []),
        ],
    )
