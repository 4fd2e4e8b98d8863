"""Differences between series: on the documents that both scored, with the seeds that both have."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lengthgen.findings.samples import cell, gap, sample, whole
from lengthgen.intervals import Estimate
from lengthgen.series import Series


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Loss of one series minus that of another at a length, seed by seed, document by document.

    It is called only if the interval excludes 0 and all seeds agree in sign.
    """

    length: int
    estimate: Estimate
    called: bool


def difference(a: Series, b: Series, length: int) -> Difference | None:
    """Returns a - b; None if the two share no seed or no document, or scored other targets."""
    of_a, of_b = cell(a, length), cell(b, length)
    if {p.condition for p in of_a.values()} != {p.condition for p in of_b.values()}:
        return None
    found = sample([of_a, of_b], whole)
    if found is None:
        return None
    estimate = found.estimate(gap(*found.means))
    return Difference(length=length, estimate=estimate, called=estimate.has_sign)


def ties(lines: Sequence[Series], length: int) -> tuple[Series, list[Series]] | None:
    """Returns the series of least loss at a length, and those not called different from it.

    A series that shares no seed or no document with the best one cannot be compared, so it is not
    among them. None if no series has a finite loss there.
    """
    losses = [(line.losses().get(length, math.inf), line) for line in lines]
    least = min((loss for loss, _ in losses), default=math.inf)
    if math.isinf(least):
        return None
    best = next(line for loss, line in losses if loss == least)
    others = [line for line in lines if line is not best and length in line.losses()]
    return best, [line for line in others if _is_tie(line, best, length)]


def _is_tie(a: Series, b: Series, length: int) -> bool:
    found = difference(a, b, length)
    return found is not None and not found.called
