"""Verdicts: what the text beyond T does to a model, and how far beyond T it holds."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lengthgen.findings.samples import Sample
from lengthgen.intervals import Estimate, Floats
from lengthgen.wording import short

EPS = 0.01  # nats per token that count as nothing

Word = Literal["uses", "no gain", "ignores", "harmed", "unclear"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the text beyond T is to a series at one length C > T."""

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
    """

    eps: float
    value: float
    low: float
    high: float
    censored: bool
    text: str  # "4", ">= 32" if censored, "n/a" if nan
    interval: str  # "[2, >= 32]", a bound at the longest length being censored too; "n/a" if nan


def verdict(length: int, gain: Estimate, swap: Estimate | None) -> Verdict:
    """Returns the verdict on a length C > T from G(C) and, where swap rows exist, U(C).

    ignores: the interval of G lies within EPS of 0; no gain: it does, but that of U lies above EPS,
    so the far text is read; uses, harmed: the interval of G and all seeds lie above 0, below 0.
    """
    word, reason = _judged(gain, swap)
    why = f"G({short(length)}) = {_interval(gain)} nats per token: {word}{reason}"
    if word == "no gain" and swap is not None:
        why += f", though it reads the far text: U({short(length)}) = {_interval(swap)}"
    return Verdict(word=word, gain=gain, swap=swap, why=why)


def _judged(gain: Estimate, swap: Estimate | None) -> tuple[Word, str]:
    if gain.low >= -EPS and gain.high <= EPS:
        reads = swap is not None and swap.low > EPS
        return "no gain" if reads else "ignores", f", all within {EPS} of 0"
    if gain.has_sign:
        return "uses" if gain.low > 0 else "harmed", ""
    if math.isnan(gain.low):
        return "unclear", ", there is no interval"
    if gain.low > 0 or gain.high < 0:
        return "unclear", ", the seeds disagree in sign"
    return "unclear", ", the interval holds 0 and more than it"


def _interval(estimate: Estimate) -> str:
    """Returns "-0.310 [-0.360, -0.270]", or the value alone where there is no interval."""
    if math.isnan(estimate.low):
        return f"{estimate.value:z.3f}"
    return f"{estimate.value:z.3f} [{estimate.low:z.3f}, {estimate.high:z.3f}]"


def factor(
    sample: Sample,
    means: Mapping[int, Floats],
    *,
    train_length: int,
    eps: float,
    without: Collection[int],
) -> Factor:
    """Returns the extrapolation factor from the means of each draw at T and at lengths beyond.

    Lengths from the first one on that is `without` a loss (skipped, or lacked by a seed) say
    nothing: the factor is censored before it.
    """
    gap = min((n for n in without if n > train_length), default=math.inf)
    beyond = sorted(n for n in means if train_length < n < gap)
    at_T_N = means[train_length]
    within_N = np.isfinite(at_T_N)
    reached_N = np.where(within_N, 1.0, np.nan)
    limit = beyond[-1] / train_length if beyond else 1.0
    for n in beyond:
        within_N = within_N & (means[n] <= at_T_N + eps)
        reached_N[within_N] = n / train_length
    found = sample.estimate(reached_N)

    low, high = _reach(found.low, limit), _reach(found.high, limit)
    return Factor(
        eps=eps,
        value=found.value,
        low=found.low,
        high=found.high,
        censored=found.value == limit,
        text=_reach(found.value, limit),
        interval="n/a" if math.isnan(found.low) else f"[{low}, {high}]",
    )


def _reach(value: float, limit: float) -> str:
    if math.isnan(value):
        return "n/a"
    return f">= {value:g}" if value == limit else f"{value:g}"
