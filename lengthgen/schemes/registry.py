"""The registry of parts: every Part in a file below this directory, by its name in snake case."""

import importlib.metadata
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from lengthgen.config.registry import construct, modules_of, registered
from lengthgen.config.schema import Parts
from lengthgen.config.sections import arguments as typed_arguments
from lengthgen.errors import UserError, suggestion
from lengthgen.schemes.base import HOOKS, ModelDims, Part
from lengthgen.schemes.scheme import Scheme

PATH = [str(Path(__file__).parent)]
WELL_KNOWN = ("rope", "alibi", "nope")  # drawn beside other schemes, for comparison


def registry(plugins: Sequence[str] = ()) -> dict[str, type[Part]]:
    """Returns all parts by name: those below this directory, installed entry points', the plugins'.

    Raises UserError for a plugin that fails, and for two parts of one name.
    """
    return _registered(tuple(plugins))


@cache
def _registered(plugins: tuple[str, ...]) -> dict[str, type[Part]]:
    entry_points = importlib.metadata.entry_points(group="lengthgen.parts")
    installed = [*modules_of("lengthgen.schemes", PATH), *(point.load() for point in entry_points)]
    return registered(installed, Part, plugins)


def build(
    parts: Mapping[str, Mapping[str, Any]],
    *,
    layers: Sequence[Sequence[str]] | None,
    shape: ModelDims,
    plugins: Sequence[str] = (),
    where: str = "scheme.parts",
) -> Scheme:
    """Builds a scheme from its parts' arguments.

    Raises UserError for an unknown part, arguments that do not fit its signature, a constructor
    that raises, a part that does nothing, a layer that names a part the scheme lacks, or two owners
    of one hook in a layer.
    """
    known = registry(plugins)
    built: dict[str, Part] = {}
    for name, arguments in typed(parts, plugins=plugins, where=where).items():
        key = f"{where}.{name}"
        part = built[name] = construct(known[name], arguments, shape, where=key)
        if not part.needs_model and not any(map(part.overrides, HOOKS)):
            raise UserError(
                f"{key}: its class {type(part).__name__} overrides no hook, so that it would "
                f"change nothing; the hooks are {', '.join(HOOKS)}"
            )
        if not shape.causal:
            _refuse_of_encoder(key, part, known)
    for name in (name for layer in layers or [] for name in layer):
        if name not in built:
            raise UserError(
                f"scheme.layers: {name} is not a part of this scheme; {suggestion(name, built)}"
            )
    return Scheme(built, layers=layers, n_layers=shape.n_layers, where=where)


def typed(
    parts: Mapping[str, Mapping[str, Any]], *, plugins: Sequence[str], where: str = "scheme.parts"
) -> Parts:
    """Returns the arguments of parts in the types of their signatures, with their defaults.

    Raises UserError for an unknown part, and arguments that do not fit.
    """
    known, held = registry(plugins), Parts()
    for name, arguments in parts.items():
        key = f"{where}.{name}"
        if hasattr(torch.nn.ModuleDict, name):
            raise UserError(f"{key}: a part cannot have this name; rename its class")
        if name not in known:
            every = f"known: {', '.join(sorted(known))}"
            raise UserError(f"{key}: no such part; {suggestion(name, known, otherwise=every)}")
        held[name] = typed_arguments(known[name], arguments, where=key)
    return held


def _refuse_of_encoder(key: str, part: Part, known: Mapping[str, type[Part]]) -> None:
    """Raises UserError for a part that an encoder cannot have."""
    if not part.bidirectional:
        defined = ", ".join(sorted(name for name, kind in known.items() if kind.bidirectional))
        raise UserError(
            f"{key}: not defined for keys after the query, which an encoder has; choose a scheme "
            f"of {defined}, scheme=nope, or model.arch=decoder"
        )
    if part.depends_on_length:
        raise UserError(
            f"{key}: its outputs depend on the length of the call, and an encoder's call has rows "
            "of several lengths; give it a fixed value, drop it, or use model.arch=decoder"
        )
