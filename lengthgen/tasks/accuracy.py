# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
"""Accuracy of a task: the share of right answers by length, and what it comes to.

Examples are the unit, the same ones for all schemes and seeds; intervals are those of losses, with
seeds and examples as variance components. R seeds, D examples, S series.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from lengthgen.report.intervals import Estimate, Floats, as_share, ratio
from lengthgen.report.series import UPPER_BOUND

HALF = 0.5  # L50: the longest length with at least this share of right answers

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
class Measure:
    """The mean of a measure over tests, by length where every seed has it.

    seen and unseen are means over the lengths that all series of the task have, up to L and beyond,
    each with the same weight; None for a series that lacks a value at one of them.
    """

    by_length: Mapping[int, Estimate]
    n_tests: Mapping[int, int]  # of each length, in every seed
    seen: Estimate | None
    unseen: Estimate | None


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """What the answers of one series show."""

    series: str
    scheme: str
    train_length: int  # L
    n_seeds: int
    lengths: Sequence[int]  # evaluated, ascending
    exact: Measure  # right answers
    tokens: Mapping[int, float]  # right tokens, each after the right ones before it
    stops: Mapping[int, float]  # answers that first go wrong in where they stop
    decoded: Mapping[str, Measure]  # by name of DECODED, those that were measured

    @property
    def is_bound(self) -> bool:
        """Whether the scheme is given which characters belong together."""
        return self.series.endswith(UPPER_BOUND)

    @property
    def excluded(self) -> str | None:
        """Why the series counts in no rank or mean; None if it does."""
        if self.exact.seen is None:
            return "no accuracy up to L"
        return None if self.exact.seen.value >= LEARNED - ROUNDING else "not learned"

    @property
    def half_length(self) -> str:
        """L50: the length before the first one with less than half of the answers right, as text.

        ">= 80" if that is the longest evaluated; "< 2" if it is the first.
        """
        good: int | None = None
        for length in self.lengths:
            if length not in self.exact.by_length:  # no value there: neither more nor less
                return f"{good} (n/a beyond)" if good is not None else "-"
            if self.exact.by_length[length].value < HALF:
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
    L = int(first["train_length"])
    by_length = rows[rows["document"].notna()].sort_values("seed").groupby("length")
    cells = {length: cell for length, cell in by_length if len(cell) >= n_seeds}
    wrong = {n: np.array([[*w] for w in cell["first_wrong"]], float) for n, cell in cells.items()}
    right = {n: np.isnan(wrong_RD).astype(float) for n, wrong_RD in wrong.items()}  # None: nan
    decoded = {
        name: {n: tests_RD for n, cell in cells.items() if (tests_RD := _tests(cell[key])).size}
        for name, key in DECODED.items()
    }
    return Accuracy(
        series=name,
        scheme=str(first["scheme"]),
        train_length=L,
        n_seeds=n_seeds,
        lengths=sorted({*rows["length"]}),
        exact=_share(_measure(right, shared, L), shared, L),
        tokens={n: cell["token_hits"].sum() / cell["n_tokens"].sum() for n, cell in cells.items()},
        stops={n: cell["stop_errors"].sum() / right[n].size for n, cell in cells.items()},
        decoded={name: _measure(tests, shared, L) for name, tests in decoded.items() if tests},
    )


def _tests(lists: pd.Series) -> Floats:
    """Returns the first values, which are of the same tests in all seeds, [R, D]; D may be 0."""
    n = min(0 if tests is None else len(tests) for tests in lists)
    return np.array([[*tests[:n]] for tests in lists] if n else [], float)


def _measure(values: Mapping[int, Floats], shared: Collection[int], L: int) -> Measure:
    """Returns the means of values [R, D] by length."""
    return Measure(
        by_length={n: ratio(x_RD, np.ones(x_RD.shape[1])) for n, x_RD in values.items()},
        n_tests={n: x_RD.shape[1] for n, x_RD in values.items()},
        seen=mean_over(values, [n for n in shared if n <= L]),
        unseen=mean_over(values, [n for n in shared if n > L]),
    )


def _share(measure: Measure, shared: Collection[int], L: int) -> Measure:
    """Returns a measure of 0s and 1s with the intervals of shares.

    A mean over lengths has one as wide as if all of them had the fewest examples.
    """
    n_tests, short = measure.n_tests, [n for n in shared if n <= L]
    long = [n for n in shared if n > L]

    def mean(estimate: Estimate | None, lengths: Sequence[int]) -> Estimate | None:
        return estimate and as_share(estimate, min(n_tests[n] for n in lengths) * len(lengths))

    return replace(
        measure,
        by_length={n: as_share(e, n_tests[n]) for n, e in measure.by_length.items()},
        seen=mean(measure.seen, short),
        unseen=mean(measure.unseen, long),
    )


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
            a.exact.unseen is not None
            and a.exact.unseen.value >= chance[task] + BEYOND_CHANCE - ROUNDING
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
        task: {a.series: a.exact.unseen.seeds for a in measured if a.exact.unseen is not None}
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
