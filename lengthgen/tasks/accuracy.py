# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
"""Accuracy of a task: the share of right answers by length, and what it comes to.

Examples are the unit, the same ones for all schemes and seeds; intervals are those of losses, with
seeds and examples as variance components. R seeds, D examples, S series.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from lengthgen.results.intervals import Estimate, Floats, ratio
from lengthgen.results.series import UPPER_BOUND

HALF = 0.5  # L50: the longest length with at least this share of right answers
FIFTH = 0.2  # k_max: with at least this one
Z = 1.959964  # of a 95% interval

# What counts in ranks. No paper sets these; the reasons are:
LEARNED = 0.95  # least accuracy up to L: below it, errors beyond L may be those made within it
BEYOND_CHANCE = 0.05  # of the best beyond L: 200 wrong answers still allow 0.019 (Wilson)
ROUNDING = 1e-9  # of means of shares
DECODED = {  # what rows have of decoded tests: the name of a measure, and its column
    "edit distance": "edit_distances",
    "result": "results_right",
    "rank": "answer_ranks",
}


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """The mean of a measure of decoded tests, by length where every seed has them."""

    by_length: Mapping[int, Estimate]
    n_tests: Mapping[int, int]  # of each length, in every seed
    seen: Estimate | None  # as in Accuracy
    unseen: Estimate | None


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """What the answers of one series show, by length where every seed has a value.

    seen and unseen are means over the lengths that all series of the task have, each with the
    same weight; None for a series that lacks a value at one of them.
    """

    series: str
    scheme: str
    train_length: int  # L
    n_seeds: int
    lengths: Sequence[int]  # evaluated, ascending
    exact: Mapping[int, Estimate]  # right answers
    tokens: Mapping[int, float]  # right tokens, each after the right ones before it
    stops: Mapping[int, float]  # answers that first go wrong in where they stop
    n_examples: Mapping[int, int]
    seen: Estimate | None  # up to L
    unseen: Estimate | None  # beyond
    decoded: Mapping[str, Decoded]  # by name of DECODED, those that were measured
    right: Mapping[int, Floats] = field(repr=False)  # [R, D] by length: 1 where an answer is right

    @property
    def is_bound(self) -> bool:
        """Whether the scheme is given which characters belong together."""
        return self.series.endswith(UPPER_BOUND)

    @property
    def excluded(self) -> str | None:
        """Why the series counts in no rank or mean; None if it does."""
        if self.seen is None:
            return "no accuracy up to L"
        return None if self.seen.value >= LEARNED - ROUNDING else "not learned"

    @property
    def half_length(self) -> str:
        """L50: the length before the first one with less than half of the answers right, as text.

        ">= 80" if that is the longest evaluated; "< 2" if it is the first.
        """
        return self._last_with(HALF)

    @property
    def k_max(self) -> str:
        """L50 with a fifth instead of half, k_max of passkeys: arXiv 2306.15595, section 3.3."""
        return self._last_with(FIFTH)

    def _last_with(self, share: float) -> str:
        good: int | None = None
        for length in self.lengths:
            if length not in self.exact:  # no value there: neither more nor less
                return f"{good} (n/a beyond)" if good is not None else "-"
            if self.exact[length].value < share:
                return f"< {self.lengths[0]}" if good is None else str(good)
            good = length
        return f">= {good}" if good is not None else "-"


def accuracies(rows: pd.DataFrame) -> list[Accuracy]:
    """Returns the accuracy of each series of one task, from the rows of a Selection."""
    by_series = {str(name): of_series for name, of_series in rows.groupby("series")}
    shared = set[int].intersection(*({*part["length"]} for part in by_series.values()))
    return [_accuracy(name, part, shared) for name, part in by_series.items()]


def _accuracy(name: str, rows: pd.DataFrame, shared: Collection[int]) -> Accuracy:
    first, n_seeds = rows.iloc[0], rows["seed"].nunique()
    exact: dict[int, Estimate] = {}
    right: dict[int, Floats] = {}
    tokens: dict[int, float] = {}
    stops: dict[int, float] = {}
    examples: dict[int, int] = {}
    for length, cell in rows[rows["document"].notna()].sort_values("seed").groupby("length"):
        if len(cell) < n_seeds:
            continue
        wrong_RD = np.array([[*wrong] for wrong in cell["first_wrong"]], float)  # None: nan
        right_RD = np.isnan(wrong_RD).astype(float)
        right[length], examples[length] = right_RD, right_RD.shape[1]
        exact[length] = as_share(ratio(right_RD, np.ones(examples[length])), examples[length])
        tokens[length] = cell["token_hits"].sum() / cell["n_tokens"].sum()
        stops[length] = cell["stop_errors"].sum() / right_RD.size
    L = int(first["train_length"])
    short, long = ([n for n in shared if (n <= L) == seen] for seen in (True, False))
    seen, unseen = mean_over(right, short), mean_over(right, long)
    decoded = {name: _decoded(rows, key, n_seeds, short, long) for name, key in DECODED.items()}
    return Accuracy(
        series=name,
        scheme=str(first["scheme"]),
        train_length=L,
        n_seeds=n_seeds,
        lengths=sorted({*rows["length"]}),
        exact=exact,
        tokens=tokens,
        stops=stops,
        n_examples=examples,
        right=right,
        # As wide as if all lengths had the fewest examples.
        seen=seen and as_share(seen, min(examples[n] for n in short) * len(short)),
        unseen=unseen and as_share(unseen, min(examples[n] for n in long) * len(long)),
        decoded={name: measure for name, measure in decoded.items() if measure.by_length},
    )


def _decoded(
    rows: pd.DataFrame, key: str, n_seeds: int, short: Collection[int], long: Collection[int]
) -> Decoded:
    values: dict[int, Floats] = {}
    measured = rows[rows[key].map(lambda tests: tests is not None and len(tests) > 0)]
    for length, cell in measured.sort_values("seed").groupby("length"):
        if len(cell) == n_seeds:
            n = min(map(len, cell[key]))  # the first ones are the same in all
            values[length] = np.array([[*tests[:n]] for tests in cell[key]], float)
    return Decoded(
        by_length={n: ratio(x_RD, np.ones(x_RD.shape[1])) for n, x_RD in values.items()},
        n_tests={n: x_RD.shape[1] for n, x_RD in values.items()},
        seen=mean_over(values, short),
        unseen=mean_over(values, long),
    )


def wilson(right: int, n: int) -> tuple[float, float]:
    """Returns the 95% interval of a share of independent answers (Wilson 1927, JASA 22)."""
    centre, spread = right + Z**2 / 2, Z * math.sqrt(right * (n - right) / n + Z**2 / 4)
    return (centre - spread) / (n + Z**2), (centre + spread) / (n + Z**2)


def as_share(estimate: Estimate, n_examples: int) -> Estimate:
    """Returns a share with its interval within 0 and 1, and with Wilson's where that is wider.

    Answers that are all right, or all wrong, do not vary. Seeds share the examples: as many as one
    seed has are independent.
    """
    low, high = wilson(round(estimate.value * n_examples), n_examples)
    if not math.isnan(estimate.low):
        low, high = min(low, max(0.0, estimate.low)), max(high, min(1.0, estimate.high))
    return replace(estimate, low=low, high=high)


def mean_over(values: Mapping[int, Floats], lengths: Collection[int]) -> Estimate | None:
    """Returns the mean over lengths of values [R, D], each length with the same weight."""
    if not lengths or not set(lengths) <= set(values):
        return None
    chosen = [values[n] for n in sorted(lengths)]
    weights_D = np.concatenate([np.full(x_RD.shape[1], 1 / x_RD.shape[1]) for x_RD in chosen])
    return ratio(np.concatenate(chosen, axis=1) * weights_D, weights_D)


def counted(
    by_task: Mapping[str, Sequence[Accuracy]], chance: Mapping[str, float]
) -> dict[str, list[Accuracy]]:
    """Returns the series that learned each task, of the tasks that one of them solves beyond L.

    Solved: BEYOND_CHANCE above the task's `chance`. Upper bounds are left out.
    """
    learned = {
        task: [a for a in measured if a.excluded is None and not a.is_bound]
        for task, measured in by_task.items()
    }
    return {
        task: measured
        for task, measured in learned.items()
        if any(
            a.unseen is not None and a.unseen.value >= chance[task] + BEYOND_CHANCE - ROUNDING
            for a in measured
        )
    }


class MeanRank(NamedTuple):
    """The mean over tasks and seeds of a rank."""

    value: float
    low: float  # of the seed with the least mean over tasks
    high: float


def mean_ranks(by_task: Mapping[str, Sequence[Accuracy]]) -> dict[str, MeanRank]:
    """Returns each series' mean rank by accuracy on unseen lengths; 1 is best.

    Ties share the mean of their ranks. Of the series that have a value in every task, if there are
    two of them with equally many seeds. Bounds are those of seeds, no interval: the few values that
    a mean of ranks can have admit none that holds with two or three seeds.
    """
    values = {
        task: {a.series: a.unseen.seeds for a in measured if a.unseen is not None}
        for task, measured in by_task.items()
    }
    tables = values.values()  # of seeds by series, a table for each task
    names = sorted(set[str].intersection(*map(set[str], tables))) if values else []
    if len(names) < 2 or len({len(seeds) for table in tables for seeds in table.values()}) > 1:
        return {}
    ranks_RS = np.mean([_ranks([table[name] for name in names]) for table in tables], axis=0)
    return {
        name: MeanRank(float(ranks_R.mean()), float(ranks_R.min()), float(ranks_R.max()))
        for name, ranks_R in zip(names, ranks_RS.T, strict=True)
    }


def _ranks(values: Sequence[Sequence[float]]) -> Floats:
    """Returns the rank of each of S series in each of R seeds, [R, S]."""
    values_RS = np.array(values).T
    better = (values_RS[:, :, None] < values_RS[:, None, :]).sum(2)
    equal = (values_RS[:, :, None] == values_RS[:, None, :]).sum(2)
    return better + (equal + 1) / 2
