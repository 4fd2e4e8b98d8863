"""Intervals from variance components: what other seeds and other documents would have shown.

The design is crossed: each of R seeds scores each of D documents (clusters), of which document d
holds w_d targets, the same ones for all seeds. A mean is a ratio of sums, so its variance is that
of its influence values z_rd = D (S_rd - L w_d) / W (S_rd a sum of nats, L the mean, W the sum of
w_d), each scaled by its leverage: 1 / sqrt((1 - w_d / W) D / (D - 1)), which is 1 for equal counts.

    seeds      v_s = variance of the means of single seeds, over R
    documents  v_d = variance of z over documents (its mean over seeds), over D
    residual   v_e = variance of what neither explains, over R D; v_s and v_d both hold it

The interval is the mean +- sqrt(t(R-1)^2 v_s + t(D-1)^2 max(v_d - v_e, 0)). Each component keeps
its own t (Banerjee 1960, Sankhya 22), so it covers at least 95% whichever of them is the larger.
One t with Satterthwaite's degrees of freedom covers 88% with two seeds and 92% with three
(results/statistics). One seed: v_s is unknown, and the interval speaks of other documents only.

Which of several means may be the least is a statement about all of them at once. All pairs are
compared jointly at 95% (Bonferroni); those that differ from the best leave, the rest is compared
again (Hsu 1984, Annals of Statistics 12; Hansen, Lunde, Nason, The model confidence set, 2011,
Econometrica 79). Two of them differ if

1. the interval of their difference, widened for half as many statements as there are means,
   excludes 0, and all seeds agree in sign: the seeds of one may vary more than the others',
2. the difference exceeds its joint interval, whose variance over seeds is pooled over the pairs
   that are left: with two or three seeds one pair alone knows it too badly.

Equal schemes are called different in 0 to 4% of tables if seeds vary equally in all, and in about
5% of tables of two if they vary up to ten times as much in one (results/statistics).

Shape suffixes: R seeds, D documents.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

LEVEL = 0.95
POWER = 0.8  # with which a detectable value is found

Floats = NDArray[np.float64]
Pair = tuple[str, str]  # labels
Mark = Literal["", "best", "tie", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The variance components of a mean."""

    seeds: float  # v_s; 0 with one seed, of which it is unknown
    documents: float  # v_d - v_e, not below 0
    residual: float  # v_e
    n_seeds: int
    n_documents: int
    freedom: float  # degrees of freedom of the documents: fewer than D - 1 if counts differ

    def of_documents(self, n_documents: int) -> "Spread":
        """Returns what is to be expected of so many documents and the same seeds."""
        share, noise = self.n_documents / n_documents, min(self.seeds, self.residual)
        return replace(
            self,
            seeds=self.seeds - noise + noise * share,
            documents=self.documents * share,
            residual=self.residual * share,
            n_documents=n_documents,
            freedom=max(1.0, (self.freedom + 1) / share - 1),
        )

    def half_width(self, quantile: float) -> float:
        """Returns how far a quantile of the mean lies from its centre."""
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
    def has_sign(self) -> bool:
        """Whether the interval lies on one side of 0, and every seed on that side too."""
        return (self.low > 0 and min(self.seeds) > 0) or (self.high < 0 and max(self.seeds) < 0)

    @property
    def of_scheme(self) -> bool:
        """Whether the interval speaks of other seeds: one checkpoint speaks for itself alone."""
        return len(self.seeds) > 1

    @property
    def detectable(self) -> float:
        """The least absolute value that such data show at 95% with a power of 80%; else nan."""
        if self.spread is None:
            return math.nan
        return self.spread.half_width(upper(1)) + self.spread.half_width(POWER)

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
    """Returns the mean of a less that of b, paired by seed and document; nan if both diverged."""
    (a, of_a), (b, of_b) = _means(a_RD, counts_D), _means(b_RD, counts_D)
    seeds = tuple(x - y for x, y in zip(of_a, of_b, strict=True))
    with np.errstate(invalid="ignore"):
        return _estimate(a - b, seeds, a_RD - b_RD, counts_D)


def _means(sums_RD: Floats, counts_D: Floats) -> tuple[float, tuple[float, ...]]:
    """Returns the mean of all seeds and of each alone."""
    count = math.fsum(counts_D)
    value = _sum(sums_RD.ravel()) / (len(sums_RD) * count)
    return value, tuple(_sum(sums_D) / count for sums_D in sums_RD)


def _sum(values: Floats) -> float:
    return math.inf if np.isinf(values).any() else math.fsum(values)


def _estimate(
    value: float, seeds: tuple[float, ...], sums_RD: Floats, counts_D: Floats
) -> Estimate:
    if len(counts_D) == 1 or not np.isfinite(sums_RD).all():
        known = len(counts_D) > 1 and all(mean == value for mean in seeds)
        bound = value if known else math.nan
        return Estimate(value=value, low=bound, high=bound, seeds=seeds)
    spread = _spread(value, np.array(seeds), sums_RD, counts_D)
    half = spread.half_width(upper(1))
    return Estimate(value=value, low=value - half, high=value + half, seeds=seeds, spread=spread)


def _spread(value: float, seeds_R: Floats, sums_RD: Floats, counts_D: Floats) -> Spread:
    R, D = sums_RD.shape
    share_D = counts_D / counts_D.sum()
    scale_D = 1 / np.sqrt(1 - share_D)
    documents_D = (sums_RD.mean(0) / counts_D.sum() - value * share_D) * scale_D
    v_documents = float((documents_D**2).sum())
    v_seeds = v_residual = 0.0
    if R > 1:
        v_seeds = float(seeds_R.var(ddof=1)) / R
        residual_RD = (sums_RD / counts_D.sum() - seeds_R[:, None] * share_D) * scale_D
        residual_RD -= documents_D
        v_residual = float((residual_RD**2).sum()) / (R * (R - 1))
    return Spread(
        seeds=v_seeds,
        documents=max(0.0, v_documents - v_residual),
        residual=v_residual,
        n_seeds=R,
        n_documents=D,
        freedom=max(1.0, float((share_D**2).sum() ** 2 / (share_D**4).sum()) - 1),
    )


def wilson(right: int, n: int) -> tuple[float, float]:
    """Returns the 95% interval of a share of independent answers (Wilson 1927, JASA 22)."""
    z = float(special.ndtri(upper(1)))
    centre, spread = right + z**2 / 2, z * math.sqrt(right * (n - right) / n + z**2 / 4)
    return (centre - spread) / (n + z**2), (centre + spread) / (n + z**2)


def as_share(estimate: Estimate, n_examples: int) -> Estimate:
    """Returns a share with its interval within 0 and 1, and with Wilson's where that is wider.

    Answers that are all right, or all wrong, do not vary. Seeds share the examples: as many as one
    seed has are independent.
    """
    low, high = wilson(round(estimate.value * n_examples), n_examples)
    if not math.isnan(estimate.low):
        low, high = min(low, max(0.0, estimate.low)), max(high, min(1.0, estimate.high))
    return replace(estimate, low=low, high=high)


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Returns the bounds of the central half; nan if a value is.

    Bounds are values themselves, the outer ones of two, so that infinite ones need no arithmetic.
    """
    if any(map(math.isnan, values)):
        return math.nan, math.nan
    ordered = sorted(values)
    i = (len(ordered) - 1) // 4
    return ordered[i], ordered[-1 - i]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Which of several series at one length differ, jointly at 95%."""

    best: str  # label of the least loss
    ties: frozenset[str]  # no difference from it is shown
    unknown: frozenset[str]  # not comparable with it: one seed or document in common, or diverged
    ranks: Mapping[str, tuple[int, int]]  # of the others: the least and the largest possible one
    different: frozenset[Pair]  # the better one first

    def mark(self, label: str) -> Mark:
        """Returns how a series compares with the best; "" if it is worse."""
        if label == self.best:
            return "best"
        if label in self.ties:
            return "tie"
        return "unknown" if label in self.unknown else ""


def compare(losses: Mapping[str, float], pairs: Mapping[Pair, Estimate]) -> Comparison | None:
    """Returns the comparison of losses from the differences (a less b) of their pairs.

    None if no pair has an interval over seeds, or no loss is finite.
    """
    known = {pair: e for pair, e in pairs.items() if e.of_scheme and not math.isnan(e.low)}
    labels = {label for pair in known for label in pair}
    different = _different(known, len(labels))
    # Losses are of all seeds of a series, differences of those that two share: the least loss may
    # be of a series that another is shown to be better than.
    least = labels - {worse for _, worse in different} or labels
    best = min(least, key=lambda label: (losses[label], label), default=None)
    if best is None or math.isinf(losses[best]):
        return None
    comparable = {label for pair in known if best in pair for label in pair}
    left = set(labels)
    while True:
        among = {(a, b): e for (a, b), e in known.items() if a in left and b in left}
        different |= _different(among, len(left))
        worse = {b for a, b in different if a == best} & left
        if not worse:
            break
        left -= worse
    return Comparison(
        best=best,
        ties=frozenset((comparable & left) - {best}),
        unknown=frozenset(set(losses) - comparable),
        ranks={
            label: (
                1 + sum(b == label for _, b in different),
                len(labels) - sum(a == label for a, _ in different),
            )
            for label in sorted(comparable)
        },
        different=frozenset(different),
    )


def _different(pairs: Mapping[Pair, Estimate], n_series: int) -> set[Pair]:
    """Returns the pairs that differ, the better one first."""
    spreads = [e.spread for e in pairs.values() if e.spread is not None]
    half_width = _joint_half_width(spreads, n_series, len(pairs)) if spreads else None
    different = set[Pair]()
    for (a, b), estimate in pairs.items():
        spread = estimate.spread
        half = 0.0 if spread is None or half_width is None else half_width(spread)
        own = estimate.widened(n_series // 2)
        if own.has_sign and abs(estimate.value) > half:
            different.add((b, a) if estimate.value > 0 else (a, b))
    return different


def _joint_half_width(
    spreads: Collection[Spread], n_series: int, n_pairs: int
) -> Callable[[Spread], float]:
    """Returns the half-width of a difference in the joint interval, seeds pooled over pairs."""
    freedom = sum(s.n_seeds - 1 for s in spreads)
    of_one_seed = sum((s.n_seeds - 1) * s.n_seeds * s.seeds for s in spreads) / freedom
    least = min(s.n_seeds for s in spreads)
    t_seeds = student(upper(n_pairs), (n_series - 1) * (least - 1))

    def half_width(s: Spread) -> float:
        t_documents = student(upper(n_pairs), s.freedom)
        return math.sqrt(t_seeds**2 * of_one_seed / s.n_seeds + t_documents**2 * s.documents)

    return half_width
