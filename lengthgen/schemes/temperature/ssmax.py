"""SSMax, scalable softmax: Nakanishi 2025, arXiv 2501.19399.

Softmax over n keys of s_h ln(n) z instead of z, with a trained s per head and layer: a factor of
the queries. n is the number of keys up to the query. The only score of the first query is
multiplied by ln 1 = 0; its weight is 1 as always.

Initial s: 1 in the release of BAM (models/nope_ssmax.py), which is also where biases enter the
product (`ssmax_prior`): here they do not.
"""

import torch
from torch import Tensor, nn

from lengthgen.schemes.base import AttentionContext, ModelDims, Part, Rotated
from lengthgen.schemes.parameters import of_layer


class Ssmax(Part):
    """Multiplies queries by a trained s_h and the logarithm of the number of keys.

    init: s of all heads before training. share_layers: one s per head for all layers.
    """

    needs_whole_text = True

    def __init__(self, shape: ModelDims, *, init: float, share_layers: bool) -> None:
        super().__init__(shape)
        layers = 1 if share_layers else shape.n_layers
        self.s = nn.Parameter(init * torch.ones(layers, shape.n_heads))

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        return Rotated(q_BHQK * self.factor(c)[..., None], k_BHSK)

    def factor(self, c: AttentionContext) -> Tensor:
        """Returns the factor of each head and query, [H, Q] in c.dtype."""
        s_H = of_layer(self.s, c).to(c.dtype)
        return s_H[:, None] * c.n_visible().to(c.dtype).log()
