"""The tables that commands print: tab-separated lines in pipes."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lengthgen.cli.console import echo
from lengthgen.escaping import visible


def print_table(head: list[str], rows: Sequence[list[str]], *, head_in_pipes: bool = False) -> None:
    """Prints a table on a terminal, and lines of tab-separated cells into a pipe."""
    if not sys.stdout.isatty():
        for row in [head] * head_in_pipes + [*rows]:
            echo("\t".join(map(visible, row)))
        return
    table = Table(box=None, header_style="bold")
    for name in head:
        table.add_column(name, overflow="fold")  # a path that is cut cannot be copied
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    Console().print(table)
