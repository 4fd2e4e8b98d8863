"""What commands print: lines on stdout, messages on stderr."""

import os
import sys
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


def echo_verbatim(text: str) -> None:
    """Prints text as it is into a pipe or a file; on a terminal as `echo`."""
    if sys.stdout.isatty():
        echo(text)
    else:
        print(text)
