"""Findings: what the rows of a series show, with intervals.

Every number is a mean over seeds and documents of sums of nats, divided once; G, U and differences
are paired by seed and document.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lengthgen.analysis import warnings
from lengthgen.analysis.intervals import Estimate
from lengthgen.analysis.paired_sums import (
    Sample,
    SeedPoints,
    complete_lengths,
    far,
    in_bytes,
    near,
    sample,
    whole,
)
from lengthgen.analysis.seed_groups import Series
from lengthgen.analysis.used_context import UsedContext, used_context
from lengthgen.analysis.verdicts import Factor, Verdict, factor, verdict
from lengthgen.evaluation.protocols import HEADLINE

FACTOR_EPS = (0.01, 0.05)  # nats per token


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one series shows under the headline protocol. Numbers by length are in nats per token.

    A diverged seed makes a loss infinite; a number that is then undefined is nan.
    """

    series: Series
    # Empty if the seeds share no length with a loss, or no document.
    loss: dict[int, Estimate] = field(default_factory=dict)  # where every seed has one
    gain: dict[int, Estimate] = field(default_factory=dict)  # G(C) = loss(T) - loss(C), C != T
    # The loss on another text beyond T, less loss(C): another document's, or shuffled.
    swap: dict[int, Estimate] = field(default_factory=dict)
    shuffle: dict[int, Estimate] = field(default_factory=dict)
    far: dict[int, Estimate] = field(default_factory=dict)  # loss on far-copy targets
    near: dict[int, Estimate] = field(default_factory=dict)  # loss on all others
    far_gain: dict[int, Estimate] = field(default_factory=dict)  # G(C) on far-copy targets
    near_gain: dict[int, Estimate] = field(default_factory=dict)  # G(C) on all others
    used: UsedContext | None = None  # c*, if lengths below T were evaluated
    factors: tuple[Factor, ...] = ()  # of 0.01 and 0.05 nats, if there are lengths beyond T
    peak: int | None = None  # the length of least loss, the shortest of several
    bits_per_byte: dict[int, float] = field(default_factory=dict)
    unigram: float | None = None  # loss of training's token frequencies on the same targets
    verdicts: dict[int, Verdict] = field(default_factory=dict)  # at each length beyond T
    warnings: tuple[str, ...]  # sentences


def findings(series: Mapping[str, Sequence[Series]]) -> list[Finding]:
    """Returns a finding for each series of "tail", in order; `series` are given by protocol.

    Raises UserError, naming run and document, if a document's rows count different targets.
    """
    swapped, shuffled = ({s.label: s for s in series.get(name, ())} for name in ("swap", "shuffle"))
    return [
        _finding(line, swapped.get(line.label), shuffled.get(line.label))
        for line in series.get(HEADLINE, ())
    ]


def _finding(line: Series, swapped: Series | None, shuffled: Series | None) -> Finding:
    T = line.train_length
    scored = complete_lengths(line)
    found = sample([*scored.values()], whole)
    if found is None:
        return Finding(series=line, warnings=tuple(warnings.left_out(line, scored, ())))
    at = {n: i for i, n in enumerate(scored)}
    loss, gain = _means(found, at), _gains(found, at, T)
    beyond = [n for n in gain if n > T]
    absent = {p.length for p in line.points} - set(at)
    used = used_context(found, at, loss, train_length=T)
    swap, shuffle = _exchanged(scored, swapped), _exchanged(scored, shuffled)
    distant = {n: members for n, members in scored.items() if _has_far(members)}
    at_distant = {n: i for i, n in enumerate(distant)}
    far_part, near_part = (sample([*distant.values()], part) for part in (far, near))
    finite = {n: estimate.value for n, estimate in loss.items() if estimate.value < math.inf}
    nats_per_byte = _means(sample([*scored.values()], in_bytes), at)
    return Finding(
        series=line,
        loss=loss,
        gain=gain,
        swap=swap,
        shuffle=shuffle,
        far=_means(far_part, at_distant),
        near=_means(near_part, at_distant),
        far_gain=_gains(far_part, at_distant, T),
        near_gain=_gains(near_part, at_distant, T),
        used=used,
        factors=tuple(
            factor(loss[T].value, gain, train_length=T, eps=eps, without=absent)
            for eps in FACTOR_EPS
            if beyond
        ),
        peak=min(finite, key=lambda n: finite[n], default=None),
        bits_per_byte={n: nats.value / math.log(2) for n, nats in nats_per_byte.items()},
        unigram=warnings.unigram_loss(found, scored),
        verdicts={n: verdict(n, gain[n], swap.get(n), train_length=T, used=used) for n in beyond},
        warnings=(
            *warnings.series_warnings(line, scored, found, loss),
            *warnings.exchange_warnings(found, ((swapped, swap), (shuffled, shuffle))),
        ),
    )


def _means(found: Sample | None, at: Mapping[int, int]) -> dict[int, Estimate]:
    """Returns the means by length; `at` holds the number of the cell of each."""
    return {} if found is None else {n: found.mean(i) for n, i in at.items()}


def _gains(found: Sample | None, at: Mapping[int, int], T: int) -> dict[int, Estimate]:
    """Returns the mean at T less that at each other length; nothing without one at T."""
    if found is None or T not in at:
        return {}
    return {n: found.gap(at[T], i) for n, i in at.items() if n != T}


def _exchanged(scored: Mapping[int, SeedPoints], other: Series | None) -> dict[int, Estimate]:
    """Returns by how much the loss grows with another text beyond T, on the same targets."""
    altered = complete_lengths(other) if other else {}
    lengths = [n for n in altered if n in scored]
    members = [cells[n] for cells in (altered, scored) for n in lengths]
    if len({p.condition for points in members for p in points.values()}) > 1:
        return {}
    found = sample(members, whole)
    if found is None:
        return {}
    return {n: found.gap(i, len(lengths) + i) for i, n in enumerate(lengths)}


def _has_far(members: SeedPoints) -> bool:
    return all(row.far_tokens is not None for p in members.values() for row in p.rows)
