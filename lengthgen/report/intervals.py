"""Intervals from variance components: what other seeds and other documents would have shown.

Each of R seeds scores each of D documents. Those of one project or author are alike: units are the
G groups of documents, or documents where no group is known, or one alone. Group g holds w_g of W
targets, a share p_g. A mean L is a ratio of sums. Its variance is that of influence values
z_rg = (S_rg - L_r w_g) / W, S_rg a sum of nats, L_r the mean of seed r, scaled by the leverage
1 / sqrt(1 - p_g) (Bell and McCaffrey 2002, Survey Methodology 28). Z_g is its mean over seeds.

    seeds     v_s = variance of the means of single seeds, over R; unknown with one seed
    groups    v_g = sum of Z_g^2; within a group, documents may vary together in any way
    residual  v_e = sum of (z_rg - Z_g)^2, over R (R - 1); v_s and v_g both hold it

v_s + v_g - v_e is the two-way variance of Cameron, Gelbach and Miller 2011 (Journal of Business and
Economic Statistics 29). The interval is the mean +- sqrt(t(R-1)^2 v_s + t(f)^2 max(v_g - v_e, 0)).
Each component keeps its own t (Banerjee 1960, Sankhya 22), so it covers at least 95% whichever of
them is the larger. Degrees of freedom f are those of Bell and McCaffrey (Imbens and Kolesar 2016,
Review of Economics and Statistics 98) for targets that vary alike: with a_g = p_g^2 / (1 - p_g),
f = 1 / (sum p_g^2 + (sum a_g)^2 - sum a_g^2), which is G - 1 where groups are equal, else less.

All pairs of means are compared jointly at 95% (Bonferroni). Those that differ from the best leave,
the rest is compared again (Hsu 1984, Annals of Statistics 12; Hansen, Lunde, Nason 2011, The model
confidence set, Econometrica 79). Two of them differ if

1. the interval of their difference, widened for half as many statements as there are means,
   excludes 0, and all seeds agree in sign: the seeds of one may vary more than the others',
2. the difference exceeds its joint interval, whose variance over seeds is pooled over the pairs
   that are left: with two or three seeds one pair alone knows it too badly.

results/statistics has simulated coverage and error rates. Shape suffixes: R seeds, D documents, G
groups.
"""

import math
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lengthgen.data.windows import Ints

LEVEL = 0.95

Floats = NDArray[np.float64]
SeriesPair = tuple[str, str]  # labels
Key = TypeVar("Key", bound=Hashable)
Mark = Literal["", "best", "tie", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The variance components of a mean; arrays of them, of one shape, of many means at once."""

    seeds: float  # v_s; 0 with one seed, of which it is unknown
    groups: float  # v_g - v_e, not below 0
    n_seeds: int
    freedom: float  # f, of the groups

    def half_width(self, quantile: float) -> float:
        seeds = student(quantile, self.n_seeds - 1) ** 2 * self.seeds if self.n_seeds > 1 else 0.0
        return (seeds + student(quantile, self.freedom) ** 2 * self.groups) ** 0.5


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


def ratio(sums_RD: Floats, counts_D: Floats, groups_D: Ints | None = None) -> Estimate:
    """Returns the mean over seeds and documents, sums over counts; infinite where a sum is.

    `groups_D` numbers the group of each document; without it documents are independent.
    """
    return _estimate(*_means(sums_RD, counts_D), sums_RD, counts_D, groups_D)


def gap(a_RD: Floats, b_RD: Floats, counts_D: Floats, groups_D: Ints | None = None) -> Estimate:
    """Returns the mean of a minus that of b, paired by seed and document; nan if both diverged."""
    (a, of_a), (b, of_b) = _means(a_RD, counts_D), _means(b_RD, counts_D)
    seeds = tuple(x - y for x, y in zip(of_a, of_b, strict=True))
    with np.errstate(invalid="ignore"):
        return _estimate(a - b, seeds, a_RD - b_RD, counts_D, groups_D)


def _means(sums_RD: Floats, counts_D: Floats) -> tuple[float, tuple[float, ...]]:
    """Returns the mean of all seeds and of each alone."""
    count = math.fsum(counts_D)
    value = math.fsum(sums_RD.ravel()) / (len(sums_RD) * count)  # infinite if one of them is
    return value, tuple(math.fsum(sums_D) / count for sums_D in sums_RD)


def _estimate(
    value: float,
    seeds: tuple[float, ...],
    sums_RD: Floats,
    counts_D: Floats,
    groups_D: Ints | None,
) -> Estimate:
    D = len(counts_D)
    if D == 1 or not np.isfinite(sums_RD).all():
        bound = value if D > 1 and {*seeds} == {value} else math.nan
        return Estimate(value=value, low=bound, high=bound, seeds=seeds)
    spread = spread_of(*clustered(sums_RD, counts_D, groups_D))
    exact = Estimate(value=value, low=value, high=value, seeds=seeds, spread=spread)
    return exact.widened(1)


def clustered(sums_RD: Floats, counts_D: Floats, groups_D: Ints | None) -> tuple[Floats, Floats]:
    """Returns sums [..., R, G] and counts [G] of groups; of one group alone those of documents."""
    if groups_D is None or len(set(groups_D.tolist())) in (1, len(groups_D)):
        return sums_RD, counts_D
    order = np.argsort(groups_D, kind="stable")
    first = np.flatnonzero(np.diff(groups_D[order], prepend=groups_D.min() - 1))
    return (
        np.add.reduceat(sums_RD[..., order], first, axis=-1),
        np.add.reduceat(counts_D[order], first),
    )


def spread_of(sums_RG: Floats, counts_G: Floats) -> Spread:
    """Returns the variance components of finite sums; of sums [..., R, G] arrays of them."""
    R, share_G = sums_RG.shape[-2], counts_G / counts_G.sum()
    means_R1 = sums_RG.sum(-1, keepdims=True) / counts_G.sum()
    z_RG = (sums_RG / counts_G.sum() - means_R1 * share_G) / np.sqrt(1 - share_G)
    z_1G = z_RG.mean(-2, keepdims=True)
    v_seeds: Any = np.zeros(sums_RG.shape[:-2])[()]
    v_groups = (z_1G**2).sum((-2, -1))
    if R > 1:
        v_seeds = means_R1.var((-2, -1), ddof=1) / R
        v_groups = np.maximum(0.0, v_groups - ((z_RG - z_1G) ** 2).sum((-2, -1)) / (R * (R - 1)))
    leverage_G = share_G**2 / (1 - share_G)
    trace = (share_G**2).sum() + leverage_G.sum() ** 2 - (leverage_G**2).sum()
    return Spread(seeds=v_seeds, groups=v_groups, n_seeds=R, freedom=float(1 / trace))


def holm(statements: Collection[Key], is_shown: Callable[[Key, int], bool]) -> set[Key]:
    """Returns the statements that are shown at once at 95% (Holm 1979, Scand. J. Statistics 6).

    `is_shown` says if one is by the interval that holds in so many at once: as many as are left.
    """
    left, shown = [*statements], set[Key]()
    while found := {key for key in left if is_shown(key, len(left))}:
        shown |= found
        left = [key for key in left if key not in found]
    return shown


def signs(estimates: Mapping[Key, Estimate]) -> set[Key]:
    """Returns the estimates that have a sign at once, by Holm's correction."""
    return holm(estimates, lambda key, n: estimates[key].widened(n).has_sign)


def as_share(estimate: Estimate, n_examples: int, n_statements: int = 1) -> Estimate:
    """Returns a share with its interval within 0 and 1, and with Wilson's where that is wider.

    Answers that are all right, or all wrong, do not vary (Wilson 1927, JASA 22). Seeds share the
    examples: as many as one seed has are independent.
    """
    n, right = n_examples, round(estimate.value * n_examples)
    z = float(special.ndtri(upper(n_statements)))
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
    different: frozenset[SeriesPair]  # the better one first


def compare(losses: Mapping[str, float], pairs: Mapping[SeriesPair, Estimate]) -> Comparison | None:
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


def _different(known: Mapping[SeriesPair, Estimate], left: Collection[str]) -> set[SeriesPair]:
    """Returns the pairs of those left that differ, the better one first."""
    pairs = {(a, b): e for (a, b), e in known.items() if a in left and b in left}
    half_widths = _joint_half_widths(pairs, len(left))
    return {
        (b, a) if e.value > 0 else (a, b)
        for (a, b), e in pairs.items()
        if e.widened(len(left) // 2).has_sign and abs(e.value) > half_widths.get((a, b), 0.0)
    }


def _joint_half_widths(
    pairs: Mapping[SeriesPair, Estimate], n_series: int
) -> dict[SeriesPair, float]:
    """Returns half-widths of differences in the joint interval, seeds pooled over pairs."""
    spreads = {pair: e.spread for pair, e in pairs.items() if e.spread is not None}
    if not spreads:
        return {}
    freedom = sum(s.n_seeds - 1 for s in spreads.values())
    pooled = sum((s.n_seeds - 1) * s.n_seeds * s.seeds for s in spreads.values()) / freedom
    quantile, n_seeds = upper(len(pairs)), min(s.n_seeds for s in spreads.values())
    v_seeds = student(quantile, (n_series - 1) * (n_seeds - 1)) ** 2 * pooled
    return {
        pair: math.sqrt(v_seeds / s.n_seeds + student(quantile, s.freedom) ** 2 * s.groups)
        for pair, s in spreads.items()
    }
