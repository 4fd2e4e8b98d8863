"""Intervals by the two-level bootstrap: what other seeds and other documents would have shown.

The design is crossed: each of R seeds scores each of D documents. A resample draws R seeds and,
independently, D documents, both with replacement, and takes the token-weighted mean of what they
meet in (Owen, The pigeonhole bootstrap, 2007, arXiv:0712.1111). The interval runs from the 2.5th to
the 97.5th percentile of 2000 resamples. Seeds and documents of the same numbers are resampled alike
every time, so that a difference of two numbers is one of the same resamples.

Shape suffixes: R seeds, D documents, N = 1 + R + 2000 draws (all data, each seed alone, resamples).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
LEVEL = 0.95

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number with its 95% interval.

    Both bounds are nan where there is no interval: with one document, which says nothing of others,
    and where the number is undefined (a difference of two infinite losses). With one seed the
    interval covers documents only; with less than five it is too narrow where seeds differ more
    than documents do: with three it spans their values, and holds the truth 3 times out of 4.
    A diverged seed counts as infinite: the value is infinite then,
    and a bound is finite if more than 2.5% of the resamples beyond it are.
    """

    value: float  # from all data: sums over seeds and documents, divided once
    low: float
    high: float
    seeds: tuple[float, ...]  # of each seed alone, in the order of seed numbers

    @property
    def has_sign(self) -> bool:
        """Whether the interval lies on one side of 0, and every seed on that side too."""
        return (self.low > 0 and min(self.seeds) > 0) or (self.high < 0 and max(self.seeds) < 0)


@dataclass(frozen=True, kw_only=True)
class Draws:
    """How often each seed and each document counts, in each of the N draws."""

    seeds_NR: Floats
    documents_ND: Floats

    def means(self, sums_RD: Floats, counts_D: Floats) -> Floats:
        """Returns the sum over the count in each draw, [N]; infinite where a drawn sum is."""
        infinite_RD = np.isinf(sums_RD)
        total_N = self._total(np.where(infinite_RD, 0.0, sums_RD))
        if infinite_RD.any():
            total_N[self._total(infinite_RD.astype(np.float64)) > 0] = np.inf
        return total_N / (self.seeds_NR.sum(1) * (self.documents_ND @ counts_D))

    def estimate(self, values_N: Floats) -> Estimate:
        """Returns the value of all data, its interval, and the value of each seed."""
        found = of_draws(values_N)
        if self.documents_ND.shape[1] > 1:
            return found
        return replace(found, low=math.nan, high=math.nan)

    def _total(self, values_RD: Floats) -> Floats:
        return ((self.documents_ND @ values_RD.T) * self.seeds_NR).sum(1)


def of_draws(values_N: Floats) -> Estimate:
    """Returns the value of all data, its interval, and the value of each seed."""
    first = len(values_N) - RESAMPLES  # of the resamples; before them all data, and each seed
    low, high = central(values_N[first:].tolist(), LEVEL)
    return Estimate(
        value=float(values_N[0]), low=low, high=high, seeds=tuple(values_N[1:first].tolist())
    )


def draws(n_seeds: int, n_documents: int) -> Draws:
    """Returns the draws of so many seeds and documents: always the same ones."""
    generator = np.random.default_rng(0)
    seeds_BR = _resampled(n_seeds, generator)
    documents_BD = _resampled(n_documents, generator)
    whole_D = np.ones((1 + n_seeds, n_documents))
    return Draws(
        seeds_NR=np.concatenate([np.ones((1, n_seeds)), np.eye(n_seeds), seeds_BR]),
        documents_ND=np.concatenate([whole_D, documents_BD]),
    )


def _resampled(n: int, generator: np.random.Generator) -> Floats:
    """Returns how often each of n things is drawn in n draws with replacement, [RESAMPLES, n]."""
    drawn = generator.integers(n, size=(RESAMPLES, n)) + n * np.arange(RESAMPLES)[:, None]
    return np.bincount(drawn.ravel(), minlength=RESAMPLES * n).reshape(RESAMPLES, n).astype(float)


def central(values: Sequence[float], share: float) -> tuple[float, float]:
    """Returns the bounds of the central share of some values; nan if one of them is.

    Bounds are values themselves, the outer ones of two, so that infinite ones need no arithmetic.
    """
    if any(map(math.isnan, values)):
        return math.nan, math.nan
    ordered = sorted(values)
    i = math.floor((1 - share) / 2 * (len(ordered) - 1))
    return ordered[i], ordered[-1 - i]
