"""RePo, context re-positioning: Li et al. 2025, arXiv 2512.14391. A network gives positions.

In place of its index i, a token has a real position in each head of each layer, by which RoPE turns
queries and keys:

  z = W (silu(W_g x) * (W_c x))

with D/8 hidden units, x the layer's input. The first layers (5 of 16) keep RoPE's positions. As in
the authors' code (SakanaAI/repo, modeling_olmo2.py, `swigluex_multihead`); there x has no norm, as
OLMo 2 has none before attention. Deviation: they begin with a model trained with RoPE, here
matrices are drawn from N(0, init_std^2) and positions begin near 0.

M hidden units.
"""

from typing import Annotated

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Part, Rotated
from lengthgen.schemes.parameters import Base, normal
from lengthgen.schemes.rotary.rope import Rope


class Repo(Part):
    """Rotates queries and keys by positions that a network reads from each token.

    base: 500000 in the authors' code. start: share of the layers, the first ones, that have RoPE;
    5/16 there.
    """

    def __init__(
        self, shape: ModelDims, *, base: Base, start: Annotated[float, Field(ge=0, lt=1)]
    ) -> None:
        super().__init__(shape)
        self.rope = Rope(shape, base=base, rotary_percentage=1.0, layout="half")
        self.first = int(start * shape.n_layers)
        n, M, std = shape.n_layers - self.first, max(1, shape.d_model // 8), shape.init_std
        self.gate = normal(n, M, shape.d_model, std=std)
        self.content = normal(n, M, shape.d_model, std=std)
        self.final = normal(n, shape.n_heads, M, std=std)

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        omega_R, rotate = self.rope.omega(c), self.rope.rotate
        if c.layer < self.first:
            return self.rope.qk(q_BHQK, k_BHSK, c)
        theta_BHSR = self.places(c)[..., None] * omega_R
        return Rotated(rotate(q_BHQK, theta_BHSR[:, :, c.rows]), rotate(k_BHSK, theta_BHSR))

    def places(self, c: AttentionContext) -> Tensor:
        """Returns the tokens' positions in this layer, [B, H, S] in c.dtype."""
        i, x_BSD = c.layer - self.first, c.x_BTD.to(c.dtype)
        gate, content, final = (p[i].to(c.dtype) for p in (self.gate, self.content, self.final))
        return F.linear(F.silu(F.linear(x_BSD, gate)) * F.linear(x_BSD, content), final).mT
