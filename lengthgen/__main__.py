"""Runs the command line: lengthgen, python -m lengthgen, and torchrun -m lengthgen."""

import os
import signal
import sys
from typing import NoReturn

from lengthgen.runs import signals


def main() -> NoReturn:
    """Runs the command line and exits; Ctrl-C is one line and exit code 130."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by `>&-`: the next file would take its number
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    is_ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # as by `nohup`, or `&` of sh
    with signals.handled([] if is_ignored else [signal.SIGINT], signals.end_at_once):
        try:
            from lengthgen import cli

            cli.main()
        except KeyboardInterrupt:
            if os.environ.get("RANK", "0") == "0":
                sys.stderr.write(f"{signals.INTERRUPTED}\n")
            sys.exit(130)


if __name__ == "__main__":
    main()
