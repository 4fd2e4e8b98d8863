"""The registry of parts: every Part in a file of this directory, by its name in snake case."""

import hashlib
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from lengthgen.errors import UserError, suggestion
from lengthgen.schemes.base import (
    Ctx,
    Layer,
    Part,
    Rotated,
    Scheme,
    Shape,
    logits,
    of_layer,
    weighted,
)

__all__ = [
    "Ctx",
    "Layer",
    "Part",
    "Rotated",
    "Scheme",
    "Shape",
    "build",
    "build_meta",
    "logits",
    "of_layer",
    "registry",
    "weighted",
]

_PLUGIN = "lengthgen_plugin_"


def registry() -> dict[str, type[Part]]:
    """Returns all parts by name: this directory's, installed entry points, loaded plugins."""
    modules = [
        importlib.import_module(f"{__name__}.{found.name}")
        for found in pkgutil.iter_modules(__path__)
        if found.name != "base"
    ]
    modules += [point.load() for point in importlib.metadata.entry_points(group="lengthgen.parts")]
    modules += [module for name, module in sys.modules.items() if name.startswith(_PLUGIN)]
    found: dict[str, type[Part]] = {}
    for module in modules:
        for name, part in _parts_of(module).items():
            if found.setdefault(name, part) is not part:
                raise UserError(
                    f"part {name} is defined twice, in {found[name].__module__} and in "
                    f"{module.__name__}; rename one of the classes"
                )
    return found


def load_plugins(paths: Sequence[Path]) -> None:
    """Imports python files with parts of the user's own, once each.

    Raises UserError for a path that is no file, does not import, or defines no Part.
    """
    for path in paths:
        if not path.is_file():
            raise UserError(f"plugins: {path} is not a file; give the path of a python file")
        name = _PLUGIN + hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        if name in sys.modules:
            continue
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise UserError(f"plugins: {path} is not a python file; its name must end in .py")
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise UserError(
                f"plugins: {path} does not import: {type(error).__name__}: {error}"
            ) from error
        if not _parts_of(module):
            raise UserError(f"plugins: {path} defines no subclass of lengthgen.schemes.Part")
        sys.modules[name] = module


def part_class(name: str, *, where: str) -> type[Part]:
    """Returns the Part of that name. Raises UserError with a suggestion if there is none."""
    known = registry()
    if name not in known:
        raise UserError(f"{where}.{name}: no such part; {suggestion(name, known)}")
    return known[name]


def build(
    parts: Mapping[str, Mapping[str, Any]],
    *,
    layers: Sequence[Sequence[str]] | None,
    shape: Shape,
    where: str = "scheme.parts",
) -> Scheme:
    """Builds a scheme from its parts' arguments.

    Raises UserError for an unknown part, a value that a part refuses, a layer that names a part
    the scheme lacks, or two owners of one hook in a layer.
    """
    built: dict[str, Part] = {}
    for name, arguments in parts.items():
        if hasattr(torch.nn.ModuleDict, name):
            raise UserError(f"{where}.{name}: a part cannot have this name; rename its class")
        try:
            built[name] = part_class(name, where=where)(shape, **arguments)
        except ValueError as error:
            raise UserError(f"{where}.{name}: {error}") from error
    for layer in layers or []:
        for name in layer:
            if name not in built:
                raise UserError(
                    f"scheme.layers: {name} is not a part of this scheme; {suggestion(name, built)}"
                )
    return Scheme(built, layers=layers, n_layers=shape.n_layers, where=where)


def build_meta(
    parts: Mapping[str, Mapping[str, Any]],
    *,
    layers: Sequence[Sequence[str]] | None,
    shape: Shape,
    where: str,
) -> Scheme:
    """Builds a scheme without storage: its checks run, its parameters have names and shapes."""
    with torch.device("meta"):
        return build(parts, layers=layers, shape=shape, where=where)


def _parts_of(module: ModuleType) -> dict[str, type[Part]]:
    return {
        re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower(): value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, Part)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    }
