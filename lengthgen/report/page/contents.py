"""What the page is made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lengthgen.analysis.curves import Point
from lengthgen.analysis.findings import Finding
from lengthgen.analysis.reference_results import Anchor
from lengthgen.analysis.seed_groups import Series
from lengthgen.report.page.costs import Cost
from lengthgen.report.page.looks import Stroke, strokes
from lengthgen.report.page.markup import Picture


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Everything that the page shows. All text in it may be a stranger's and is escaped."""

    findings: Sequence[Finding]  # of the headline protocol; none if it was not evaluated
    series: Mapping[str, Sequence[Series]]  # by protocol, the headline first
    remarks: Sequence[str]  # what is not shown or not comparable
    configs: Mapping[str, Mapping[str, Any]]  # the plain configuration of each run
    environments: Mapping[str, Mapping[str, Any]]  # env.json of each run that has one
    pictures: Mapping[str, Sequence[Picture]]  # of the probes of a run
    anchors: Sequence[Anchor]
    costs: Mapping[str, Cost]

    @cached_property
    def points(self) -> list[Point]:
        """All points of all protocols."""
        return [p for lines in self.series.values() for line in lines for p in line.points]

    @cached_property
    def runs(self) -> list[str]:
        return sorted({p.run for p in self.points})

    @cached_property
    def schemes(self) -> list[str]:
        return sorted({p.scheme for p in self.points})

    @cached_property
    def train_lengths(self) -> list[int]:
        return sorted({p.train_length for p in self.points})

    @cached_property
    def lines(self) -> list[Series]:
        """One series of each label, whatever its protocol."""
        found: dict[str, Series] = {}
        for lines in self.series.values():
            for line in lines:
                found.setdefault(line.label, line)
        return list(found.values())

    @cached_property
    def references(self) -> set[str]:
        """The labels of series that their scheme is compared with."""
        return {line.label for line in self.lines if line.reference}

    @cached_property
    def keys(self) -> dict[str, str]:
        """A short name of each label, for ids and attributes."""
        return {line.label: f"s{i}" for i, line in enumerate(self.lines)}

    @cached_property
    def strokes(self) -> dict[str, Stroke]:
        return strokes(self.lines)
