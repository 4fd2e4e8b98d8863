"""Scales: where a number lies along an axis, and which numbers are written there."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["linear", "log", "asinh"]

SMALL = 0.05  # nats: an asinh axis is about linear below and about logarithmic beyond
MANTISSAS = ((1,), (5,), (2,), (3,), (1.5, 4, 7), (2.5, 6, 8, 9), (1.2, 1.4, 1.6, 1.8))

SHAPES: dict[Kind, Callable[[float], float]] = {
    "linear": float,
    "log": math.log,
    "asinh": lambda value: math.asinh(value / SMALL),
}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Places numbers from low to high between start and end, in units of the drawing."""

    kind: Kind
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        shape = SHAPES[self.kind]
        first, last = shape(self.low), shape(self.high)
        return self.start + (shape(value) - first) / (last - first) * (self.end - self.start)

    def spaced(self, values: Iterable[float], *, gap: float) -> list[float]:
        """Returns those that stand at least `gap` apart, where earlier ones have precedence."""
        kept: list[float] = []
        for value in values:
            if self.low <= value <= self.high and all(
                abs(self(value) - self(other)) >= gap for other in kept
            ):
                kept.append(value)
        return sorted(kept)

    def ticks(self, *, gap: float) -> list[float]:
        """Returns round numbers at least `gap` apart."""
        if self._is_nearly_linear():
            candidates = _multiples(self.low, self.high)
        elif self.kind == "log":
            candidates = _round(self.low, self.high)
        else:
            largest = max(abs(self.low), abs(self.high))
            candidates = [0.0, *(s * v for v in _round(SMALL / 5, largest) for s in (1, -1))]
        return self.spaced(candidates, gap=gap)

    def _is_nearly_linear(self) -> bool:
        if self.kind == "log":
            return self.high < 2 * self.low
        return self.kind == "linear" or max(-self.low, self.high) < 2 * SMALL


def scale(kind: Kind, values: Iterable[float], *, start: float, end: float) -> Scale:
    """Returns a scale that holds all values, with some room if they are all alike."""
    known = sorted(values) or [1.0]
    low, high = known[0], known[-1]
    if low == high:
        low, high = (low / 1.2, high * 1.2) if kind == "log" else (low - SMALL, high + SMALL)
    return Scale(kind=kind, low=low, high=high, start=start, end=end)


def _round(low: float, high: float) -> list[float]:
    """Returns one to two digits times powers of ten, the roundest first."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [round(m * 10.0**e, 9) for group in MANTISSAS for m in group for e in exponents]


def _multiples(low: float, high: float) -> list[float]:
    """Returns the multiples of a round step, about six."""
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough)
    return [round(i * step, 9) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
