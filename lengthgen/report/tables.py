"""Tables, written as Markdown, as CSV and for a terminal."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import pandas as pd

from lengthgen import escaping

Mark = Literal["", "best", "tie", "unknown", "faint"]
SIGNS = {"tie": "=", "unknown": "?"}  # behind a value


class Cell(NamedTuple):
    """What stands in a cell, and what it is to the best of its column; faint: it counts little."""

    text: str
    mark: Mark = ""

    @property
    def sign(self) -> str:
        """What stands behind the text."""
        return SIGNS.get(self.mark, "")


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; every row begins with its name."""

    key: str
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()


def markdown(table: Table) -> str:
    """Returns title, table and notes as Markdown, with the columns in line."""
    marked = {"best": "**{}**", "faint": "({})"}
    body = [[marked.get(c.mark, "{}").format(c.text) + c.sign for c in row] for row in table.rows]
    texts = [
        [escaping.markdown(text).replace("|", "\\|") for text in row] for row in (table.head, *body)
    ]
    widths = [max(3, *map(len, column)) for column in zip(*texts, strict=True)]
    head, *rows = ([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in texts)
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = [f"| {' | '.join(row)} |" for row in (head, rule, *rows)]
    notes = [line for note in table.notes for line in ("", escaping.markdown(note))]
    return "\n".join([f"{escaping.markdown(table.title)}.", "", *lines, *notes]) + "\n"


def shown(table: Table) -> str:
    """Returns the table as Markdown, but drawn where standard output is a terminal."""
    if not sys.stdout.isatty():
        return markdown(table)
    from rich import box
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    drawn = Drawn(box=box.SIMPLE_HEAD, title=Text(escaping.visible(table.title)))
    for i, name in enumerate(table.head):
        drawn.add_column(Text(escaping.visible(name)), justify="right" if i else "left")
    for row in table.rows:
        drawn.add_row(*(Text(escaping.visible(cell.text + cell.sign)) for cell in row))
    console = Console(width=80, no_color=True)
    with console.capture() as text:
        console.print(drawn)
    return text.get()


def csv_text(table: pd.DataFrame) -> str:
    """Returns a data frame as CSV in which no text is a formula."""
    return table.map(escaping.csv_cell).to_csv(index=False, lineterminator="\n")
