"""What the rooms beside the core add to the command line, in a light module `cli` of theirs.

lengthgen/ROOM/cli.py holds COMMANDS, functions by the name of their command, and LISTS, functions
(plugins -> head, rows) by the kind that `lengthgen list` takes. It imports what is heavy inside the
functions, and so does the __init__ of such a room: --help and Tab import both.
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import lengthgen


@cache
def additions(name: str) -> dict[str, Any]:
    """Returns what the rooms' modules `cli` hold under a name, found by that file alone."""
    merged: dict[str, Any] = {}
    for folder in map(Path, lengthgen.__path__):
        for file in sorted(folder.glob("*/cli.py")):
            merged |= getattr(import_module(f"lengthgen.{file.parent.name}.cli"), name, {})
    return merged
