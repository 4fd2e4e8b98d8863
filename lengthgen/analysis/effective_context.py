"""RECL, relative effective context length (Dai et al., Transformer-XL, 2019, 1901.02860, App. C).

b(c, t) = min over models i of l_i(c, t), the loss at target t with context c
f_i(c, c') = mean of min(b(c, t), l_i(c', t)) over the targets t of largest b(c, t), a share of all
g_i(c, c') = (exp f_i(c, c) - exp f_i(c, c')) / exp f_i(c, c)
The context grows from c to c' as long as g_i(c, c') is at least 0.01.
Deviations: c' is the next evaluated length, not c plus a constant; the group is compared again in
each seed that all its series have, and a series gets the (lower) median of its seeds.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from lengthgen.analysis.curves import Point
from lengthgen.analysis.intervals import Floats
from lengthgen.analysis.paired_sums import SeedPoints, seed_points
from lengthgen.analysis.seed_groups import Series

THRESHOLD = 0.01  # of the relative gain


def recl(lines: Sequence[Series], *, top: float) -> dict[str, int]:
    """Returns the RECL of each series in the group, by label, in tokens.

    `top` is the share of targets that count (r in the paper: 0.1, 0.5, 1). The longest evaluated
    length means that or more. Empty if the series share no seed, no document, no condition, or
    fewer than two lengths whose rows hold the loss of each target.
    """
    lengths = set[int]().union(*({p.length for p in line.points} for line in lines))
    cells = {n: [seed_points(line, n) for line in lines] for n in sorted(lengths)}
    cells = {n: group for n, group in cells.items() if all(map(_has_tokens, group))}
    points = [p for group in cells.values() for members in group for p in members.values()]
    if len(cells) < 2 or len({p.condition for p in points}) > 1:
        return {}
    seeds = set[int].intersection(*(set(members) for group in cells.values() for members in group))
    documents = set.intersection(*({row.document for row in p.rows} for p in points))
    if not documents:
        return {}
    found: dict[str, list[int]] = {line.label: [] for line in lines}
    for seed in seeds:
        losses = {n: [_losses(c[seed], documents) for c in group] for n, group in cells.items()}
        table = {n: np.array(of_models) for n, of_models in losses.items()}
        for i, line in enumerate(lines):
            found[line.label].append(_grown(table, i, top=top))
    return {label: statistics.median_low(values) for label, values in found.items() if values}


def _has_tokens(members: SeedPoints) -> bool:
    """Whether a cell has rows, all with the loss of each target, but where the model diverged."""
    rows = [row for p in members.values() for row in p.rows]
    return bool(rows) and all(row.token_nats is not None or row.nats is None for row in rows)


def _losses(point: Point, documents: set[str | None]) -> list[float]:
    """Returns the loss at each target, document by document; infinite where the model diverged."""
    return [
        nats
        for row in point.rows
        if row.document in documents
        for nats in (row.token_nats or [math.inf] * row.n_tokens)
    ]


def _grown(losses: Mapping[int, Floats], i: int, *, top: float) -> int:
    """Returns the RECL of model i from losses [models, targets] by length."""
    for c, longer in pairwise(losses):
        baseline = losses[c].min(0)
        n = max(1, round(top * len(baseline)))
        hardest = np.argsort(-baseline, kind="stable")[:n]
        short = float(baseline[hardest].mean())
        long = float(np.minimum(baseline, losses[longer][i])[hardest].mean())
        if not 1 - math.exp(long - short) >= THRESHOLD:  # nan if all models diverged at a target
            return c
    return max(losses)
