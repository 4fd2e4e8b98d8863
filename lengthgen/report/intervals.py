"""Intervals from variance components: what other seeds and other documents would have shown.

Each of R seeds scores each of D documents, of which document d holds w_d targets. A mean L is a
ratio of sums. Its variance is that of its influence values z_rd = D (S_rd - L w_d) / W: S_rd a sum
of nats, W the sum of w_d, scaled by the leverage 1 / sqrt((1 - w_d / W) D / (D - 1)).

    seeds      v_s = variance of the means of single seeds, over R; unknown with one seed
    documents  v_d = variance of z over documents (its mean over seeds), over D
    residual   v_e = variance of what neither explains, over R D; v_s and v_d both hold it

The interval is the mean +- sqrt(t(R-1)^2 v_s + t(f)^2 max(v_d - v_e, 0)), with degrees of freedom
f = (sum p_d^2)^2 / sum p_d^4 - 1, p_d = w_d / W: D - 1 where counts are equal. Each component keeps
its own t (Banerjee 1960, Sankhya 22), so it covers at least 95% whichever of them is the larger.

All pairs of means are compared jointly at 95% (Bonferroni). Those that differ from the best leave,
the rest is compared again (Hsu 1984, Annals of Statistics 12; Hansen, Lunde, Nason 2011, The model
confidence set, Econometrica 79). Two of them differ if

1. the interval of their difference, widened for half as many statements as there are means,
   excludes 0, and all seeds agree in sign: the seeds of one may vary more than the others',
2. the difference exceeds its joint interval, whose variance over seeds is pooled over the pairs
   that are left: with two or three seeds one pair alone knows it too badly.

results/statistics has simulated coverage and error rates. Shape suffixes: R seeds, D documents.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

LEVEL = 0.95

Floats = NDArray[np.float64]
Pair = tuple[str, str]  # labels
Mark = Literal["", "best", "tie", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The variance components of a mean."""

    seeds: float  # v_s; 0 with one seed, of which it is unknown
    documents: float  # v_d - v_e, not below 0
    n_seeds: int
    freedom: float  # degrees of freedom of the documents: fewer than D - 1 if counts differ

    def half_width(self, quantile: float) -> float:
        seeds = student(quantile, self.n_seeds - 1) ** 2 * self.seeds if self.n_seeds > 1 else 0.0
        return math.sqrt(seeds + student(quantile, self.freedom) ** 2 * self.documents)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number with its 95% interval.

    Both bounds are nan where there is no interval: with one document, which says nothing of others,
    where some seeds diverged, and where the number is undefined (a difference of two infinite
    losses). Where all seeds are infinite, so are the bounds.
    """

    value: float  # from all data: sums over seeds and documents, divided once
    low: float
    high: float
    seeds: tuple[float, ...]  # of each seed alone, in the order of seed numbers
    spread: Spread | None = None  # of the interval, where it comes from variance components

    @property
    def has_sign(self) -> bool:  # the interval and every seed lie on one side of 0
        return (self.low > 0 and min(self.seeds) > 0) or (self.high < 0 and max(self.seeds) < 0)

    def widened(self, n_statements: int) -> "Estimate":
        """Returns the estimate with the interval that holds in so many statements at once."""
        if self.spread is None:
            return self
        half = self.spread.half_width(upper(n_statements))
        return replace(self, low=self.value - half, high=self.value + half)


def upper(n_statements: int) -> float:
    """Returns the upper quantile of so many two-sided intervals that hold at once (Bonferroni)."""
    return 1 - (1 - LEVEL) / (2 * n_statements)


@lru_cache(maxsize=4096)
def student(quantile: float, freedom: float) -> float:
    """Returns a quantile of Student's t."""
    return float(special.stdtrit(freedom, quantile))  # stats.t.ppf, which takes 0.5 s to import


def ratio(sums_RD: Floats, counts_D: Floats) -> Estimate:
    """Returns the mean over seeds and documents, sums over counts; infinite where a sum is."""
    return _estimate(*_means(sums_RD, counts_D), sums_RD, counts_D)


def gap(a_RD: Floats, b_RD: Floats, counts_D: Floats) -> Estimate:
    """Returns the mean of a minus that of b, paired by seed and document; nan if both diverged."""
    (a, of_a), (b, of_b) = _means(a_RD, counts_D), _means(b_RD, counts_D)
    seeds = tuple(x - y for x, y in zip(of_a, of_b, strict=True))
    with np.errstate(invalid="ignore"):
        return _estimate(a - b, seeds, a_RD - b_RD, counts_D)


def _means(sums_RD: Floats, counts_D: Floats) -> tuple[float, tuple[float, ...]]:
    """Returns the mean of all seeds and of each alone."""
    count = math.fsum(counts_D)
    value = math.fsum(sums_RD.ravel()) / (len(sums_RD) * count)  # infinite if one of them is
    return value, tuple(math.fsum(sums_D) / count for sums_D in sums_RD)


def _estimate(
    value: float, seeds: tuple[float, ...], sums_RD: Floats, counts_D: Floats
) -> Estimate:
    R, D = sums_RD.shape
    if D == 1 or not np.isfinite(sums_RD).all():
        bound = value if D > 1 and {*seeds} == {value} else math.nan
        return Estimate(value=value, low=bound, high=bound, seeds=seeds)
    seeds_R, share_D = np.array(seeds), counts_D / counts_D.sum()
    scale_D = 1 / np.sqrt(1 - share_D)
    documents_D = (sums_RD.mean(0) / counts_D.sum() - value * share_D) * scale_D
    v_documents = float((documents_D**2).sum())
    v_seeds = v_residual = 0.0
    if R > 1:
        v_seeds = float(seeds_R.var(ddof=1)) / R
        residual_RD = (sums_RD / counts_D.sum() - seeds_R[:, None] * share_D) * scale_D
        residual_RD -= documents_D
        v_residual = float((residual_RD**2).sum()) / (R * (R - 1))
    spread = Spread(
        seeds=v_seeds,
        documents=max(0.0, v_documents - v_residual),
        n_seeds=R,
        freedom=max(1.0, float((share_D**2).sum() ** 2 / (share_D**4).sum()) - 1),
    )
    exact = Estimate(value=value, low=value, high=value, seeds=seeds, spread=spread)
    return exact.widened(1)


def as_share(estimate: Estimate, n_examples: int) -> Estimate:
    """Returns a share with its interval within 0 and 1, and with Wilson's where that is wider.

    Answers that are all right, or all wrong, do not vary (Wilson 1927, JASA 22). Seeds share the
    examples: as many as one seed has are independent.
    """
    z, n, right = float(special.ndtri(upper(1))), n_examples, round(estimate.value * n_examples)
    centre, spread = right + z**2 / 2, z * math.sqrt(right * (n - right) / n + z**2 / 4)
    low, high = (centre - spread) / (n + z**2), (centre + spread) / (n + z**2)
    if not math.isnan(estimate.low):
        low, high = min(low, max(0.0, estimate.low)), max(high, min(1.0, estimate.high))
    return replace(estimate, low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Which of several series at one length differ, jointly at 95%."""

    best: str  # of least loss
    # tie: not shown to differ from the best; unknown: less than two seeds or documents in common
    # with it, diverged, or of a lower loss by seeds that the best lacks; "": worse.
    marks: Mapping[str, Mark]
    different: frozenset[Pair]  # the better one first


def compare(losses: Mapping[str, float], pairs: Mapping[Pair, Estimate]) -> Comparison | None:
    """Returns the comparison of losses from the differences (a minus b) of their pairs.

    None if no pair has an interval over seeds, or no loss is finite.
    """
    known = {pair: e for pair, e in pairs.items() if len(e.seeds) > 1 and not math.isnan(e.low)}
    labels = {label for pair in known for label in pair}
    different = _different(known, labels)
    # Losses are of all seeds of a series, differences of those that two share: the least loss may
    # be of a series that another is shown to be better than.
    least = labels - {worse for _, worse in different} or labels
    best = min(least, key=lambda label: (losses[label], label), default=None)
    if best is None or math.isinf(losses[best]):
        return None
    left, worse = set(labels), {""}
    while worse:
        different |= _different(known, left)
        worse = {b for a, b in different if a == best} & left
        left -= worse
    marks: dict[str, Mark] = dict.fromkeys(losses, "unknown")
    for label in {label for pair in known if best in pair for label in pair}:
        if label in left:
            marks[label] = "best" if label == best else "tie"
        elif losses[label] >= losses[best]:
            marks[label] = ""
    return Comparison(best=best, marks=marks, different=frozenset(different))


def _different(known: Mapping[Pair, Estimate], left: Collection[str]) -> set[Pair]:
    """Returns the pairs of those left that differ, the better one first."""
    pairs = {(a, b): e for (a, b), e in known.items() if a in left and b in left}
    half_widths = _joint_half_widths(pairs, len(left))
    return {
        (b, a) if e.value > 0 else (a, b)
        for (a, b), e in pairs.items()
        if e.widened(len(left) // 2).has_sign and abs(e.value) > half_widths.get((a, b), 0.0)
    }


def _joint_half_widths(pairs: Mapping[Pair, Estimate], n_series: int) -> dict[Pair, float]:
    """Returns half-widths of differences in the joint interval, seeds pooled over pairs."""
    spreads = {pair: e.spread for pair, e in pairs.items() if e.spread is not None}
    if not spreads:
        return {}
    freedom = sum(s.n_seeds - 1 for s in spreads.values())
    pooled = sum((s.n_seeds - 1) * s.n_seeds * s.seeds for s in spreads.values()) / freedom
    quantile, n_seeds = upper(len(pairs)), min(s.n_seeds for s in spreads.values())
    v_seeds = student(quantile, (n_series - 1) * (n_seeds - 1)) ** 2 * pooled
    return {
        pair: math.sqrt(v_seeds / s.n_seeds + student(quantile, s.freedom) ** 2 * s.documents)
        for pair, s in spreads.items()
    }
