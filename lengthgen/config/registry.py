"""Classes by name: a file that defines one is all that a registry needs."""

import inspect
import re
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")


def snake_case(name: str) -> str:
    """Returns a class name in snake case: that of TransformerXL is transformer_xl."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def subclasses(module: ModuleType, base: type[T]) -> dict[str, type[T]]:
    """Returns the public, concrete subclasses that a module defines, by name in snake case."""
    return {
        snake_case(name): value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, base)
        and value is not base
        and not inspect.isabstract(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    }
