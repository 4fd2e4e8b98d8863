"""The registry of parts, every Part in a file below this directory by its name in snake case.

`Design.with_parts` is the only reader of these names: what it returns holds classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from lengthgen.config.plugins import Plugin
from lengthgen.config.registry import (
    class_named,
    construct,
    described,
    digest_of,
    modules_of,
    registered,
)
from lengthgen.config.schema import AlignmentIds, Parts
from lengthgen.config.sections import arguments as typed_arguments
from lengthgen.errors import UserError, suggestion
from lengthgen.schemes.base import HOOKS, ModelDims, Part
from lengthgen.schemes.scheme import Scheme


@cache
def part_classes(plugins: tuple[Plugin, ...] = ()) -> dict[str, type[Part]]:
    """Returns all parts by name. Raises UserError for a plugin that fails and for two of a name."""
    return registered(modules_of("lengthgen.schemes", [str(Path(__file__).parent)]), Part, plugins)


@dataclass(frozen=True, kw_only=True)
class Design:
    """A scheme that can be built: its parts as classes with arguments, and where they act."""

    shape: ModelDims
    encoder_shape: ModelDims | None = None  # of an encoder-decoder model
    layers: Sequence[Sequence[str]] | None = None
    alignment_ids: AlignmentIds | None = None  # of the corpus
    plugins: tuple[Plugin, ...] = ()
    kinds: Mapping[str, type[Part]] = field(default_factory=dict[str, type[Part]])
    # Arguments in the types of the classes' signatures, with their defaults:
    parts: Parts = field(default_factory=Parts)
    where: str = "scheme.parts"  # the dotted key that messages name

    def with_parts(
        self, parts: Mapping[str, Mapping[str, Any]], *, where: str = "scheme.parts"
    ) -> "Design":
        """Returns the design with these parts. Raises UserError for names and arguments unknown."""
        known, kinds, held = part_classes(self.plugins), dict[str, type[Part]](), Parts()
        for name, arguments in parts.items():
            key = f"{where}.{name}"
            if hasattr(torch.nn.ModuleDict, name):
                raise UserError(f"{key}: a part cannot have this name; rename its class")
            kinds[name] = class_named(name, known, self.plugins, what="part", where=key)
            held[name] = typed_arguments(kinds[name], arguments, "shape", where=key)
        return replace(self, kinds=kinds, parts=held, where=where)

    @property
    def code(self) -> dict[str, str]:
        """A digest of the code of each part, by name."""
        return {name: digest_of(kind) for name, kind in self.kinds.items()}

    def build(self) -> Scheme:
        """Builds the scheme; for an encoder-decoder model, also that of its encoder.

        Raises UserError, below the dotted key, for what cannot be honoured.
        """
        with torch.random.fork_rng(devices=[]):  # parts draw initial values
            scheme = self._of(self.shape)
            if self.encoder_shape is not None:
                scheme.encoder = self._of(self.encoder_shape)
        for part in scheme.all:
            if part.reads_alignment:
                part.alignment_ids = self.alignment_ids
        return scheme

    def _of(self, shape: ModelDims) -> Scheme:
        built: dict[str, Part] = {}
        for name, kind in self.kinds.items():
            key = f"{self.where}.{name}"
            part = built[name] = construct(kind, self.parts[name], shape, where=key)
            if "shape" not in vars(part):
                error = TypeError("__init__ does not call super().__init__(shape)")
                raise UserError(f"{key}: {kind.__name__} raised {described(error, kind)}")
            if not part.needs_model and not any(map(part.overrides, HOOKS)):
                raise UserError(
                    f"{key}: its class {kind.__name__} overrides no hook, so that it would "
                    f"change nothing; the hooks are {', '.join(HOOKS)}"
                )
            if not shape.causal and (part.depends_on_length or not part.bidirectional):
                known = part_classes()
                fit = (n for n in known if known[n].bidirectional and not known[n].needs_rotation())
                raise UserError(
                    f"{key}: not defined in an encoder, whose queries see later keys, in rows of "
                    f"several lengths; choose parts of {', '.join(sorted(fit))}, with fixed "
                    "values, scheme=nope, or model.arch=decoder"
                )
        for name in (name for layer in self.layers or [] for name in layer):
            if name not in built:
                near = suggestion(name, built)
                raise UserError(f"scheme.layers: {name} is not a part of this scheme; {near}")
        return Scheme(built, layers=self.layers, n_layers=shape.n_layers, where=self.where)
