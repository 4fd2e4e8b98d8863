# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportIndexIssue=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportInvalidTypeArguments=false, reportOperatorIssue=false, reportReturnType=false
"""What series show, with intervals: losses, gains from context beyond T, verdicts, comparisons.

Every number is a mean over seeds and documents of sums of nats, divided once; gains and differences
are paired by seed and document.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, permutations, takewhile
from statistics import fmean, median, stdev
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from lengthgen.evaluation.protocols import HEADLINE
from lengthgen.report import intervals
from lengthgen.report.intervals import Comparison, Estimate, Floats, gap, quartiles, ratio
from lengthgen.report.series import loss_of, perplexity, select, short

__all__ = ["Estimate", "findings", "gap", "ratio"]

EPS = 0.01  # nats per token that count as nothing
FEW_DOCUMENTS = 16  # below which an interval leans on documents being normally distributed
SPREAD = 0.1  # of the perplexity over seeds, std / mean, from which on the mean says little
MOST_DOCUMENTS = 1_000_000  # that a remedy names

Word = Literal["uses", "flat", "harmed", "unclear", "not trained"]
Quantity = Callable[[pd.DataFrame], tuple["pd.Series[float]", "pd.Series[float]"]]


class Cell(NamedTuple):
    """A series under a protocol at one length: a point for each seed."""

    protocol: str
    series: str
    length: int


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The sums of each of several cells over the seeds and documents that all of them share."""

    seeds: tuple[int, ...]
    documents: tuple[str, ...]
    sums: tuple[Floats, ...]  # [R, D] of each cell, in their order; infinite if diverged
    counts_D: Floats

    def mean(self, i: int) -> Estimate:
        """Returns the mean of cell i."""
        return ratio(self.sums[i], self.counts_D)

    def gap(self, i: int, j: int) -> Estimate:
        """Returns the mean of cell i less that of cell j, paired; nan if both are infinite."""
        return gap(self.sums[i], self.sums[j], self.counts_D)


class Sums:
    """Sums and counts of one quantity: a row per cell and seed, a column per document."""

    def __init__(self, rows: pd.DataFrame, quantity: Quantity) -> None:
        scored = rows[rows["document"].notna()]
        nats, counts = quantity(scored)
        index = ["protocol", "series", "length", "seed"]
        table = scored[[*index, "document"]].assign(nats=nats, counts=counts)
        wide = table.pivot(index=index, columns="document", values="counts")
        self._counts = wide.to_numpy(np.float64)  # nan where a document is lacking
        self._nats = table.pivot(index=index, columns="document", values="nats").to_numpy(
            np.float64
        )
        self._documents = [str(name) for name in wide.columns]
        self._places: dict[Cell, dict[int, int]] = {}  # the row of each seed
        for place, (protocol, series, length, seed) in enumerate(wide.index):
            self._places.setdefault(Cell(protocol, series, length), {})[seed] = place

    def sample(self, cells: Sequence[Cell]) -> Sample | None:
        """Returns the sums of cells; None if they share no seed, or no document.

        Documents without such targets, or with others in one of the cells, are no part of it.
        """
        places = [self._places.get(cell, {}) for cell in cells]
        seeds = sorted(set[int].intersection(*map(set[int], places))) if places else []
        if not seeds:
            return None
        points = [[of_cell[seed] for seed in seeds] for of_cell in places]
        counts_PD = self._counts[np.concatenate(points)]
        shared = (counts_PD == counts_PD[0]).all(0) & (counts_PD[0] > 0)
        if not shared.any():
            return None
        return Sample(
            seeds=tuple(seeds),
            documents=tuple(
                name for name, kept in zip(self._documents, shared, strict=True) if kept
            ),
            sums=tuple(self._nats[of_cell][:, shared] for of_cell in points),
            counts_D=counts_PD[0, shared],
        )

    def difference(self, a: Cell, b: Cell) -> Estimate | None:
        """Returns the loss of a less that of b; None if they share no seed or document."""
        sample = self.sample([a, b])
        return None if sample is None else sample.gap(0, 1)


def in_bytes(rows: pd.DataFrame) -> tuple["pd.Series[float]", "pd.Series[float]"]:
    """Returns nats and bytes of all targets."""
    return rows["nats"].fillna(math.inf), rows["n_bytes"]


def far(rows: pd.DataFrame) -> tuple["pd.Series[float]", "pd.Series[float]"]:
    """Returns nats and number of the far-copy targets: their bigram stands beyond T only."""
    return rows["far_nats"].fillna(math.inf), rows["far_tokens"].fillna(0)


def near(rows: pd.DataFrame) -> tuple["pd.Series[float]", "pd.Series[float]"]:
    """Returns nats and number of the other targets."""
    far_nats, far_tokens = far(rows)
    nats = (rows["nats"] - far_nats).where(rows["nats"].notna(), math.inf)
    return nats, rows["n_tokens"] - far_tokens


@dataclass(frozen=True, kw_only=True)
class UsedContext:
    """c*: the least evaluated length up to T whose loss is within 0.01 nats of the least one.

    The bounds hold jointly at 95%: `low` is the least length that may be within 0.01 of all others
    (of which each may show that it is not, so their intervals are widened); `high` is the end of
    the lengths from T downwards that certainly are (a fixed sequence, which needs no
    widening). The shortest length bounds nothing from below.
    """

    value: int
    low: int
    high: int
    shortest: int  # of the evaluated ones

    @property
    def text(self) -> str:
        """Returns "256", "<= 64" at the shortest length, "128 [<= 64, 512]" with bounds."""
        value, low, high = (
            f"<= {short(n)}" if n == self.shortest else short(n)
            for n in (self.value, self.low, self.high)
        )
        return value if self.low == self.high else f"{value} [{low}, {high}]"


def used_context(
    sample: Sample, lengths: Sequence[int], *, train_length: int
) -> UsedContext | None:
    """Returns c* from a sample of cells of these lengths, in ascending order.

    None without a length below T, or T; if a loss up to T is infinite; and if there is no interval
    (one document).
    """
    places = {n: i for i, n in enumerate(lengths) if n <= train_length}
    lengths = list(places)
    if len(lengths) < 2 or lengths[-1] != train_length:
        return None
    above = {(n, m): sample.gap(places[n], places[m]) for n, m in permutations(lengths, 2)}
    if any(math.isnan(estimate.low) for estimate in above.values()):
        return None
    loss = {n: sample.mean(i).value for n, i in places.items()}
    others = len(lengths) - 1
    rejected = {n for (n, _), e in above.items() if e.widened(others).low > EPS}
    uncertain = {n for (n, _), e in above.items() if e.high > EPS}
    certain = takewhile(lambda n: n not in uncertain, reversed(lengths))
    return UsedContext(
        value=next(n for n in lengths if loss[n] <= min(loss.values()) + EPS),
        low=next(n for n in lengths if n not in rejected),
        high=min(certain, default=train_length),
        shortest=lengths[0],
    )


def verdict(gain: Estimate) -> Word:
    """Returns what the text beyond T does to a series, by G = loss(T) - loss(C).

    flat: the interval lies within EPS of 0. uses, harmed: the interval and each seed lie above 0,
    below 0. unclear: the data do not decide.
    """
    if gain.low >= -EPS and gain.high <= EPS:
        return "flat"
    if gain.value == math.inf:
        return "unclear"
    if gain.has_sign:
        return "uses" if gain.low > 0 else "harmed"
    return "unclear"


def remedy(gain: Estimate) -> str:
    """Returns why a verdict is unclear, and what would decide it."""
    if gain.value == math.inf:
        return "the loss at T is infinite"
    if math.isnan(gain.low):
        return "there is no interval"
    if gain.low > 0 or gain.high < 0:
        return "the seeds disagree in sign"
    shown = f"the least |G| that these data show is {gain.detectable:.3f}"
    spread = gain.spread
    if spread is None or gain.detectable <= EPS:
        return shown

    def is_enough(n_documents: int) -> bool:
        return replace(gain, spread=spread.of_documents(n_documents)).detectable <= EPS

    n = bisect_left(range(MOST_DOCUMENTS), True, lo=2, key=is_enough)
    if n == MOST_DOCUMENTS:
        return f"{shown}: evaluate more seeds, which differ too much for {EPS}"
    return f"{shown}: evaluate about {n:,} documents for {EPS}"


def findings(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns what series show: a row per series, protocol, quantity and length.

    `rows` are a Selection's; those of `load` are selected first. Columns: series, scheme, variant,
    reference, train_length, n_seeds, protocol, quantity, length, value, low, high, word, mark.

    loss: the word of a skipped length is the reason; the mark compares it with the best (best, tie,
    unknown: not comparable with it). behind: loss less that of the best, which the word names.
    rank: low and high are the ranks that the series may have. Under the headline protocol also
    gain: G(C) = loss(T) - loss(C) with the verdict as word; detectable: the least |G| that the data
    show, the word being what would decide an unclear verdict; swap and shuffle: what another text
    beyond T costs; far, near, far_gain and near_gain: loss and gain on far-copy targets and on the
    others; c_star with its text; bits_per_byte; unigram: the loss of token frequencies; and note: a
    sentence on what limits the numbers.
    """
    if "series" not in rows:
        return pd.concat([findings(of_text.rows) for of_text in select(rows)], ignore_index=True)
    analysis = _Analysis(rows)
    found: list[dict[str, Any]] = []
    for protocol in analysis.protocols:
        found += _losses(analysis, protocol)
        found += _comparisons(analysis, protocol)
    for series in analysis.facts.index:
        found += _headline(analysis, series)
    columns = ["series", "protocol", "quantity", "length", "value", "low", "high", "word", "mark"]
    table = pd.DataFrame([{"word": "", "mark": "", **row} for row in found], columns=columns)
    facts = ["scheme", "variant", "reference", "train_length", "n_seeds"]
    joined = table.join(analysis.facts[facts], on="series")
    return joined[["series", *facts, *columns[1:]]]


def differences(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns a row per pair of competing series at T and at the longest length that they share.

    A pair of unlike T is compared at the longest length alone. Columns: a, b, length, value (the
    loss of a less that of b), low, high, n_seeds, and `apart`: whether the two differ, all pairs of
    the length taken together at 95%; None if that is not known.
    """
    analysis = _Analysis(rows)
    found: list[dict[str, Any]] = []
    competitors = analysis.competitors(HEADLINE)
    for a, b in combinations(competitors, 2):
        shared = set(analysis.complete(HEADLINE, a)) & set(analysis.complete(HEADLINE, b))
        of_T = {analysis.facts.at[s, "train_length"] for s in (a, b)}
        at_T = of_T & shared if len(of_T) == 1 else set[int]()
        for n in sorted(at_T | {max(shared, default=0)} - {0}):
            estimate = analysis.sums.difference(Cell(HEADLINE, a, n), Cell(HEADLINE, b, n))
            if estimate is not None:
                joint = analysis.comparison(HEADLINE, n)
                known = joint is not None and {a, b} <= joint.ranks.keys()
                apart = joint.different & {(a, b), (b, a)} if joint else set()
                found.append(
                    {
                        **{"a": a, "b": b, "length": n, "value": estimate.value},
                        **{"low": estimate.low, "high": estimate.high},
                        "apart": bool(apart) if known else None,
                        "n_seeds": len(estimate.seeds),
                    }
                )
    columns = ["a", "b", "length", "value", "low", "high", "apart", "n_seeds"]
    return pd.DataFrame(found, columns=columns)


class _Analysis:
    """The rows of a selection by series, protocol and length, and their sums."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self.rows = rows
        self.sums = Sums(rows, loss_of)
        by_series = rows.groupby("series")
        facts = ["scheme", "variant", "reference", "train_length"]
        self.facts = (
            by_series[facts]
            .first()
            .assign(n_seeds=by_series["seed"].nunique(), reference=by_series["reference"].all())
        )
        self.protocols = sorted(set(rows["protocol"]), key=lambda name: (name != HEADLINE, name))
        seeds = rows.groupby(["protocol", "series"])["seed"].nunique()
        scored = rows[rows["document"].notna()]
        n_scored = scored.groupby(["protocol", "series", "length"])["seed"].nunique()
        self._complete: dict[tuple[str, str], list[int]] = {key: [] for key in seeds.index}
        for (protocol, series, length), n in n_scored.items():
            if n == seeds[protocol, series]:
                self._complete[protocol, series].append(length)
        self._comparisons: dict[tuple[str, int], Comparison | None] = {}

    def complete(self, protocol: str, series: str) -> list[int]:
        """Returns the lengths at which every seed of a series has a loss, in ascending order."""
        return self._complete.get((protocol, series), [])

    def competitors(self, protocol: str) -> list[str]:
        """Returns the series that are compared under a protocol: all but the references."""
        return [s for p, s in self._complete if p == protocol and not self.facts.at[s, "reference"]]

    @cached_property
    def losses(self) -> dict[Cell, float]:
        """The mean loss of each complete cell."""
        return {
            cell: sample.mean(0).value
            for (protocol, series), lengths in self._complete.items()
            for cell in (Cell(protocol, series, n) for n in lengths)
            if (sample := self.sums.sample([cell])) is not None
        }

    def comparison(self, protocol: str, length: int) -> Comparison | None:
        """Returns which series may be the best at a length; None if no two can be compared."""
        key = (protocol, length)
        if key not in self._comparisons:
            cells = self._competing(protocol, length)
            pairs = {
                (a, b): estimate
                for a, b in combinations(cells, 2)
                if (estimate := self.sums.difference(cells[a], cells[b])) is not None
            }
            losses = {series: self.losses[cell] for series, cell in cells.items()}
            self._comparisons[key] = intervals.compare(losses, pairs)
        return self._comparisons[key]

    def _competing(self, protocol: str, length: int) -> dict[str, Cell]:
        cells = (Cell(protocol, series, length) for series in self.competitors(protocol))
        return {cell.series: cell for cell in cells if cell in self.losses}

    def least(self, protocol: str, length: int) -> str | None:
        """Returns the series of least loss at a length, of those that can be compared if some can.

        None if no loss there is finite.
        """
        if (joint := self.comparison(protocol, length)) is not None:
            return joint.best
        losses = {s: self.losses[cell] for s, cell in self._competing(protocol, length).items()}
        best = min(losses, key=lambda s: losses[s], default=None)
        return None if best is None or math.isinf(losses[best]) else best


def _row(cell: Cell, quantity: str, estimate: Estimate, word: str = "") -> dict[str, Any]:
    bounds = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    return {**cell._asdict(), "quantity": quantity, **bounds, "word": word}


def _losses(analysis: _Analysis, protocol: str) -> Iterator[dict[str, Any]]:
    """Yields the loss at each length, over the documents of that length, and skipped lengths."""
    rows = analysis.rows[analysis.rows["protocol"] == protocol]
    for cell, sample in ((c, analysis.sums.sample([c])) for c in analysis.losses):
        if cell.protocol == protocol and sample is not None:
            joint = analysis.comparison(protocol, cell.length)
            mark = joint.mark(cell.series) if joint is not None else ""
            mark = "" if analysis.facts.at[cell.series, "reference"] else mark
            yield {**_row(cell, "loss", sample.mean(0)), "mark": mark}
    skipped = rows[rows["skipped"].notna()].groupby(["protocol", "series", "length"])["skipped"]
    for (_, series, length), reason in skipped.first().items():
        cell = Cell(protocol, series, length)
        if cell not in analysis.losses:
            yield {**cell._asdict(), "quantity": "loss", "word": reason}


def _comparisons(analysis: _Analysis, protocol: str) -> Iterator[dict[str, Any]]:
    """Yields by how much each series is behind the best at each length, and its possible ranks."""
    for cell in analysis.losses:
        best = analysis.least(protocol, cell.length)
        if cell.protocol != protocol or best is None or analysis.facts.at[cell.series, "reference"]:
            continue
        joint = analysis.comparison(protocol, cell.length)
        mark = "" if joint is None else joint.mark(cell.series)
        if cell.series == best:
            zero = {"quantity": "behind", "value": 0.0, "word": best, "mark": mark}
            yield {**cell._asdict(), **zero}
        elif (e := analysis.sums.difference(cell, Cell(protocol, best, cell.length))) is not None:
            yield {**_row(cell, "behind", e, best), "mark": mark}
        if joint is not None and cell.series in joint.ranks:
            low, high = joint.ranks[cell.series]
            yield {**cell._asdict(), "quantity": "rank", "low": low, "high": high}


def _headline(analysis: _Analysis, series: str) -> Iterator[dict[str, Any]]:
    """Yields what a series shows under the headline protocol, over documents of all lengths."""
    lengths = analysis.complete(HEADLINE, series)
    cells = [Cell(HEADLINE, series, n) for n in lengths]
    rows = analysis.rows
    own = rows[(rows["protocol"] == HEADLINE) & (rows["series"] == series)]
    sample = analysis.sums.sample(cells)
    notes = list(_left_out(own, lengths, sample))
    if sample is not None:
        T = int(analysis.facts.at[series, "train_length"])
        unigram = _unigram(own, sample)
        place = {n: i for i, n in enumerate(lengths)}
        is_trained = T not in place or not sample.mean(place[T]).value >= unigram
        for n in lengths if T in place else ():
            gain = sample.gap(place[T], place[n])
            word = verdict(gain) if n > T and is_trained else "not trained" if n > T else ""
            if n != T:
                yield _row(Cell(HEADLINE, series, n), "gain", gain, word)
                why = remedy(gain) if word == "unclear" else ""
                value = {"quantity": "detectable", "value": gain.detectable, "word": why}
                yield {**Cell(HEADLINE, series, n)._asdict(), **value}
        used = used_context(sample, lengths, train_length=T)
        if used is not None:
            bounds = {"value": used.value, "low": used.low, "high": used.high, "word": used.text}
            yield {"protocol": HEADLINE, "series": series, "quantity": "c_star", **bounds}
        yield {"protocol": HEADLINE, "series": series, "quantity": "unigram", "value": unigram}
        yield from _parts(own, cells, T)
        for protocol in ("swap", "shuffle"):
            yield from _exchanged(analysis, series, protocol)
        notes = [*_limits(analysis, series, sample, is_trained=is_trained), *notes]
    for note in [*notes, *_diverged(own)]:
        yield {"protocol": HEADLINE, "series": series, "quantity": "note", "word": note}


def _parts(own: pd.DataFrame, cells: Sequence[Cell], T: int) -> Iterator[dict[str, Any]]:
    """Yields bits per byte, and loss and gain on far-copy targets and on the others."""
    in_all = Sums(own, in_bytes).sample(cells)
    for i, cell in enumerate(cells if in_all is not None else ()):
        nats = in_all.mean(i).value if in_all is not None else math.nan
        yield {**cell._asdict(), "quantity": "bits_per_byte", "value": nats / math.log(2)}
    lacking = set(own.loc[own["far_tokens"].isna(), "length"])
    distant = [cell for cell in cells if cell.length not in lacking]
    for name, part in (("far", far), ("near", near)):
        sample = Sums(own, part).sample(distant)
        at_T = next((i for i, cell in enumerate(distant) if cell.length == T), None)
        for i, cell in enumerate(distant if sample is not None else ()):
            if sample is not None:
                yield _row(cell, name, sample.mean(i))
                if at_T not in (None, i):
                    yield _row(cell, f"{name}_gain", sample.gap(at_T, i))


def _exchanged(analysis: _Analysis, series: str, protocol: str) -> Iterator[dict[str, Any]]:
    """Yields by how much the loss grows with another text beyond T, on the same targets."""
    lengths = set(analysis.complete(protocol, series)) & set(analysis.complete(HEADLINE, series))
    ordered = sorted(lengths)
    cells = [Cell(p, series, n) for p in (protocol, HEADLINE) for n in ordered]
    sample = analysis.sums.sample(cells)
    for i, n in enumerate(ordered if sample is not None else ()):
        if sample is not None:
            yield _row(Cell(HEADLINE, series, n), protocol, sample.gap(i, len(ordered) + i))


def _unigram(own: pd.DataFrame, sample: Sample) -> float:
    """Returns the loss of training's token frequencies; nan if it is not known.

    The targets are the same in every cell.
    """
    scored = own[own["document"].isin(sample.documents)]
    scored = scored[
        (scored["seed"] == sample.seeds[0]) & (scored["length"] == scored["length"].min())
    ]
    return math.fsum(scored["unigram_nats"]) / scored["n_tokens"].sum()


def _limits(analysis: _Analysis, series: str, sample: Sample, *, is_trained: bool) -> Iterator[str]:
    """Yields a sentence for each limit of the numbers of a series."""
    T = int(analysis.facts.at[series, "train_length"])
    lengths = analysis.complete(HEADLINE, series)
    if len(sample.seeds) == 1:
        yield "one seed: this checkpoint on other documents, not the scheme"
    if len(sample.documents) == 1:
        yield "one document: no interval, no verdict"
    elif len(sample.documents) < FEW_DOCUMENTS:
        yield f"{len(sample.documents)} documents: intervals hold if their losses are near normal"
    if T not in lengths and any(n > T for n in lengths):
        yield f"no loss at T={T}: no context gain and no verdict; add {T} to --lengths"
    if not is_trained:
        yield "not trained: its loss at T is not below that of token frequencies"
    for protocol in ("swap", "shuffle"):
        n_seeds = analysis.rows[
            (analysis.rows["protocol"] == protocol) & (analysis.rows["series"] == series)
        ]["seed"].nunique()
        if 0 < n_seeds < len(sample.seeds):
            yield f"{protocol} covers {n_seeds} of {len(sample.seeds)} seeds"
    wide: list[str] = []
    for i, n in enumerate(lengths):
        ppl = [perplexity(mean) for mean in sample.mean(i).seeds]
        if len(ppl) > 1 and (math.isinf(fmean(ppl)) or stdev(ppl) > SPREAD * fmean(ppl)):
            low, high = map(number, quartiles(ppl))
            wide.append(f"{short(n)}: {number(median(ppl))} [{low}, {high}]")
    if wide:
        yield (
            f"perplexity differs by more than {SPREAD:.0%} (std / mean) over seeds; median and "
            f"quartiles at {'; '.join(wide)}"
        )


def _left_out(own: pd.DataFrame, lengths: Sequence[int], sample: Sample | None) -> Iterator[str]:
    """Yields the lengths and documents that the numbers of a series leave out."""
    scored = own[own["document"].notna()]
    if lost := sorted(set(scored["length"]) - set(lengths)):
        yield f"left out: {', '.join(map(short, lost))}, which not every seed has"
    present = scored[scored["length"].isin(lengths)]["document"].nunique()
    n_lost = present - (len(sample.documents) if sample is not None else 0)
    if n_lost:
        yield f"left out: {n_lost} of {present} documents, which not every seed and length has"


def _diverged(own: pd.DataFrame) -> Iterator[str]:
    lost = own[own["document"].notna() & own["nats"].isna()]
    for run, lengths in lost.groupby("run")["length"]:
        texts = ", ".join(map(short, sorted(set(lengths))))
        yield f"diverged: {run} at {texts}, counted as an infinite loss"


def number(value: float) -> str:
    """Returns a perplexity or ratio with two digits after the point, fewer where it is large."""
    if value >= 1e7:
        return f"{value:.1e}"
    return f"{value:,.{2 if value < 100 else 1 if value < 1000 else 0}f}"
