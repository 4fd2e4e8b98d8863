"""How the page writes estimates: the value, and the bounds of its interval if there is one."""

import math
from collections.abc import Callable

from lengthgen.analysis.curves import perplexity
from lengthgen.analysis.formatting import number
from lengthgen.analysis.intervals import Estimate


def ppl(loss: Estimate) -> str:
    """Returns "12.30 [12.10, 12.50]" from a loss in nats."""
    return written(loss, lambda nats: number(perplexity(nats)))


def ratio(gain: Estimate) -> str:
    """Returns ppl(C) / ppl(T) as "0.97 [0.96, 0.98]" from G(C)."""
    turned = Estimate(value=gain.value, low=gain.high, high=gain.low, seeds=gain.seeds)
    return written(turned, lambda nats: times(perplexity(-nats)))


def signed(nats: Estimate) -> str:
    """Returns "+0.123 [+0.101, +0.145]"."""
    return written(nats, change)


def plain(nats: Estimate) -> str:
    """Returns "3.120 [3.050, 3.190]"."""
    return written(nats, lambda value: f"{value:.3f}")


def times(value: float) -> str:
    """Returns a ratio with three digits after the point, fewer where it is large."""
    return f"{value:.3f}" if value < 10 else number(value)


def change(nats: float) -> str:
    """Returns "+0.123"; what rounds to zero is "+0.000"."""
    return f"{round(nats, 3) + 0.0:+.3f}"


def bounds(estimate: Estimate, write: Callable[[float], str]) -> str:
    """Returns "[+0.101, +0.145]", or nothing if there is no interval."""
    if math.isnan(estimate.low) or math.isnan(estimate.high):
        return ""
    return f"[{write(estimate.low)}, {write(estimate.high)}]"


def written(estimate: Estimate, write: Callable[[float], str]) -> str:
    """Returns value and bounds as `write` writes them."""
    return f"{write(estimate.value)} {bounds(estimate, write)}".rstrip()
