"""Verdicts: what the text beyond T does to a model, and how far beyond T it holds."""

import math
from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from lengthgen.analysis.formatting import short
from lengthgen.analysis.intervals import Estimate
from lengthgen.analysis.used_context import EPS, UsedContext

MOST_DOCUMENTS = 1_000_000  # that a remedy names

Word = Literal["uses", "no gain", "ignores", "short-sighted", "harmed", "unclear"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the text beyond T is to a series at one length C > T; of one seed, to a checkpoint."""

    word: Word
    gain: Estimate  # G(C)
    swap: Estimate | None  # U(C)
    why: str  # one sentence with the interval


@dataclass(frozen=True, kw_only=True)
class Factor:
    """Extrapolation factor: how many T a series reaches without losing more than eps nats.

    The largest C over T such that at all evaluated lengths from T to C the loss is at most that at
    T plus eps; 1 if already the first length beyond T fails. It is censored if no length fails.
    Value and bounds are nan if the loss at T is infinite, the bounds also with one document.
    The low bound is the reach of lengths whose interval of G lies above -eps; the high one ends
    before the first length whose interval, widened for all lengths at once, lies below it.
    """

    eps: float
    value: float
    low: float
    high: float
    censored: bool
    text: str  # "4", ">= 32" if censored, "n/a" if nan
    interval: str  # "[2, >= 32]", a bound at the longest length being censored too; "n/a" if nan


def verdict(
    length: int,
    gain: Estimate,
    swap: Estimate | None,
    *,
    train_length: int,
    used: UsedContext | None,
) -> Verdict:
    """Returns the verdict on a length C > T from G(C), the used context and, if known, U(C).

    G within EPS of 0: "no gain" if U lies above EPS, so the far text is read; "short-sighted" if
    the used context is below T/2; "ignores" if it is T/2 or more, a gain of EPS would have been
    seen, and U, if known, lies below EPS. Otherwise "uses" and "harmed": G and all seeds lie above
    0, below 0.
    """
    word, reason = _judged(gain, swap, train_length, used)
    subject = "" if gain.of_scheme else "this checkpoint (one seed): "
    why = f"{subject}G({short(length)}) = {_interval(gain)} nats per token: {word}{reason}"
    if word == "no gain" and swap is not None:
        why += f", though it reads the far text: U({short(length)}) = {_interval(swap)}"
    return Verdict(word=word, gain=gain, swap=swap, why=why)


def _judged(
    gain: Estimate, swap: Estimate | None, T: int, used: UsedContext | None
) -> tuple[Word, str]:
    if gain.low >= -EPS and gain.high <= EPS:
        return _flat(gain, swap, T, used)
    if gain.value == math.inf:
        return "unclear", ", the loss at T is infinite"
    if gain.has_sign:
        return "uses" if gain.low > 0 else "harmed", ""
    if math.isnan(gain.low):
        return "unclear", ", there is no interval"
    if gain.low > 0 or gain.high < 0:
        return "unclear", ", the seeds disagree in sign"
    return "unclear", f", the interval holds 0 and more than it; {power(gain)}"


def _flat(
    gain: Estimate, swap: Estimate | None, T: int, used: UsedContext | None
) -> tuple[Word, str]:
    """Returns the word for a G that lies within EPS of 0."""
    near = f", all within {EPS} of 0"
    if swap is not None and swap.low > EPS:
        return "no gain", near
    if used is None:
        below = ", ".join(str(T // k) for k in (8, 4, 2))
        return "unclear", f"{near}, but no length below T was evaluated; add {below} to --lengths"
    if 2 * used.high < T:
        return "short-sighted", f"{near}, and of {T} tokens it uses {used.text} {used.interval}"
    if not used.at_least(T / 2):
        return "unclear", (
            f"{near}, but it may use less than {T / 2:g} tokens: c* is {used.text} {used.interval}"
        )
    if gain.detectable > EPS:
        return "unclear", f"{near}; {power(gain)}"
    if swap is not None and swap.high > EPS:
        return "unclear", f"{near}, but it may read the far text: U is {_interval(swap)}"
    return "ignores", near


def power(gain: Estimate) -> str:
    """Returns the least |G| that the data could have shown, and what would lower it to EPS."""
    shown = f"the least |G| that these data show is {gain.detectable:.3f}"
    spread = gain.spread
    if spread is None or gain.detectable <= EPS:
        return shown

    def is_enough(n_documents: int) -> bool:
        return replace(gain, spread=spread.of_documents(n_documents)).detectable <= EPS

    n = bisect_left(range(MOST_DOCUMENTS), True, lo=2, key=is_enough)
    if n == MOST_DOCUMENTS:
        return f"{shown}: evaluate more seeds, which differ too much for {EPS}"
    return f"{shown}: evaluate about {n:,} documents for {EPS}"


def _interval(estimate: Estimate) -> str:
    """Returns "-0.310 [-0.360, -0.270]", or the value alone where there is no interval."""
    if math.isnan(estimate.low):
        return f"{estimate.value:z.3f}"
    return f"{estimate.value:z.3f} [{estimate.low:z.3f}, {estimate.high:z.3f}]"


def factor(
    at_T: float,
    gains: Mapping[int, Estimate],
    *,
    train_length: int,
    eps: float,
    without: Collection[int],
) -> Factor:
    """Returns the extrapolation factor from the loss at T and the gains at lengths beyond.

    Lengths from the first one on that is `without` a loss (skipped, or lacked by a seed) say
    nothing: the factor is censored before it.
    """
    end = min((n for n in without if n > train_length), default=math.inf)
    beyond = {n: gains[n] for n in sorted(gains) if train_length < n < end}
    value = low = high = math.nan
    if not math.isinf(at_T):
        known = any(not math.isnan(gain.low) for gain in beyond.values())
        value = _reach({n: gain.value >= -eps for n, gain in beyond.items()}, train_length)
        if known:
            wide = {n: gain.widened(len(beyond)) for n, gain in beyond.items()}
            low = _reach({n: gain.low >= -eps for n, gain in beyond.items()}, train_length)
            high = _reach({n: not gain.high < -eps for n, gain in wide.items()}, train_length)
    limit = max(beyond, default=train_length) / train_length
    of_low, of_high = _reached(low, limit), _reached(high, limit)
    return Factor(
        eps=eps,
        value=value,
        low=low,
        high=high,
        censored=value == limit,
        text=_reached(value, limit),
        interval="n/a" if math.isnan(low) else f"[{of_low}, {of_high}]",
    )


def _reach(holds: Mapping[int, bool], T: int) -> float:
    """Returns the last length before the first that does not hold, over T."""
    reached = T
    for n, held in holds.items():
        if not held:
            break
        reached = n
    return reached / T


def _reached(value: float, limit: float) -> str:
    if math.isnan(value):
        return "n/a"
    return f">= {value:g}" if value == limit else f"{value:g}"
