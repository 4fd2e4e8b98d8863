"""Tables and how they are written: as Markdown, LaTeX and CSV."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from lengthgen import escaping

TIE = "="  # behind a value that is a statistical tie with the best one
UNKNOWN = "?"  # behind a value that cannot be compared with it


Mark = Literal["", "best", "tie", "unknown", "faint"]


class Cell(NamedTuple):
    """What stands in a cell, what it is to the best of its column, and whether it counts little."""

    text: str
    mark: Mark = ""

    @property
    def sign(self) -> str:
        """What stands behind the text."""
        return {"tie": TIE, "unknown": UNKNOWN}.get(self.mark, "")


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; every row begins with its name."""

    key: str  # of letters and hyphens, for labels
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()


def markdown(table: Table) -> str:
    """Returns title, table and notes as Markdown, with the columns in line."""
    written = [[_cell(cell) for cell in row] for row in table.rows]
    rows = [[_in_table(text) for text in table.head], *written]
    notes = [line for note in table.notes for line in ("", escaping.markdown(note))]
    return "\n".join([f"{escaping.markdown(table.title)}.", "", *_aligned(rows), *notes]) + "\n"


def _cell(cell: Cell) -> str:
    text = _in_table(cell.text)
    return {"best": f"**{text}**", "faint": f"({text})"}.get(cell.mark, text + cell.sign)


def _in_table(text: str) -> str:
    return escaping.markdown(text).replace("|", "\\|")


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns Markdown rows with the columns in line, the first to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = [
        [row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]  # the header too
        for row in rows
    ]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return [f"| {' | '.join(row)} |" for row in (padded[0], rule, *padded[1:])]


def latex(table: Table) -> str:
    """Returns the table as a LaTeX float for the packages booktabs and xcolor."""
    columns = "l" + "r" * (len(table.head) - 1)
    caption = " ".join([f"{table.title}.", *table.notes])
    head = " & ".join(escaping.latex(text) for text in table.head)
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escaping.latex(caption)}}}",
        rf"\label{{tab:{table.key}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        rf"{head} \\",
        r"\midrule",
        *(rf"{' & '.join(map(_latex_cell, row))} \\" for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _latex_cell(cell: Cell) -> str:
    text = escaping.latex(cell.text)
    marked = {
        "best": rf"\textbf{{{text}}}",
        "faint": rf"\textcolor{{gray}}{{{text}}}",
    }
    return marked.get(cell.mark, f"{text}$^{{{cell.sign}}}$" if cell.sign else text)


def csv_text(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Returns head and rows as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([escaping.csv_cell(cell) for cell in row] for row in (head, *rows))
    return text.getvalue()
