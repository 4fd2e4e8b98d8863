"""The part of the page that shows tasks: figures of accuracy over length, and tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from lengthgen.report.page.markup import Child, Picture, image, table, tag
from lengthgen.report.typeset import Cell, Table


@dataclass(frozen=True, kw_only=True)
class Tasks:
    """What the page shows of tasks."""

    pictures: Sequence[Picture]
    tables: Sequence[Table]
    remarks: Sequence[str]  # what is not shown or not comparable


def exhibited(tasks: Tasks | None) -> list[Element]:
    """Returns the part, as a list of one; an empty one if there are no tasks."""
    if tasks is None:
        return []
    pictures = [image(picture) for picture in tasks.pictures]
    shown = [element for one in tasks.tables for element in exhibit(one)]
    heading, drawn = tag("h2", "Tasks"), tag("div", *pictures, class_="pictures")
    remarks = [tag("ul", *(tag("li", one) for one in tasks.remarks))] if tasks.remarks else []
    return [tag("section", heading, *remarks, drawn, *shown, id="tasks")]


def exhibit(one: Table) -> list[Element]:
    """Returns a table of the report with its title and notes."""
    rows: list[list[Child]] = [[row[0].text, *map(_cell, row[1:])] for row in one.rows]
    notes = [tag("p", note, class_="note") for note in one.notes]
    return [tag("h3", f"{one.title}."), table(list(one.head), rows), *notes]


def _cell(cell: Cell) -> Child:
    if cell.mark == "best":
        return tag("td", tag("b", cell.text), class_="best")
    return tag("td", cell.text, class_="faint") if cell.mark == "faint" else cell.text
