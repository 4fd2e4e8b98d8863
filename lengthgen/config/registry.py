"""Classes by name: a file of the package, or a plugin, that defines one is all that is needed.

A subpackage beside the core is found by the name of a file: its register.py lists what it adds,
report_sections.py its SECTIONS of a report, cli.py its COMMANDS and LISTS (plugins -> head, rows).
"""

import importlib
import inspect
import pkgutil
import re
import sys
import traceback
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import lengthgen
from lengthgen.config.plugins import Plugin, is_of_plugin
from lengthgen.errors import UserError, first_line, out_of_memory, suggestion
from lengthgen.files import hash_of

T = TypeVar("T")


def snake_case(name: str) -> str:
    """Returns a class name in snake case: that of TransformerXL is transformer_xl."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def modules_of(package: str, path: Iterable[str]) -> list[ModuleType]:
    """Returns the modules below the folders of a package, imported."""
    return [importlib.import_module(f.name) for f in pkgutil.walk_packages(path, f"{package}.")]


@cache
def beside_core(name: str) -> tuple[ModuleType, ...]:
    """Returns the module of that name of every subpackage that has one, imported.

    beside_core("register") has lengthgen.tasks.register.
    """
    files = sorted(f for folder in lengthgen.__path__ for f in Path(folder).glob(f"*/{name}.py"))
    return tuple(importlib.import_module(f"lengthgen.{f.parent.name}.{name}") for f in files)


def contributed(name: str, file: str = "register") -> list[Any]:
    """Returns what the subpackages beside the core list under a name in a file of theirs.

    contributed("PROTOCOLS") has those of each register.py.
    """
    return [value for module in beside_core(file) for value in getattr(module, name, ())]


def registered(
    modules: Iterable[ModuleType], base: type[T], plugins: Sequence[Plugin]
) -> dict[str, type[T]]:
    """Returns the public subclasses that modules and plugins define, by name.

    Those of modules are concrete; `construct` names the method that one of a plugin lacks. Raises
    UserError for a plugin that fails, and for two subclasses of one name.
    """
    by_name: dict[str, type[T]] = {}
    for module in [*modules, *(plugin.module() for plugin in plugins)]:
        for name, kind in vars(module).items():
            is_own = isinstance(kind, type) and kind.__module__ == module.__name__
            if not is_own or not issubclass(kind, base) or kind is base:
                continue
            if name.startswith("_") or (inspect.isabstract(kind) and not is_of_plugin(kind)):
                continue
            known = by_name.setdefault(snake_case(name), kind)
            if known is not kind:
                raise UserError(
                    f"{base.__name__.lower()} {snake_case(name)} is defined twice, in "
                    f"{inspect.getfile(known)} and in {module.__file__}; rename one of the classes"
                )
    return by_name


def class_named(
    name: str, known: Mapping[str, type[T]], plugins: Sequence[Plugin], *, what: str, where: str
) -> type[T]:
    """Returns the class of a name. Raises UserError with a suggestion for a name that is none."""
    if name not in known:
        every = f"known: {', '.join(sorted(known))}"
        hint = "" if plugins else f" (a custom {what} needs --plugin)"
        remedy = suggestion(name, known, otherwise=every)
        raise UserError(f"{where}: no {what} {name!r}; {remedy}{hint}")
    return known[name]


def construct(kind: type[T], arguments: Mapping[str, Any], *first: object, where: str) -> T:
    """Calls a class with its first arguments and the keyword-only ones, in their types.

    Raises UserError, at the key `where`, for a value that it refuses with ValueError, and for any
    other error of its constructor, with file and line.
    """
    with errors_of(kind, where=where, refuses=True):
        return kind(*first, **arguments)


@contextmanager
def errors_of(kind: type[Any], *, where: str, refuses: bool = False) -> Generator[None]:
    """Turns an error in the code of a class into one line with its place.

    A UserError has its own line, and so has memory that could not be allocated: these pass. If it
    `refuses` values by ValueError, what that says is the line.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        if refuses and isinstance(error, ValueError):
            raise UserError(f"{where}: {error}") from error
        raise UserError(f"{where}: {kind.__name__} raised {described(error, kind)}") from error


def described(error: BaseException, kind: type[Any]) -> str:
    """Returns an error's type and text, and the line of a class's file that it came from.

    That of the class, if nothing in the file raised it.
    """
    frames = traceback.walk_tb(error.__traceback__)
    lines = [n for frame, n in frames if frame.f_globals.get("__name__") == kind.__module__]
    line = lines[-1] if lines else inspect.getsourcelines(kind)[1]
    place = f"({inspect.getfile(kind)}, line {line})"
    return f"{type(error).__name__}: {first_line(error)} {place}"


def code_of(kind: type[Any]) -> str:
    """Returns the source of the module of a class; for a plugin, a name that holds its hash."""
    name = kind.__module__
    return name if is_of_plugin(kind) else inspect.getsource(sys.modules[name])


def digest_of(kind: type[Any]) -> str:
    """Returns a digest of the code of a class."""
    return hash_of(code_of(kind), 12)
