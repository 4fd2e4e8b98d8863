"""How far a model copies, finds and predicts: the longest length up to which all pass a test.

    copies       fine: copy accuracy >= FINE; coarse: more right than behind other text, its 95 %
                 interval above 0 (Wang et al. 2024, arXiv 2410.04727)
    finds        accuracy >= eval.effective times that at the shortest length, which is above chance
                 (NoLiMa: Modarressi et al. 2025, arXiv 2502.05167)
    holds        perplexity: loss <= loss(T) + EPS, of the model without a variant, at lengths >= T

The interval of a length is that of its test, inverted: from the longest length up to which the 95 %
interval of the tested number passes whole, to that up to which some of it passes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from lengthgen.config.schema import Eval
from lengthgen.context.forgetting import FORGETTING
from lengthgen.context.retrieval import DEPTHS, DRAWN, FORMS, RETRIEVAL
from lengthgen.evaluation.protocols import HEADLINE
from lengthgen.report.intervals import Estimate, gap
from lengthgen.report.load import eval_of
from lengthgen.report.series import short
from lengthgen.report.statistics import EPS, CurvePoint, Sums, bounded, loss_of, scores, unchanged

FINE = 0.99  # of the tokens are copied
CHANCE = 1 / (DRAWN + 1)


@dataclass(frozen=True, kw_only=True)
class Reach:
    """A length with its interval; 0: not even the shortest one passes."""

    value: int
    low: int
    high: int
    shortest: int
    longest: int

    @property
    def text(self) -> str:
        """Returns "1k [512, 2k]", ">= 4k" if it is the longest, "< 64" if the shortest fails."""
        value, low, high = map(self._named, (self.value, self.low, self.high))
        return value if value == low == high else f"{value} [{low}, {high}]"

    def _named(self, length: int) -> str:
        if not length:
            return f"< {short(self.shortest)}"
        return f">= {short(length)}" if length == self.longest else short(length)


Test = tuple[bool, bool, bool]  # what passes: the value, the whole interval, some of it


def reach(tests: Mapping[int, Test]) -> Reach | None:
    """Returns the length before the first that fails, of the tested ones, the shortest first."""
    if not tests:
        return None
    lengths, passes = [*tests], [*tests.values()]
    ends = [next((i for i, at in enumerate(passes) if not at[k]), len(lengths)) for k in range(3)]
    value, low, high = (lengths[i - 1] if i else 0 for i in ends)
    bounds = {"low": min(low, value), "high": max(high, value)}
    return Reach(value=value, **bounds, shortest=lengths[0], longest=lengths[-1])


def hits(rows: pd.DataFrame, places: Sequence[int], *, of: str = "hits") -> Sums:
    """Returns the sums of hits over these places of the rows' lists, and how often they counted."""

    def at_places(part: pd.DataFrame, name: str) -> "pd.Series[float]":
        return pd.Series([sum(x[i] for i in places) for x in part[name]], part.index, dtype=float)

    return Sums(rows, lambda part: (at_places(part, of), at_places(part, "tries")))


def own_rows(rows: pd.DataFrame, protocol: str) -> pd.DataFrame:
    """Returns the rows of a protocol that have a value."""
    return rows.loc[(rows["protocol"] == protocol) & rows["document"].notna()]


def curve_points(sums: Sums, series: str) -> list[CurvePoint]:
    """Returns the points of a series, the shortest first."""
    return sorted((p for p in sums.rows if p.series == series), key=lambda p: p.length)


def estimate(sums: Sums, point: CurvePoint) -> Estimate:
    sample = sums.sample([point])
    assert sample is not None  # a point that has rows
    return sample.mean(0)


def share(sums: Sums, point: CurvePoint) -> Estimate:
    """Returns the share of hits, with its interval within 0 and 1."""
    sample = sums.sample([point])
    assert sample is not None  # a point that has rows
    return bounded(sample, (0, 1))


def fine(rows: pd.DataFrame, series: str) -> Reach | None:
    """Returns how far a series copies all but one in a hundred tokens."""
    sums = hits(own_rows(rows, FORGETTING.name), [0])
    found = {p.length: estimate(sums, p) for p in curve_points(sums, series)}
    return reach({n: (e.value >= FINE, e.low >= FINE, e.high >= FINE) for n, e in found.items()})


def coarse(rows: pd.DataFrame, series: str) -> Reach | None:
    """Returns how far what was read makes more tokens right than other text does."""
    sums = Sums(own_rows(rows, FORGETTING.name), scores)
    found = {p.length: estimate(sums, p) for p in curve_points(sums, series)}
    return reach({n: (e.low > 0, e.low > 0, e.high > 0) for n, e in found.items()})


def form_places(form: str) -> range:
    """Returns the places of a form in the lists of rows of retrieval, the least depth first."""
    first = FORMS.index(form) * len(DEPTHS)
    return range(first, first + len(DEPTHS))


def kept_share(rows: pd.DataFrame) -> float:
    """Returns eval.effective of the first of the rows, or what it is without being given."""
    return eval_of(rows).get("effective", Eval.model_fields["effective"].default)


def effective(rows: pd.DataFrame, series: str, form: str) -> Reach | None:
    """Returns the effective length of a series in a form of retrieval."""
    retrieved = own_rows(rows, RETRIEVAL.name)
    sums = hits(retrieved, form_places(form))
    if not (at := curve_points(sums, series)):
        return None
    kept, tests = kept_share(retrieved[retrieved["series"] == series]), dict[int, Test]()
    if share(sums, at[0]).low <= CHANCE:  # it finds nothing
        return reach({p.length: (False, False, False) for p in at})
    for p in at:
        if (sample := sums.sample([p, at[0]])) is not None:
            left = gap(sample.sums[0], kept * sample.sums[1], sample.counts_D, sample.groups_D)
            tests[p.length] = left.value >= 0, left.low >= 0, left.high >= 0
    return reach(tests)


def holds(rows: pd.DataFrame, series: str) -> Reach | None:
    """Returns how far the loss is no more than EPS above that at T; None without one at T."""
    sums, T = Sums(own_rows(rows, HEADLINE), loss_of), int(rows["train_length"].iloc[0])
    at_T = CurvePoint(HEADLINE, unchanged(rows)[series], T)
    at = [p for p in curve_points(sums, series) if p.length >= T]
    if at_T not in sums.rows or not at:
        return None
    tests = dict[int, Test]()
    for p in at:
        if p == at_T:
            tests[p.length] = True, True, True
        elif (rise := sums.difference(p, at_T)) is not None:
            tests[p.length] = rise.value <= EPS, rise.high <= EPS, rise.low <= EPS
    return reach(tests)
