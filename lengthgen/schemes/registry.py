"""The registry of parts: every Part in a file below this directory, by its name in snake case."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from lengthgen.config.registry import chosen, construct, described, modules_of, registered
from lengthgen.config.schema import Parts
from lengthgen.config.sections import arguments as typed_arguments
from lengthgen.errors import UserError, suggestion
from lengthgen.schemes.base import HOOKS, ModelDims, Part
from lengthgen.schemes.scheme import Scheme

WELL_KNOWN = ("rope", "alibi", "nope")  # drawn beside other schemes, for comparison


def registry(plugins: Sequence[str] = ()) -> dict[str, type[Part]]:
    """Returns all parts by name. Raises UserError for a plugin that fails and for two of a name."""
    return _registered(tuple(plugins))


@cache
def _registered(plugins: tuple[str, ...]) -> dict[str, type[Part]]:
    return registered(modules_of("lengthgen.schemes", [str(Path(__file__).parent)]), Part, plugins)


def build(
    parts: Mapping[str, Mapping[str, Any]],
    *,
    layers: Sequence[Sequence[str]] | None,
    shape: ModelDims,
    plugins: Sequence[str] = (),
    where: str = "scheme.parts",
) -> Scheme:
    """Builds a scheme from its parts' arguments. Raises UserError for what cannot be honoured."""
    known = registry(plugins)
    built: dict[str, Part] = {}
    for name, arguments in typed(parts, plugins=plugins, where=where).items():
        key = f"{where}.{name}"
        part = built[name] = construct(kind := known[name], arguments, where=key, shape=shape)
        if "shape" not in vars(part):
            error = TypeError("__init__ does not call super().__init__(shape)")
            raise UserError(f"{key}: {kind.__name__} raised {described(error, kind)}")
        if not part.needs_model and not any(map(part.overrides, HOOKS)):
            raise UserError(
                f"{key}: its class {type(part).__name__} overrides no hook, so that it would "
                f"change nothing; the hooks are {', '.join(HOOKS)}"
            )
        if not shape.causal and (part.depends_on_length or not part.bidirectional):
            defined = (n for n in known if known[n].bidirectional and not known[n].needs_rotation())
            raise UserError(
                f"{key}: not defined in an encoder, whose queries see later keys, in rows of "
                f"several lengths; choose parts of {', '.join(sorted(defined))}, with fixed "
                "values, scheme=nope, or model.arch=decoder"
            )
    for name in (name for layer in layers or [] for name in layer):
        if name not in built:
            near = suggestion(name, built)
            raise UserError(f"scheme.layers: {name} is not a part of this scheme; {near}")
    return Scheme(built, layers=layers, n_layers=shape.n_layers, where=where)


def typed(
    parts: Mapping[str, Mapping[str, Any]], *, plugins: Sequence[str], where: str = "scheme.parts"
) -> Parts:
    """Returns parts' arguments with types and defaults. Raises UserError for what does not fit."""
    known, held = registry(plugins), Parts()
    for name, arguments in parts.items():
        key = f"{where}.{name}"
        if hasattr(torch.nn.ModuleDict, name):
            raise UserError(f"{key}: a part cannot have this name; rename its class")
        kind = chosen(name, known, plugins, what="part", where=key)
        held[name] = typed_arguments(kind, arguments, "shape", where=key)
    return held
