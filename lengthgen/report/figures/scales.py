"""Where ticks and names stand, so that both can be read."""

import math
from collections.abc import Sequence

from matplotlib.ticker import MaxNLocator


def plain_ticks(low: float, high: float) -> list[float]:
    """Returns about three to nine round numbers between the ends of a log axis."""
    if high / low < 4:
        found = MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
        return [float(tick) for tick in found if low <= tick <= high]
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    digits = (1, 2, 3, 5) if high / low < 50 else (1, 3) if high / low < 30_000 else (1,)
    decades = range(first, last + 1, 1 + (last - first) // 10)
    return [d * 10.0**e for e in decades for d in digits if low <= d * 10.0**e <= high]


def plain(tick: float) -> str:
    """Returns 9.8, 20, 1,000; 1e6 and beyond with an exponent."""
    return f"{tick:,.10g}" if tick < 1e6 else f"{tick:.0e}".replace("e+0", "e").replace("e+", "e")


def apart(ticks: Sequence[float], *, room: int) -> set[float]:
    """Returns the ticks of a log axis to name: none runs into a rounder neighbour's name.

    `room`: how many names would fit side by side.
    """
    gap = math.log2(ticks[-1] / ticks[0]) / room
    kept: set[float] = set()
    for tick in sorted(ticks, key=_roundness):
        if all(abs(math.log2(tick / other)) >= gap for other in kept):
            kept.add(tick)
    return kept


def _roundness(tick: float) -> tuple[float, float]:
    """Sorts powers of two and the like first."""
    numerator, denominator = tick.as_integer_ratio()
    return (-(numerator & -numerator) / denominator, tick)


def signed_ticks(low: float, high: float, *, linear: float) -> list[float]:
    """Returns 0 and round numbers of both signs on an axis that is linear near 0."""
    decades = math.log10(max(-low, high) / linear)
    digits = (1, 3) if decades < 3 else (1,)
    first = round(math.log10(linear))
    sizes = [d * 10.0**e for e in range(first, first + math.ceil(decades) + 1) for d in digits]
    return [tick for tick in (*(-s for s in reversed(sizes)), 0.0, *sizes) if low <= tick <= high]


def signed(tick: float) -> str:
    """Returns +0.01, 0, -1."""
    return f"{tick:+.6g}" if tick else "0"
