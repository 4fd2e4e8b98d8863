"""How commands print: tables on a terminal, tab-separated lines in pipes, one line on stderr."""

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lengthgen.cli.listing import Listing


def say_once(line: str) -> None:
    """Writes a line to stderr, if anybody reads it; under torchrun, by one process of all."""
    if os.environ.get("RANK", "0") == "0":
        say(line)


def say(line: str) -> None:
    """Writes a line to stderr, if anybody reads it."""
    with suppress(OSError):
        print(line, file=sys.stderr)


def print_rows(listed: "Listing", *, head_in_pipes: bool = False) -> None:
    """Prints a table on a terminal, and lines of tab-separated cells into a pipe."""
    if not sys.stdout.isatty():
        for row in [listed.head] * head_in_pipes + listed.rows:
            print("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold")
    for name in listed.head:
        table.add_column(name, overflow="fold")  # a path that is cut cannot be copied
    for row in listed.rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
