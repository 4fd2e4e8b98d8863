"""Gated attention: Qiu et al. 2025, arXiv 2505.06708, the gate after attention ("G1").

The output of each head is multiplied by a gate of the query's token, before heads are mixed:

  o_i = sigmoid(W x_i) * sum_j w_ij v_j

x is the layer's normalised input; W has d rows per head (`elementwise`) or one (`headwise`). Both
are in the authors' code (qiuzh20/gated_attention, modeling_qwen3.py), which draws W as it draws the
projections of queries: here N(0, init_std^2), so that gates begin near a half.

G gates of a head.
"""

from typing import Literal

from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Part, weighted
from lengthgen.schemes.parameters import normal, of_layer


class GatedAttention(Part):
    """Multiplies the output of attention by gates of the query's token.

    gate: one for each of a head's channels, or one for the head.
    """

    def __init__(self, shape: ModelDims, *, gate: Literal["elementwise", "headwise"]) -> None:
        super().__init__(shape)
        n_gates = shape.d_head if gate == "elementwise" else 1
        size = shape.n_layers, shape.n_heads, n_gates, shape.d_model
        self.W = normal(*size, std=shape.init_std)

    def values(self, w_BHQS: Tensor, v_BHSK: Tensor, c: AttentionContext) -> Tensor:
        x_B1QD = c.x_BTD[:, None, c.rows].to(c.dtype)
        gate_BHQG = (x_B1QD @ of_layer(self.W, c).to(c.dtype).mT).sigmoid()
        return weighted(w_BHQS, v_BHSK, c) * gate_BHQG.to(v_BHSK.dtype)
