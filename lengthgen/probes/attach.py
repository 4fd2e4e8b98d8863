"""Hooks of a probe's own, attached to a trained model next to those of its scheme."""

import copy
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from lengthgen.model.transformer import Transformer
from lengthgen.schemes import AttentionContext, LayerHooks, Part


@contextmanager
def attached(model: Transformer, **hooks: Callable[..., Any]) -> Generator[None]:
    """Lets functions act as hooks of a part after those of the model, in all layers.

    `positions` and `weights` take the place of the scheme's own, which they have to call. The
    scheme itself, and so the trained model, stays as it is.
    """
    scheme = model.scheme
    named = {name: staticmethod(hook) for name, hook in hooks.items()}
    part: Part = type("Attached", (Part,), named)(model.shape)
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


def seen_weights(
    model: Transformer,
    look: Callable[[Tensor, AttentionContext], Tensor | None],
    call: Callable[[], object],
) -> list[list[Tensor]]:
    """Returns what `look` makes of the attention weights in a call, by layer and block.

    Of a text that is read in segments they are of the last one.
    """
    owners = [layer.weights or Part(model.shape) for layer in model.scheme.layers]
    seen: list[list[Tensor]] = [[] for _ in owners]

    def embed(x_BTD: Tensor, c: AttentionContext) -> Tensor:
        for blocks in seen:
            blocks.clear()
        return x_BTD

    def weights(s_BHQS: Tensor, c: AttentionContext) -> Tensor:
        w_BHQS = owners[c.layer].weights(s_BHQS, c)
        x = look(w_BHQS, c)
        if x is not None:
            seen[c.layer].append(x)
        return w_BHQS

    with attached(model, embed=embed, weights=weights):
        call()
    return seen
