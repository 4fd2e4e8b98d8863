"""Rooms beside the core, which imports none of them: they are found by the name of a file.

lengthgen/ROOM/register.py says what a room adds to the core: SOURCES, PROTOCOLS and the like.
lengthgen/ROOM/cli.py holds COMMANDS, functions by the name of their command, and LISTS, functions
(plugins -> head, rows) by the kind that `lengthgen list` takes. It imports what is heavy inside the
functions, and so does the __init__ of such a room: --help and Tab import both.
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import lengthgen


@cache
def modules(name: str) -> tuple[ModuleType, ...]:
    """Returns the module of that name of every room that has one: lengthgen.tasks.register."""
    files = sorted(f for folder in lengthgen.__path__ for f in Path(folder).glob(f"*/{name}.py"))
    return tuple(import_module(f"lengthgen.{file.parent.name}.{name}") for file in files)
