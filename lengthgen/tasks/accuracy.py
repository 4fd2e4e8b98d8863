"""Accuracy of a task by length: the share of answers that are correct.

Examples are the unit, the same ones for all schemes and seeds; intervals are those of losses, with
seeds and examples as variance components. R seeds, D examples.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from lengthgen.report.intervals import Estimate, Floats, as_share, ratio
from lengthgen.report.series import UPPER_BOUND

HALF = 0.5  # L50: the longest length with at least this accuracy

# What counts in ranks. No paper sets these; the reasons are:
LEARNED = 0.95  # least accuracy up to L: below it, errors beyond L may be those made within it
BEYOND_CHANCE = 0.05  # of the best beyond L: 200 wrong answers still allow 0.019 (Wilson)
ROUNDING = 1e-9  # of means of shares


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """What the answers of one series show."""

    series: str
    scheme: str
    n_seeds: int
    by_length: pd.DataFrame  # where every seed has a value; columns as in `_at`
    seen: Estimate | None  # mean over the lengths up to L that most series of the task have
    unseen: Estimate | None  # and over those beyond; None for a series that lacks one of them

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
        lengths = self.by_length.index.tolist()
        short = self.by_length.loc[self.by_length["accuracy"] < HALF].index.tolist()
        if not short:
            return f">= {lengths[-1]}" if lengths else "-"
        good = [n for n in lengths if n < short[0]]
        return str(good[-1]) if good else f"< {lengths[0]}"


def accuracies(rows: pd.DataFrame) -> list[Accuracy]:
    """Returns the accuracy of each series of one task, from the rows of a Selection."""
    by_series = {str(name): of_series for name, of_series in rows.groupby("series")}
    n_series = rows.loc[rows["document"].notna()].groupby("length")["series"].nunique()
    common = {*n_series.index[2 * n_series > len(by_series)].tolist()}
    return [_accuracy(name, part, common) for name, part in by_series.items()]


def _accuracy(name: str, rows: pd.DataFrame, common: Collection[int]) -> Accuracy:
    n_seeds, L = len({*rows["seed"]}), int(rows["train_length"].iloc[0])
    by_length = rows.loc[rows["document"].notna()].sort_values("seed").groupby("length")
    every: list[tuple[Any, pd.DataFrame]] = [*by_length]
    cells: dict[int, pd.DataFrame] = {n: cell for n, cell in every if len(cell) >= n_seeds}
    wrong = {n: np.array([[*w] for w in cell["first_wrong"]], float) for n, cell in cells.items()}
    table = pd.DataFrame([_at(n, cells[n], wrong[n]) for n in cells], columns=AT_LENGTH)
    return Accuracy(
        series=name,
        scheme=str(rows["scheme"].iloc[0]),
        n_seeds=n_seeds,
        by_length=table.set_index("length"),
        seen=_mean_over(wrong, sorted(n for n in common if n <= L)),
        unseen=_mean_over(wrong, sorted(n for n in common if n > L)),
    )


AT_LENGTH = (
    "length",
    "tests",  # in every seed
    "accuracy",
    "low",  # of its 95 % interval
    "high",
    "first_error",  # median place of the first wrong token of wrong answers, from 0
    "tokens",  # share of right tokens, each after the right ones before it
    "stops",  # share of answers that first go wrong in where they stop
    "edit_distance",  # mean over decoded tests, of the longer answer's length
    "result",  # share of decoded tests whose result is right behind any scratchpad
)


def _at(length: int, cell: pd.DataFrame, wrong_RD: Floats) -> list[Any]:
    """Returns the values of AT_LENGTH at a length, from the first wrong tokens; nan: none."""
    D = wrong_RD.shape[1]
    share = as_share(ratio(np.isnan(wrong_RD).astype(float), np.ones(D)), D)
    first_error = np.nanmedian(wrong_RD) if share.value < 1 else np.nan
    tokens = cell["token_hits"].sum() / cell["n_tokens"].sum()
    stops = cell["stop_errors"].sum() / wrong_RD.size
    decoded = [_mean_of_lists(cell[key]) for key in ("edit_distances", "results_right")]
    return [length, D, share.value, share.low, share.high, first_error, tokens, stops, *decoded]


def _mean_of_lists(lists: Iterable[Any]) -> float:
    """Returns the mean over the first values, which are of the same tests in all seeds."""
    n = min(0 if tests is None else len(tests) for tests in lists)
    return float(np.mean([[*tests[:n]] for tests in lists])) if n else np.nan


def _mean_over(wrong: Mapping[int, Floats], lengths: Sequence[int]) -> Estimate | None:
    """Returns the accuracy over lengths, each with the same weight; None if one has no value.

    Its interval is as wide as if all of them had the fewest examples.
    """
    if not lengths or not set(lengths) <= set(wrong):
        return None
    sizes = [wrong[n].shape[1] for n in lengths]
    weights_D = np.concatenate([np.full(size, 1 / size) for size in sizes])
    right_RD = np.concatenate([np.isnan(wrong[n]).astype(float) for n in lengths], axis=1)
    return as_share(ratio(right_RD * weights_D, weights_D), min(sizes) * len(lengths))


def mean_ranks(by_task: Mapping[str, Sequence[Accuracy]]) -> dict[str, Estimate]:
    """Returns each series' mean rank by accuracy on unseen lengths; 1 is best.

    Ties share the mean of their ranks. Of the series that have a value in every task, if there are
    two of them with equally many seeds. Bounds are the best and the worst seed, no interval: the
    few values that a mean of ranks can have admit none that holds with two or three seeds.
    """
    tables = [
        {a.series: a.unseen.seeds for a in measured if a.unseen is not None}
        for measured in by_task.values()
    ]
    names = sorted(set[str].intersection(*map(set[str], tables))) if tables else []
    if len(names) < 2 or len({len(table[name]) for table in tables for name in names}) > 1:
        return {}
    ranks = [
        pd.DataFrame({name: table[name] for name in names}).rank(axis=1, ascending=False)
        for table in tables
    ]
    mean = sum(ranks[1:], ranks[0]) / len(ranks)  # by seed and series
    seeds = {name: tuple(mean[name]) for name in names}
    return {
        name: Estimate(value=fmean(each), low=min(each), high=max(each), seeds=each)
        for name, each in seeds.items()
    }
