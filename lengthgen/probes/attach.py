"""Parts of a probe's own, attached to a trained model next to those of its scheme."""

import copy
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager

from torch import Tensor

from lengthgen.model.transformer import Transformer
from lengthgen.schemes import AttentionContext, LayerHooks, ModelDims, Part, Scheme


class WeightsPart(Part):
    """A part that looks at every layer's attention weights, which are the scheme's own.

    `found` holds what it keeps of each layer; where a text is read in segments, of the last one.
    """

    def __init__(self, shape: ModelDims, scheme: Scheme) -> None:
        super().__init__(shape)
        self.owners = [layer.weights for layer in scheme.layers]
        self.found: dict[int, list[Tensor]] = defaultdict(list)

    def embed(self, x_BTD: Tensor, c: AttentionContext) -> Tensor:
        self.found.clear()
        return x_BTD

    def weights(self, s_BHQS: Tensor, c: AttentionContext) -> Tensor:
        owner = self.owners[c.layer]
        w_BHQS = owner.weights(s_BHQS, c) if owner else super().weights(s_BHQS, c)
        self.look(w_BHQS, c)
        return w_BHQS

    def look(self, w_BHQS: Tensor, c: AttentionContext) -> None:
        """Adds what is kept of the weights of a layer's queries to `found`."""
        raise NotImplementedError


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
