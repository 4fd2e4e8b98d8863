"""Accuracy of a task: the share of right answers by length, and what it comes to.

Examples are the unit, the same ones for all schemes and seeds. R seeds, D examples, N draws, S
series.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lengthgen.analysis.intervals import Estimate, Floats, draws, of_draws
from lengthgen.analysis.seed_groups import Series

HALF = 0.5  # L50: the longest length with at least this share of right answers
FIFTH = 0.2  # k_max: with at least this one
Z = 1.959964  # of a 95% interval

# What counts in ranks, means over tasks and correlations. No paper sets these; the reasons are:
LEARNED = 0.95  # least accuracy up to L: below it, errors beyond L may be those made within it
UNCOUNTED = f"less than {LEARNED:.0%} right up to L, or unknown there; neither compared nor ranked"
BEYOND_CHANCE = 0.05  # of the best beyond L: 200 wrong answers still allow 0.019 (Wilson)
LEAST_CORRELATED = 6  # schemes: of 5, a perfect order has P = 2/120, the next one 10/120
EXACT = 8  # schemes of which every permutation is counted: 8! = 40,320; of more,
PERMUTATIONS = 9999  # are drawn
ROUNDING = 1e-9  # of means of shares
DECODED = {  # what rows have of decoded tests: the name of a measure, and its field
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

    series: Series
    exact: Mapping[int, Estimate]  # right answers
    tokens: Mapping[int, float]  # right tokens, each after the right ones before it
    stops: Mapping[int, float]  # answers that first go wrong in where they stop
    n_examples: Mapping[int, int]
    seen: Estimate | None  # up to L
    unseen: Estimate | None  # beyond
    unseen_N: Floats | None = field(repr=False)  # the latter in each draw
    decoded: Mapping[str, Decoded]  # by name of DECODED, those that were measured

    @property
    def excluded(self) -> str | None:
        """Why the series counts in no rank, mean or correlation; None if it does."""
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
        lengths = sorted({p.length for p in self.series.points})
        good: int | None = None
        for length in lengths:
            if length not in self.exact:  # no value there: neither more nor less
                return f"{good} (n/a beyond)" if good is not None else "-"
            if self.exact[length].value < share:
                return f"< {lengths[0]}" if good is None else str(good)
            good = length
        return f">= {good}" if good is not None else "-"


def accuracies(lines: Sequence[Series]) -> list[Accuracy]:
    """Returns the accuracy of each series of one task."""
    lengths = [{p.length for p in line.points} for line in lines]
    shared = set[int].intersection(*lengths) if lengths else set[int]()
    return [_accuracy(line, shared) for line in lines]


def wilson(right: int, n: int) -> tuple[float, float]:
    """Returns the 95% interval of a share of independent answers (Wilson 1927, JASA 22)."""
    centre, spread = right + Z**2 / 2, Z * math.sqrt(right * (n - right) / n + Z**2 / 4)
    return (centre - spread) / (n + Z**2), (centre + spread) / (n + Z**2)


def counted(
    by_task: Mapping[str, Sequence[Accuracy]], chance: Mapping[str, float]
) -> dict[str, list[Accuracy]]:
    """Returns the series that learned each task, of the tasks that one of them solves beyond L.

    Solved: BEYOND_CHANCE above the task's `chance`. Upper bounds are left out.
    """
    learned = {
        task: [one for one in found if one.excluded is None and not one.series.bound]
        for task, found in by_task.items()
    }
    return {
        task: found
        for task, found in learned.items()
        if any(
            one.unseen is not None and one.unseen.value >= chance[task] + BEYOND_CHANCE - ROUNDING
            for one in found
        )
    }


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """Spearman's rho of n pairs, and the share of permutations with one as far from 0."""

    rho: float
    p: float
    n: int


def correlation(one: Sequence[float], other: Sequence[float]) -> Correlation | None:
    """Returns the correlation of ranks, ties sharing the mean of theirs.

    None for less than LEAST_CORRELATED pairs, or if all values of a side are equal. P is exact for
    up to EXACT pairs.
    """
    from scipy import stats  # half a second, and few reports come here

    n = len(one)
    ranks_S, others_S = (stats.rankdata(values) - (n + 1) / 2 for values in (one, other))
    spread = math.sqrt(float(ranks_S @ ranks_S) * float(others_S @ others_S))
    if n < LEAST_CORRELATED or not spread:
        return None

    def strength(drawn: Floats, axis: int) -> Floats:
        return np.abs(drawn @ others_S)

    test = stats.permutation_test(
        (ranks_S,),
        strength,
        permutation_type="pairings",
        alternative="greater",
        n_resamples=math.factorial(n) if n <= EXACT else PERMUTATIONS,
        rng=np.random.default_rng(0),
    )
    return Correlation(rho=float(ranks_S @ others_S) / spread, p=float(test.pvalue), n=n)


def agreement(one: Sequence[float], other: Sequence[float]) -> str:
    """Returns the rank correlation with n and P as text, or why there is none."""
    found = correlation(one, other)
    if found is not None:
        return f"Spearman's rho {found.rho:+.2f} (n = {found.n}, permutation P = {found.p:.2g})"
    if len(one) < LEAST_CORRELATED:
        few = f"below {LEAST_CORRELATED} schemes only a perfect order can have P < 5%"
        return f"no rank correlation (n = {len(one)}: {few})"
    return "no rank correlation (all values of a side are equal)"


def mean_ranks(by_task: Mapping[str, Sequence[Accuracy]]) -> dict[str, Estimate]:
    """Returns the mean over tasks of each label's rank by accuracy on unseen lengths; 1 is best.

    Ties share the mean of their ranks. Of the labels that have a value in every task, if there are
    two of them. The interval is of the same resamples of seeds and examples as that of accuracy;
    which tasks there are is given.
    """
    values = {
        task: {one.series.label: one.unseen_N for one in found if one.unseen_N is not None}
        for task, found in by_task.items()
    }
    if not values:
        return {}
    labels = sorted(set[str].intersection(*(set(found) for found in values.values())))
    n = min((len(of) for found in values.values() for of in found.values()), default=0)
    if len(labels) < 2 or len({len(of) for f in values.values() for of in f.values()}) > 1:
        return {}
    total_NS = np.zeros((n, len(labels)))
    for found in values.values():
        values_NS = np.stack([found[label] for label in labels], axis=1)
        better = (values_NS[:, :, None] < values_NS[:, None, :]).sum(2)
        equal = (values_NS[:, :, None] == values_NS[:, None, :]).sum(2)
        total_NS += better + (equal + 1) / 2
    ranks_NS = total_NS / len(values)
    return {label: of_draws(ranks_NS[:, i]) for i, label in enumerate(labels)}


def _accuracy(line: Series, shared: Collection[int]) -> Accuracy:
    exact: dict[int, Estimate] = {}
    values_N: dict[int, Floats] = {}
    tokens: dict[int, float] = {}
    stops: dict[int, float] = {}
    examples: dict[int, int] = {}
    for length in sorted({p.length for p in line.points}):
        points = [p for p in line.points if p.length == length and p.skipped is None]
        if len(points) < len(line.runs):
            continue
        right_RD = np.array(
            [[at is None for row in p.rows for at in row.first_wrong or []] for p in points],
            dtype=np.float64,
        )
        n_seeds, n_examples = right_RD.shape
        examples[length] = n_examples
        drawn = draws(n_seeds, n_examples)
        values_N[length] = drawn.means(right_RD, np.ones(n_examples))
        exact[length] = _widened(drawn.estimate(values_N[length]), n_examples)
        rows = [row for p in points for row in p.rows]
        tokens[length] = sum(r.token_hits or 0 for r in rows) / sum(r.n_tokens for r in rows)
        stops[length] = sum(r.stop_errors or 0 for r in rows) / (n_seeds * n_examples)
    L = line.train_length
    short, long = ([n for n in shared if (n <= L) == seen] for seen in (True, False))
    seen_N, unseen_N = _mean_over(values_N, short), _mean_over(values_N, long)
    return Accuracy(
        series=line,
        exact=exact,
        tokens=tokens,
        stops=stops,
        n_examples=examples,
        seen=None if seen_N is None else _mean(seen_N, [examples[n] for n in short]),
        unseen=None if unseen_N is None else _mean(unseen_N, [examples[n] for n in long]),
        unseen_N=unseen_N,
        decoded={
            name: found
            for name, key in DECODED.items()
            if (found := _decoded(line, key, short, long)).by_length
        },
    )


def _decoded(line: Series, key: str, short: Sequence[int], long: Sequence[int]) -> Decoded:
    values_N: dict[int, Floats] = {}
    n_tests: dict[int, int] = {}
    by_length: dict[int, Estimate] = {}
    for length in sorted({p.length for p in line.points}):
        points = [p for p in line.points if p.length == length]
        lists = [[float(x) for row in p.rows for x in getattr(row, key) or ()] for p in points]
        n = min(map(len, lists))  # the first ones are the same in all
        if n == 0 or len(points) < len(line.runs):
            continue
        drawn = draws(len(lists), n)
        values_RD = np.array([values[:n] for values in lists])
        values_N[length], n_tests[length] = drawn.means(values_RD, np.ones(n)), n
        by_length[length] = drawn.estimate(values_N[length])
    seen_N, unseen_N = _mean_over(values_N, short), _mean_over(values_N, long)
    return Decoded(
        by_length=by_length,
        n_tests=n_tests,
        seen=None if seen_N is None else of_draws(seen_N),
        unseen=None if unseen_N is None else of_draws(unseen_N),
    )


def _widened(estimate: Estimate, n_examples: int) -> Estimate:
    """Returns the estimate with Wilson's interval where that is wider.

    A bootstrap of answers that are all right, or all wrong, has an interval of no width. Seeds
    share the examples: as many as one seed has are independent.
    """
    low, high = wilson(round(estimate.value * n_examples), n_examples)
    bounds = [(low, high), (estimate.low, estimate.high)]
    known = [pair for pair in bounds if not math.isnan(pair[0])]
    return replace(estimate, low=min(a for a, _ in known), high=max(b for _, b in known))


def _mean(values_N: Floats, n_examples: Sequence[int]) -> Estimate:
    """Returns the mean over lengths with so many examples; as wide as if all had the fewest."""
    return _widened(of_draws(values_N), min(n_examples) * len(n_examples))


def _mean_over(values_N: Mapping[int, Floats], lengths: Collection[int]) -> Floats | None:
    if not lengths or not set(lengths) <= set(values_N):
        return None
    return np.mean([values_N[length] for length in sorted(lengths)], axis=0)
