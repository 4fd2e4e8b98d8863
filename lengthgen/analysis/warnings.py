"""Warnings of a finding: diverged seeds, too few of them, and what was left out."""

import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping

from lengthgen.analysis.curves import perplexity
from lengthgen.analysis.formatting import number, short
from lengthgen.analysis.intervals import Estimate, central
from lengthgen.analysis.paired_sums import Sample, SeedPoints
from lengthgen.analysis.seed_groups import Series

FEW_DOCUMENTS = 16  # below which an interval leans on documents being normally distributed
SPREAD = 0.1  # of the perplexity over seeds, std / mean, from which on the mean says little


def series_warnings(
    line: Series, cells: Mapping[int, SeedPoints], found: Sample, loss: Mapping[int, Estimate]
) -> Iterator[str]:
    """Yields a sentence for each limit of the numbers of a series."""
    if len(found.seeds) == 1:
        yield "one seed: statements hold for this checkpoint on other documents, not the scheme"
    if len(found.documents) == 1:
        yield "one document: no interval, no verdict"
    elif len(found.documents) < FEW_DOCUMENTS:
        yield f"{len(found.documents)} documents: intervals hold if their losses are near normal"
    T = line.train_length
    if T not in loss and any(n > T for n in loss):
        yield f"no loss at T={T}: no context gain, verdict or XF; add {T} to --lengths"
    unigram = unigram_loss(found, cells)
    if unigram is not None and T in loss and loss[T].value > unigram:
        yield (
            f"perplexity {number(perplexity(loss[T].value))} at T is above the "
            f"{number(perplexity(unigram))} of token frequencies: nothing was learned to compare"
        )
    yield from left_out(line, cells, found.documents)
    yield from _diverged(line)
    yield from _spread(loss)


def unigram_loss(found: Sample, scored: Mapping[int, SeedPoints]) -> float | None:
    """Returns the loss of token frequencies; the targets are the same in every cell."""
    some = next(iter(scored.values()))[found.seeds[0]]
    rows = [row for row in some.rows if row.document in found.documents]
    nats = [row.unigram_nats for row in rows if row.unigram_nats is not None]
    if len(nats) < len(rows):
        return None
    return math.fsum(nats) / sum(row.n_tokens for row in rows)


def exchange_warnings(
    found: Sample, exchanged: Iterable[tuple[Series | None, Mapping[int, Estimate]]]
) -> Iterator[str]:
    """Yields what is missing of the swap and shuffle tests."""
    for other, estimates in exchanged:
        protocol = other.points[0].protocol if other else ""
        if other and not estimates and any(p.loss is not None for p in other.points):
            yield f"left out: {protocol}, which shares no targets or no seeds with the tail"
        n_seeds = min((len(e.seeds) for e in estimates.values()), default=len(found.seeds))
        if n_seeds < len(found.seeds):
            yield f"{protocol} covers {n_seeds} of {len(found.seeds)} seeds"


def left_out(
    line: Series, cells: Mapping[int, SeedPoints], documents: Collection[str]
) -> Iterator[str]:
    """Yields the lengths, runs and documents that the numbers of a series leave out."""
    lengths = sorted({p.length for p in line.points if p.loss is not None} - set(cells))
    if lengths:
        yield f"left out: {_lengths(lengths)}, which not every seed has"
    for run in line.repeated:
        yield f"left out: {run}, another run of one seed"
    present = {row.document for c in cells.values() for p in c.values() for row in p.rows}
    lost = len(present) - len(documents)
    if lost and documents:
        yield f"left out: {lost} of {len(present)} documents, which not every seed and length has"
    elif lost:
        yield "left out: all documents, none of which every seed and length has"


def _diverged(line: Series) -> Iterator[str]:
    for run in line.runs:
        curve = line.curve(run)
        lengths = sorted(n for n, loss in curve.items() if math.isinf(loss))
        if lengths:
            yield f"diverged: {run} at {_lengths(lengths)}, counted as an infinite loss"


def _spread(loss: Mapping[int, Estimate]) -> Iterator[str]:
    wide: list[str] = []
    for n, estimate in loss.items():
        ppl = [perplexity(mean) for mean in estimate.seeds]
        if _wide(ppl):
            low, high = central(ppl, 0.5)
            median = number(statistics.median(ppl))
            wide.append(f"{short(n)}: {median} [{number(low)}, {number(high)}]")
    if wide:
        yield (
            f"perplexity differs by more than {SPREAD:.0%} (std / mean) over seeds; median and "
            f"quartiles at {'; '.join(wide)}"
        )


def _wide(ppl: list[float]) -> bool:
    if len(ppl) < 2:
        return False
    mean = statistics.fmean(ppl)
    return math.isinf(mean) or statistics.stdev(ppl) > SPREAD * mean


def _lengths(lengths: list[int]) -> str:
    return ", ".join(map(short, lengths))
