"""Linear attention with RoPE: Su et al. 2021, arXiv 2104.09864, equation 19.

  o_i = sum_j (R_i f(q_i)) . (R_j f(k_j)) v_j / sum_j f(q_i) . f(k_j),  f(x) = elu(x) + 1,

over the keys up to the query (Katharopoulos et al. 2020, arXiv 2006.16236, without R). The sum
below is not rotated, so that it stays positive: weights may be negative, and sum to one where
nothing is rotated. Products are not divided by sqrt(d), which would cancel.

All products are formed, O(S^2) for S tokens. Keys that other parts hide count in the sum below.
"""

import math

import torch
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Part
from lengthgen.schemes.parameters import Base
from lengthgen.schemes.rotary.rope import Rope, angles


class LinearAttention(Part):
    """Replaces softmax by products of positive features, rotated above the fraction bar alone.

    base: of the rotation, 10000; null: no rotation.
    """

    reads_qk = True
    takes_bias = False
    takes_relative_keys = False
    needs_whole_text = True

    def __init__(self, shape: ModelDims, *, base: Base | None) -> None:
        super().__init__(shape)
        self.rope = (
            None if base is None else Rope(shape, base=base, rotary_percentage=1.0, layout="half")
        )

    def scores(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Tensor:
        wide = (x.to(c.dtype) for x in (q_BHQK, k_BHSK))
        # elu(x) + 1, which stays positive where adding 1 to elu(x) rounds to 0
        q, k = (torch.where(x > 0, x + 1, x.clamp(max=0).exp()) for x in wide)
        total_BHQ1 = (q @ k.mT).tril(c.rows.start).sum(-1, keepdim=True)
        if self.rope is not None:
            omega_R = self.rope.omega(c)
            q = self.rope.rotate(q, angles(c.q_pos, omega_R))
            k = self.rope.rotate(k, angles(c.k_pos, omega_R))
        return q @ k.mT / total_BHQ1

    def weights(self, s_BHQS: Tensor, c: AttentionContext) -> Tensor:
        return s_BHQS.masked_fill(s_BHQS == -math.inf, 0)
