"""Sums of nats over the seeds and documents that cells share, paired by both."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lengthgen.analysis import intervals
from lengthgen.analysis.curves import Point
from lengthgen.analysis.eval_rows import EvalRow
from lengthgen.analysis.intervals import Estimate, Floats
from lengthgen.analysis.seed_groups import Series
from lengthgen.errors import UserError
from lengthgen.evaluation.protocols import named

SeedPoints = Mapping[int, Point]  # the points of a series at one length, by seed
Quantity = Callable[[EvalRow], tuple[float, int]]  # sum of nats, infinite if diverged, and count


def whole(row: EvalRow) -> tuple[float, int]:
    """Returns what the loss is a mean of: nats and tokens, or means and windows if it is theirs."""
    if named(row.protocol).mean == "windows":
        return _nats(row.window_nats), row.n_windows
    return _nats(row.nats), row.n_tokens


def in_bytes(row: EvalRow) -> tuple[float, int]:
    """Returns nats and bytes of all targets."""
    return _nats(row.nats), row.n_bytes


def far(row: EvalRow) -> tuple[float, int]:
    """Returns nats and number of the far-copy targets."""
    return _nats(row.far_nats), row.far_tokens or 0


def near(row: EvalRow) -> tuple[float, int]:
    """Returns nats and number of the other targets."""
    nats, n_tokens = far(row)
    if row.nats is None:
        return math.inf, row.n_tokens - n_tokens
    return row.nats - nats, row.n_tokens - n_tokens


def _nats(nats: float | None) -> float:
    return math.inf if nats is None else nats


def seed_points(line: Series, length: int) -> dict[int, Point]:
    """Returns the points that have a loss at a length, by seed."""
    found = [p for p in line.points if p.length == length]
    return {p.seed: p for p in sorted(found, key=lambda p: p.seed) if p.loss is not None}


def _seeds(line: Series) -> set[int]:
    return {p.seed for p in line.points}


def complete_lengths(line: Series) -> dict[int, dict[int, Point]]:
    """Returns the points, by seed, of the lengths at which every seed has a loss, by length."""
    found = {n: seed_points(line, n) for n in sorted({p.length for p in line.points})}
    return {n: points for n, points in found.items() if set(points) == _seeds(line)}


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The sums of each cell over the seeds and documents that all of them share."""

    seeds: tuple[int, ...]
    documents: tuple[str, ...]
    sums: tuple[Floats, ...]  # [R, D] of each cell, in their order; infinite if diverged
    counts_D: Floats

    def mean(self, i: int) -> Estimate:
        """Returns the mean of cell i."""
        return intervals.ratio(self.sums[i], self.counts_D)

    def gap(self, i: int, j: int) -> Estimate:
        """Returns the mean of cell i less that of cell j, paired; nan if both are infinite."""
        return intervals.gap(self.sums[i], self.sums[j], self.counts_D)


def sample(members: Sequence[SeedPoints], part: Quantity) -> Sample | None:
    """Returns the sums of cells that score the same targets; None if they share nothing.

    Documents without such targets are no part of it. Raises UserError, naming run and document, if
    the counts of a document differ: other targets were scored.
    """
    if not members:
        return None
    seeds = sorted(set[int].intersection(*map(set[int], members)))
    points = [members_of[seed] for members_of in members for seed in seeds]
    if not points:
        return None
    documents = points[0].documents
    if any(p.documents != documents for p in points):
        documents = tuple(sorted(set(documents).intersection(*(p.documents for p in points))))
    if not documents:
        return None
    table = np.stack([_of_documents(p, documents, part) for p in points])
    sums_PD, counts_PD = table[:, :, 0], table[:, :, 1]
    _refuse_other_targets(points, documents, counts_PD)
    scored = counts_PD[0] > 0
    if not scored.any():
        return None
    return Sample(
        seeds=tuple(seeds),
        documents=tuple(name for name, has in zip(documents, scored, strict=True) if has),
        sums=tuple(
            sums_PD[first : first + len(seeds), scored]
            for first in range(0, len(points), len(seeds))
        ),
        counts_D=counts_PD[0, scored],
    )


def _of_documents(point: Point, documents: Sequence[str], part: Quantity) -> Floats:
    """Returns sum and count of some of a point's documents, [D, 2]; of all of them, kept in it."""
    found = point.sums.get(part)
    if found is None:
        found = point.sums[part] = np.array([part(row) for row in point.rows], dtype=np.float64)
    if len(documents) == len(point.documents):
        return found
    return found[np.isin(point.documents, documents)]


def _refuse_other_targets(
    points: Sequence[Point], documents: Sequence[str], counts_PD: Floats
) -> None:
    differing = np.argwhere(counts_PD != counts_PD[0])
    if len(differing) == 0:
        return
    i, j = differing[0]
    one, other = points[0], points[i]
    raise UserError(
        f"eval.jsonl of {other.run}: document {documents[j]} counts {counts_PD[i, j]:.0f} at "
        f"length {other.length} ({other.protocol}), but {counts_PD[0, j]:.0f} in {one.run} at "
        f"length {one.length} ({one.protocol}); delete such rows and run lengthgen eval "
        f"{other.run}, or report other runs"
    )
