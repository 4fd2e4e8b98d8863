"""What commands print: lines, tables and JSON on stdout, messages on stderr."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from lengthgen.escaping import visible


def warn(line: str) -> None:
    """Writes a line to stderr, if it can be written."""
    with suppress(OSError):
        print(visible(line, keep="\n\t"), file=sys.stderr)


def warn_once(line: str) -> None:
    """Writes a line to stderr as `warn` does; under torchrun, in the main process alone."""
    if os.environ.get("RANK", "0") == "0":
        warn(line)


def echo(text: object) -> None:
    """Prints lines on stdout."""
    print(visible(str(text), keep="\n\t"))


def print_table(head: list[str], rows: Sequence[list[str]]) -> None:
    """Prints a table on a terminal, and lines of tab-separated cells into a pipe."""
    if not sys.stdout.isatty():
        for row in [head, *rows]:
            echo("\t".join(map(visible, row)))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold")
    for name in head:  # a path that is cut cannot be copied, nor an id that is broken
        table.add_column(name, overflow="fold", no_wrap=name == "run")
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    console = Console()
    if "run" in head:  # room for ids, and for one word of each other column
        ids = max(len(row[head.index("run")]) for row in [head, *rows])
        console.width = max(console.width, ids + 10 * len(head))
    console.print(table)
