"""A part of a report: the sentences, tables and figures of one text, or of one kind of run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd
from matplotlib.figure import Figure

from lengthgen.report.tables import Table


@dataclass(frozen=True, kw_only=True)
class Section:
    """What a page shows under one heading, in this order, the first figure and table first.

    A room beside the core adds sections: `SECTIONS` of its module `register` lists functions that
    take the data frame of results.load and return a Section, or None where no row is theirs.
    """

    title: str
    figures: Mapping[str, Figure] = field(default_factory=dict[str, Figure])  # by name of the file
    sentences: Sequence[str] = ()
    tables: Sequence[Table] = ()
    facts: Mapping[str, str] = field(default_factory=dict[str, str])  # by name
    notes: Sequence[str] = ()  # what is not shown, or limits a comparison
    data: Mapping[str, pd.DataFrame] = field(default_factory=dict[str, pd.DataFrame])  # for CSV
    summary: Table | None = None  # what a terminal shows, in 80 columns where names allow
