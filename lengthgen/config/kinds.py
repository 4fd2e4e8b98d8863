"""Classes that a name selects, such as parts and tasks: those of the package and of plugins."""

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


def subclasses(modules: Iterable[ModuleType], base: type[T], *, what: str) -> dict[str, type[T]]:
    """Returns the concrete subclasses of `base` in modules, by their names in snake case.

    Names that begin with _ are left out. Raises UserError for two classes of one name.
    """
    found: dict[str, type[T]] = {}
    for module in modules:
        for class_name, value in vars(module).items():
            if (
                isinstance(value, type)
                and issubclass(value, base)
                and value is not base
                and not inspect.isabstract(value)
                and value.__module__ == module.__name__
                and not class_name.startswith("_")
            ):
                words = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
                name = re.sub(words, "_", class_name).lower()
                if found.setdefault(name, value) is not value:
                    raise UserError(
                        f"{what} {name} is defined twice, in {inspect.getfile(found[name])} and in "
                        f"{module.__file__}; rename one of the classes"
                    )
    return found


def build(
    kinds: Mapping[str, type[T]], kind: str, arguments: Mapping[str, Any], *, what: str, where: str
) -> T:
    """Builds the class of a name from its keyword-only arguments.

    Raises UserError for an unknown name, arguments that do not fit the signature, or a value that
    the class refuses with ValueError.
    """
    if kind not in kinds:
        raise UserError(f"{where}.kind: no {what} {kind!r}; {suggestion(kind, kinds)}")
    held = sections.arguments(kinds[kind], arguments, where=f"{where}.arguments")
    try:
        return kinds[kind](**held)
    except ValueError as error:
        raise UserError(f"{where}.arguments: {error}") from None


def code_of(kind: type[Any]) -> str:
    """Returns the source of the module of a class; for a plugin, a name that holds its hash."""
    name = kind.__module__
    return name if name.startswith(MODULE_PREFIX) else inspect.getsource(sys.modules[name])
