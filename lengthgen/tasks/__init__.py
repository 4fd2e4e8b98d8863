"""The registry of tasks: every Task in a file of this directory, by its name in snake case."""

import importlib
import pkgutil
import re
from collections.abc import Mapping
from typing import Any

from lengthgen import schema
from lengthgen.errors import UserError, suggestion
from lengthgen.tasks.base import END, Example, Task

__all__ = ["END", "Example", "Task", "build", "registry"]


def registry() -> dict[str, type[Task]]:
    """Returns all tasks by name."""
    modules = [
        importlib.import_module(f"{__name__}.{found.name}")
        for found in pkgutil.iter_modules(__path__)
        if found.name != "base"
    ]
    return {
        re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower(): value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, Task)
        and value.__module__ == module.__name__
    }


def build(kind: str, arguments: Mapping[str, Any], *, where: str) -> Task:
    """Builds a task from its arguments.

    Raises UserError for an unknown task, arguments that do not fit its signature, or a value that
    it refuses.
    """
    known = registry()
    if kind not in known:
        raise UserError(f"{where}.kind: no task {kind!r}; {suggestion(kind, known)}")
    made = known[kind]
    held = schema.arguments(made, arguments, where=f"{where}.arguments")
    try:
        return made(**held)
    except ValueError as error:
        raise UserError(f"{where}.arguments: {error}") from None
