"""Positional schemes: lists of parts, each of which overrides hooks of the attention."""

from lengthgen.schemes.base import (
    HOOKS,
    NO_PARTS,
    AttentionContext,
    LayerHooks,
    ModelDims,
    Part,
    Rotated,
    logits,
    through_qk,
    weighted,
)
from lengthgen.schemes.bias.distance_bias import DistanceBias
from lengthgen.schemes.parameters import of_layer
from lengthgen.schemes.registry import build, registry, typed
from lengthgen.schemes.scheme import Scheme

__all__ = [
    "HOOKS",
    "NO_PARTS",
    "AttentionContext",
    "DistanceBias",
    "LayerHooks",
    "ModelDims",
    "Part",
    "Rotated",
    "Scheme",
    "build",
    "logits",
    "of_layer",
    "registry",
    "through_qk",
    "typed",
    "weighted",
]
