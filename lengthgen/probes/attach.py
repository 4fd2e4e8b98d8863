"""A part of a probe's own, attached to a trained model next to those of its scheme."""

import copy
from collections.abc import Generator
from contextlib import contextmanager

from lengthgen.model.transformer import Transformer
from lengthgen.schemes import LayerHooks, Part


@contextmanager
def attach_module(model: Transformer, part: Part) -> Generator[None]:
    """Lets a part act after those of the model, in all layers, while the block lasts.

    Its `positions` and `weights` take the place of the scheme's own, which it has to call. The
    scheme itself, and so the trained model, stays as it is.
    """
    scheme = model.scheme
    joined = copy.copy(scheme)
    joined.all = (*scheme.all, part)
    joined.layers = [_joined(layer, part) for layer in scheme.layers]
    model.scheme = joined
    try:
        yield
    finally:
        model.scheme = scheme


def _joined(layer: LayerHooks, part: Part) -> LayerHooks:
    moves, adds, weighs = map(part.overrides, ("positions", "bias", "weights"))
    return layer._replace(
        qk=(*layer.qk, part) if part.overrides("qk") else layer.qk,
        bias=(*layer.bias, part) if adds else layer.bias,
        weights=part if weighs else layer.weights,
        contiguous=layer.contiguous and not moves,
        toeplitz=layer.toeplitz and not (moves or adds or weighs),
    )
