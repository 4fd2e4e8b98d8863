"""Classes by name: a file of the package, or a plugin, that defines one is all that is needed."""

import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any, TypeVar

from lengthgen.config import sections
from lengthgen.config.plugins import MODULE_PREFIX
from lengthgen.errors import UserError, suggestion

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


def registered(modules: Iterable[ModuleType], base: type[T]) -> dict[str, type[T]]:
    """Returns the subclasses that modules define. Raises UserError for two of one name."""
    found: dict[str, type[T]] = {}
    for module in modules:
        for name, kind in subclasses(module, base).items():
            if found.setdefault(name, kind) is not kind:
                raise UserError(
                    f"{base.__name__.lower()} {name} is defined twice, in "
                    f"{inspect.getfile(found[name])} and in {module.__file__}; rename one of the "
                    "classes"
                )
    return found


def build(known: Mapping[str, type[T]], kind: str, given: Mapping[str, Any], *, where: str) -> T:
    """Builds the class `where`.kind from its keyword-only arguments, `where`.arguments.

    Raises UserError for an unknown kind, arguments that do not fit the signature, or a value that
    the class refuses with ValueError.
    """
    if kind not in known:
        what = "source" if where == "corpus" else where
        raise UserError(f"{where}.kind: no {what} {kind!r}; {suggestion(kind, known)}")
    arguments = sections.arguments(known[kind], given, where=f"{where}.arguments")
    try:
        return known[kind](**arguments)
    except ValueError as error:
        raise UserError(f"{where}.arguments: {error}") from None


def code_of(kind: type[Any]) -> str:
    """Returns the source of the module of a class; for a plugin, a name that holds its hash."""
    name = kind.__module__
    return name if name.startswith(MODULE_PREFIX) else inspect.getsource(sys.modules[name])
