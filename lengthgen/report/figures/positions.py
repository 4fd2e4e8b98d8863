"""The chart of the loss at each position of one long window."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lengthgen.analysis.curves import Point
from lengthgen.analysis.formatting import short, subject
from lengthgen.analysis.seed_groups import Series
from lengthgen.data.windows import position_bins
from lengthgen.errors import UserError
from lengthgen.report.figures.chart import Chart
from lengthgen.report.figures.curve import FAILED, capped, line_of, named, notes, rank
from lengthgen.report.figures.style import line_styles

PER_OCTAVE = 4  # bins drawn: of the single positions of a row, noise would be all that is seen
FIRST = 32  # the chart begins at position T / 32
AVERAGED = f"averaged over quarter octaves of positions, from T/{FIRST}"

Floats = NDArray[np.float64]


def positions(lines: Sequence[Series]) -> Chart | None:
    """Returns the loss L(i) over the position i, a mean over bins of a quarter of an octave.

    A series is the mean over its seeds. None if no row holds sums by position.
    """
    values = {line.label: drawn_losses(line) for line in lines}
    there = [line for line in lines if values[line.label]]
    if not there:
        return None
    styles = line_styles(there)
    points = [p for line in there for p in line.points]
    longest = max(n for line in there for n in values[line.label])
    drawn = [
        line_of(line, style=styles[line.label], values=values[line.label], band={}, longest=longest)
        for line in there
    ]
    drawn.sort(key=lambda line: rank(line.values.get(longest), line.name))
    drawn = capped(drawn, failed=lambda loss: loss + math.log(FAILED))
    reach = max(p.length for p in points)
    return Chart(
        lines=drawn,
        title=f"loss at each position of one window of {short(reach)}",
        about=subject(points),
        notes=[AVERAGED, *notes(drawn, there, level="")],
        quantity="L(i), nats per token",
        scale="linear",
        ticks=_octaves(min(p.train_length for p in points), reach),
        named=named,
        axis="position i in the window",
        trained=sorted({line.train_length for line in there}),
        marks=False,
    )


def drawn_losses(line: Series) -> dict[float, float]:
    """Returns the losses from position T/32 on.

    Those before know no context: high and noisy, they would set the axis.
    """
    losses = position_losses(line)
    return {i: loss for i, loss in losses.items() if i >= line.train_length / FIRST}


def position_losses(line: Series) -> dict[float, float]:
    """Returns the loss by the last position of each drawn bin; the mean over seeds.

    Of the longest window that every seed has. Empty if there is none, or if a seed diverged in it.
    """
    points = [p for p in line.points if p.loss is not None]
    by_run = [{p.length for p in points if p.run == run} for run in line.runs]
    shared = set[int].intersection(*by_run)
    chosen = [p for p in points if p.length == max(shared, default=0)]
    if not chosen or any(row.position_nats is None for p in chosen for row in p.rows):
        return {}
    seeds = [_by_bin(p) for p in chosen]
    return {i: math.fsum(seed[i] for seed in seeds) / len(seeds) for i in seeds[0]}


def _by_bin(p: Point) -> dict[float, float]:
    """Returns nats per token by the last position of each drawn bin."""
    edges = position_bins(p.train_length, p.length)
    nats = _total(p, "position_nats", len(edges))
    tokens = _total(p, "position_tokens", len(edges))
    first, last = (PER_OCTAVE * math.log2(n / p.train_length) for n in (1, p.length))
    steps = np.arange(math.ceil(first), math.floor(last) + 1)
    wanted = np.unique([1, *np.floor(p.train_length * 2.0 ** (steps / PER_OCTAVE)), p.length])
    ends = np.searchsorted(edges, wanted)
    sums = np.diff(nats.cumsum()[ends], prepend=0.0)
    counts = np.diff(tokens.cumsum()[ends], prepend=0.0)
    pairs = zip(edges[ends].tolist(), sums.tolist(), counts.tolist(), strict=True)
    return {i: total / count for i, total, count in pairs if count > 0}


def _total(p: Point, field: str, n_bins: int) -> Floats:
    """Returns the sum over documents, by bin of the rows."""
    rows = [getattr(row, field) for row in p.rows]
    if any(row is None or len(row) != n_bins for row in rows):
        raise UserError(
            f"eval.jsonl of {p.run}: {field} of {p.protocol} at length {p.length} does not hold "
            f"{n_bins} numbers; delete such rows and run lengthgen eval {p.run}"
        )
    return np.array(rows, dtype=np.float64).sum(0)


def _octaves(train_length: int, reach: int) -> list[int]:
    """Returns T, its doublings and its halvings that are drawn, as ticks."""
    down = range(round(math.log2(min(FIRST, train_length))), 0, -1)
    up = range(math.floor(math.log2(reach / train_length)) + 1)
    return [*(round(train_length / 2**k) for k in down), *(train_length * 2**k for k in up)]
