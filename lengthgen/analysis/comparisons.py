"""Differences between series: on the documents that both scored, with the seeds that both have.

Which series may be the best at a length is a statement about all of them at once. All pairs are
compared jointly at 95% (Bonferroni); those that differ from the best leave, the rest is compared
again (Hsu 1984, Annals of Statistics 12; Hansen, Lunde, Nason, The model confidence set, 2011,
Econometrica 79). Two series differ if

1. the interval of their difference, widened for half as many statements as there are series,
   excludes 0, and all seeds agree in sign: the seeds of one series may vary more than the others',
2. the difference exceeds its joint interval, whose variance over seeds is pooled over the pairs
   that are left: with two or three seeds one pair alone knows it too badly.

Equal series are called different in 0 to 4% of tables if seeds vary equally in all, and in about 5%
of tables of two if they vary up to ten times as much in one (results/statistics).
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from lengthgen.analysis.intervals import Estimate, Spread, student, upper
from lengthgen.analysis.paired_sums import SeedPoints, sample, seed_points, whole
from lengthgen.analysis.seed_groups import Series

Pair = tuple[str, str]  # labels
Mark = Literal["", "best", "tie", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Which of the series at one length differ, jointly at 95%."""

    best: str  # label of the least loss
    ties: frozenset[str]  # no difference from it is shown
    unknown: frozenset[str]  # not comparable with it: one seed or document in common, or diverged
    ranks: Mapping[str, tuple[int, int]]  # of the others: the least and the largest possible one
    different: frozenset[Pair]  # the better one first

    def mark(self, label: str) -> Mark:
        """Returns how a series compares with the best; "" if it is worse."""
        if label == self.best:
            return "best"
        if label in self.ties:
            return "tie"
        return "unknown" if label in self.unknown else ""

    def rank_text(self, label: str) -> str:
        """Returns the ranks that a series may have, "2" or "2 to 4"; "n/a" if they are unknown."""
        return " to ".join(map(str, dict.fromkeys(self.ranks.get(label, ["n/a"]))))


def difference(a: Series, b: Series, length: int) -> Estimate | None:
    """Returns the loss of a less that of b; None if they share no seed, document or condition."""
    return _difference(seed_points(a, length), seed_points(b, length))


def _difference(of_a: SeedPoints, of_b: SeedPoints) -> Estimate | None:
    if {p.condition for p in of_a.values()} != {p.condition for p in of_b.values()}:
        return None
    found = sample([of_a, of_b], whole)
    return None if found is None else found.gap(0, 1)


def compare(lines: Sequence[Series], length: int) -> Comparison | None:
    """Returns which series may be the best at a length; None if no two can be compared."""
    losses = {line.label: loss for line in lines if (loss := line.losses().get(length)) is not None}
    cells = {line.label: seed_points(line, length) for line in lines if line.label in losses}
    pairs = {
        (a, b): found
        for a, b in combinations(cells, 2)
        if (found := _difference(cells[a], cells[b])) is not None
    }
    return compared(losses, pairs)


def least_at(lines: Sequence[Series], length: int) -> tuple[Series, Comparison | None] | None:
    """Returns the series of least loss at a length, and the comparison with it.

    Of series that can be compared, where some can. None if no loss there is finite.
    """
    found = compare(lines, length)
    losses = {line.label: line.losses().get(length, math.inf) for line in lines}
    label = found.best if found is not None else min(losses, key=lambda label: losses[label])
    if math.isinf(losses[label]):
        return None
    return next(line for line in lines if line.label == label), found


def compared(losses: Mapping[str, float], pairs: Mapping[Pair, Estimate]) -> Comparison | None:
    """Returns the comparison of losses from the differences (a less b) of their pairs.

    None if no pair has an interval over seeds, or no loss is finite.
    """
    known = {pair: e for pair, e in pairs.items() if e.of_scheme and not math.isnan(e.low)}
    labels = {label for pair in known for label in pair}
    different = _different(known, len(labels))
    # Losses are of all seeds of a series, differences of those that two share: the least loss may
    # be of a series that another is shown to be better than.
    least = labels - {worse for _, worse in different} or labels
    best = min(least, key=lambda label: (losses[label], label), default=None)
    if best is None or math.isinf(losses[best]):
        return None
    comparable = {label for pair in known if best in pair for label in pair}
    left = set(labels)
    while True:
        among = {(a, b): e for (a, b), e in known.items() if a in left and b in left}
        different |= _different(among, len(left))
        worse = {b for a, b in different if a == best} & left
        if not worse:
            break
        left -= worse
    return Comparison(
        best=best,
        ties=frozenset((comparable & left) - {best}),
        unknown=frozenset(set(losses) - comparable),
        ranks={
            label: (
                1 + sum(b == label for _, b in different),
                len(labels) - sum(a == label for a, _ in different),
            )
            for label in sorted(comparable)
        },
        different=frozenset(different),
    )


def _different(pairs: Mapping[Pair, Estimate], n_series: int) -> set[Pair]:
    """Returns the pairs that differ, the better one first."""
    spreads = [e.spread for e in pairs.values() if e.spread is not None]
    half_width = _joint_half_width(spreads, n_series, len(pairs)) if spreads else None
    found = set[Pair]()
    for (a, b), estimate in pairs.items():
        spread = estimate.spread
        half = 0.0 if spread is None or half_width is None else half_width(spread)
        own = estimate.widened(n_series // 2)
        if own.has_sign and abs(estimate.value) > half:
            found.add((b, a) if estimate.value > 0 else (a, b))
    return found


def _joint_half_width(
    spreads: Collection[Spread], n_series: int, n_pairs: int
) -> Callable[[Spread], float]:
    """Returns the half-width of a difference in the joint interval, seeds pooled over pairs."""
    freedom = sum(s.n_seeds - 1 for s in spreads)
    of_one_seed = sum((s.n_seeds - 1) * s.n_seeds * s.seeds for s in spreads) / freedom
    least = min(s.n_seeds for s in spreads)
    t_seeds = student(upper(n_pairs), (n_series - 1) * (least - 1))

    def half_width(s: Spread) -> float:
        t_documents = student(upper(n_pairs), s.freedom)
        return math.sqrt(t_seeds**2 * of_one_seed / s.n_seeds + t_documents**2 * s.documents)

    return half_width
