"""Runs the command line: lengthgen, python -m lengthgen, and torchrun -m lengthgen."""

import io
import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from lengthgen.runs import signals

INTERRUPTED = "interrupted; rerun to resume\n"


def main() -> NoReturn:
    """Runs the program; a signal ends it at once: Python would wait for a thread, or abort."""
    try:
        command()
    except SystemExit as ended:
        if isinstance(ended.code, int) and ended.code > 128:
            with suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(ended.code)
        raise


def command() -> NoReturn:
    """Runs the command line and exits; Ctrl-C is one line and exit code 130."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by `>&-`: the next file would take its number
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what its encoding lacks is shown as \\xe9
            stream.reconfigure(errors="backslashreplace")
    is_ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # as by `nohup`, or `&` of sh
    with signals.handled([] if is_ignored else [signal.SIGINT], _end_at_once):
        try:
            from lengthgen.cli import app

            app.main()
        except KeyboardInterrupt:
            if os.environ.get("RANK", "0") == "0":
                sys.stderr.write(INTERRUPTED)
            sys.exit(130)


def _end_at_once(number: int, frame: FrameType | None) -> None:
    """Handles Ctrl-C before the work begins: libraries swallow KeyboardInterrupt at their import.

    Files are written aside and renamed, so that the program may end at any moment.
    """
    if os.environ.get("RANK", "0") == "0":
        with suppress(OSError):
            os.write(2, INTERRUPTED.encode())
    os._exit(128 + number)


if __name__ == "__main__":
    main()
