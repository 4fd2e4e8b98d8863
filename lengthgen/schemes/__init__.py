"""Positional schemes: lists of parts, each of which overrides hooks of the attention."""

from lengthgen.schemes.base import (
    AttentionContext,
    LayerHooks,
    ModelDims,
    Part,
    Rotated,
    through_qk,
)
from lengthgen.schemes.logits import logits, weighted
from lengthgen.schemes.parameters import of_layer
from lengthgen.schemes.registry import HOOKS, build, build_meta, registry
from lengthgen.schemes.scheme import Scheme

Ctx, Layer, Shape = AttentionContext, LayerHooks, ModelDims  # their former names, for old plugins

__all__ = [
    "HOOKS",
    "AttentionContext",
    "Ctx",
    "Layer",
    "LayerHooks",
    "ModelDims",
    "Part",
    "Rotated",
    "Scheme",
    "Shape",
    "build",
    "build_meta",
    "logits",
    "of_layer",
    "registry",
    "through_qk",
    "weighted",
]
