"""Used context c*: how many of the T tokens that a model was trained with lower its loss."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations, takewhile

from lengthgen.analysis.formatting import short
from lengthgen.analysis.intervals import Estimate
from lengthgen.analysis.paired_sums import Sample

EPS = 0.01  # nats per token that count as nothing, here and in verdicts


@dataclass(frozen=True, kw_only=True)
class UsedContext:
    """The least evaluated length up to T whose loss is within 0.01 nats of the least one up to T.

    The bounds hold jointly at 95%: `low` is the least length that may be within 0.01 of all others
    (of which each may show that it is not, so their intervals are widened); `high` is the end of
    the lengths from T downwards that certainly are (a fixed sequence, which needs no
    widening). The shortest length bounds nothing from below.
    """

    value: int
    low: int
    high: int
    shortest: int  # of the evaluated ones
    rejected: int  # the longest evaluated one below `low`; 0 if there is none

    @property
    def text(self) -> str:
        """Returns "256", or "<= 64" at the shortest length."""
        return self._text(self.value)

    @property
    def interval(self) -> str:
        """Returns "[128, 256]"."""
        return f"[{self._text(self.low)}, {self._text(self.high)}]"

    def at_least(self, length: float) -> bool:
        """Whether c* is certainly that long: a length from half of it on loses more than 0.01.

        That a much shorter one does says nothing of those between, which were not evaluated.
        """
        return self.low >= length and 2 * self.rejected >= length

    def _text(self, length: int) -> str:
        return f"<= {short(length)}" if length == self.shortest else short(length)


def used_context(
    sample: Sample, cells: Mapping[int, int], loss: Mapping[int, Estimate], *, train_length: int
) -> UsedContext | None:
    """Returns c* from the cells of the sample by length; None without a length below T, or T.

    None also if a loss up to T is infinite, or there is no interval (one document).
    """
    lengths = sorted(n for n in loss if n <= train_length)
    if len(lengths) < 2 or lengths[-1] != train_length:
        return None
    above = {(n, m): sample.gap(cells[n], cells[m]) for n, m in permutations(lengths, 2)}
    if any(math.isnan(gap.low) for gap in above.values()):
        return None
    least = min(loss[n].value for n in lengths)
    others = len(lengths) - 1
    rejected = {n for (n, _), gap in above.items() if gap.widened(others).low > EPS}
    uncertain = {n for (n, _), gap in above.items() if gap.high > EPS}
    certain = takewhile(lambda n: n not in uncertain, reversed(lengths))
    low = next(n for n in lengths if n not in rejected)
    return UsedContext(
        value=next(n for n in lengths if loss[n].value <= least + EPS),
        low=low,
        high=min(certain, default=train_length),
        shortest=lengths[0],
        rejected=max((n for n in lengths if n < low), default=0),
    )
