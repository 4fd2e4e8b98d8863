"""CARoPE, context-aware RoPE: Veisi et al. 2025, arXiv 2507.23083. Tokens give frequencies.

RoPE turns pair m by theta^m per token, theta = base^(-2/d). Here each token and head has a theta of
its own, and pair m of a token at place i has turned by

  f(x_1)^m + ... + f(x_i)^m,  f(x) = 1 / (softplus(w . x + b) + 1) in (0, 1)

Section 2 of the paper; no code is released. What it leaves open: x is the layer's normalised input
here, where it says the token's embedding; pairs are numbered from 0, as RoPE's; and b is added, so
that with w = 0 training begins as RoPE, as the paper says it does.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lengthgen.schemes.base import AttentionContext, ModelDims, Part, Rotated
from lengthgen.schemes.parameters import Base, cast, running_sum
from lengthgen.schemes.rotary.rope import Rope


class Carope(Part):
    """Rotates queries and keys by sums of powers of a frequency that each token gives a head.

    base: of theta before training, 10000.
    """

    needs_whole_text = True

    def __init__(self, shape: ModelDims, *, base: Base) -> None:
        super().__init__(shape)
        self.rope = Rope(shape, base=base, rotary_percentage=1.0, layout="half")
        n, H = shape.n_layers, shape.n_heads
        slower = base ** (2 / shape.d_head) - 1  # softplus(b), by which f is theta at first
        self.w = nn.Parameter(torch.zeros(n, H, shape.d_model))
        self.b = nn.Parameter(torch.full((n, H), slower + math.log(-math.expm1(-slower))))

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        theta, rotate = self.turned(c), self.rope.rotate
        return Rotated(rotate(q_BHQK, theta[:, :, c.rows]), rotate(k_BHSK, theta))

    def turned(self, c: AttentionContext) -> Tensor:
        """Returns by how much each token is turned, [B, H, S, R] in c.dtype, from 0 to 2 pi."""
        w, b = cast(c, self.w, self.b)
        f_BHS = 1 / (F.softplus(F.linear(c.x_BTD.to(c.dtype), w, b)) + 1).mT
        m_R1 = torch.arange(c.shape.d_head // 2, device=f_BHS.device, dtype=c.dtype)[:, None]
        total_BHRS = running_sum(f_BHS[:, :, None] ** m_R1)
        return total_BHRS.remainder(2 * math.pi).mT.to(c.dtype)
