"""Runs the command line: lengthgen, python -m lengthgen, and torchrun -m lengthgen."""

import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Runs the command line and exits; an interrupt in the midst of an import is one line, too."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by `>&-`: the next file would take its number
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    try:
        from lengthgen import cli

        cli.main()
    except (KeyboardInterrupt, Exception) as error:
        # pydantic wraps an interrupt that comes while it builds a schema.
        if not isinstance(error, KeyboardInterrupt) and "KeyboardInterrupt" not in str(error):
            raise
        if os.environ.get("RANK", "0") == "0":
            sys.stderr.write("interrupted; the same command continues with what is done\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
