"""Selective RoPE: Movahedi et al. 2025, arXiv 2511.17388. Tokens say how far they turn.

Channel pair m of query i and key j are turned against each other by

  theta_m (phi_{j+1} + ... + phi_i)_m,  theta_m = base^(-2m/d),

where phi_t is linear in the layer's input: x_t with the channels of each head scaled to length 1,
through a matrix of low rank, then a causal convolution over the last few tokens of each channel.
RoPE is phi = 1. As in the authors' code (timurcarstensen/selective-rope, modules/rotary.py), its
options of a gate of phi, a bias and trained theta left out, as they are in its language models; all
weights are drawn from N(0, init_std^2), so that training begins almost without turns.

C channel pairs of all heads, N tokens of the convolution.
"""

import math

import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Part, Rotated
from lengthgen.schemes.content.short_conv import convolved
from lengthgen.schemes.parameters import Base, cast, normal, running_sum
from lengthgen.schemes.rotary.rope import Rope


class SelectiveRope(Part):
    """Rotates queries and keys by sums of angles that the tokens between them give.

    base: of theta; 500000 in the authors' code. rank: of the matrix, 32. kernel: tokens of the
    convolution, 4.
    """

    needs_whole_text = True

    def __init__(
        self, shape: ModelDims, *, base: Base, rank: PositiveInt, kernel: PositiveInt
    ) -> None:
        super().__init__(shape)
        if shape.d_model % shape.n_heads:
            raise ValueError(
                f"it cuts the stream's {shape.d_model} channels into {shape.n_heads} heads; "
                f"try model.d_model={shape.n_heads * shape.d_head}"
            )
        self.rope = Rope(shape, base=base, rotary_percentage=1.0, layout="half")
        n, n_pairs, std = shape.n_layers, shape.n_heads * shape.d_head // 2, shape.init_std
        self.down = normal(n, rank, shape.d_model, std=std)
        self.up = normal(n, n_pairs, rank, std=std)
        self.kernel = normal(n, n_pairs, kernel, std=std)

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        theta, rotate = self.turned(c), self.rope.rotate
        return Rotated(rotate(q_BHQK, theta[:, :, c.rows]), rotate(k_BHSK, theta))

    def turned(self, c: AttentionContext) -> Tensor:
        """Returns by how much each token is turned, [B, H, S, R] in c.dtype, from 0 to 2 pi."""
        down, up, kernel = cast(c, self.down, self.up, self.kernel)
        x_BSHK = c.x_BTD.to(c.dtype).unflatten(-1, (c.shape.n_heads, -1))
        phi_BSC = F.linear(F.linear(F.normalize(x_BSHK, dim=-1).flatten(2), down), up)
        phi_BCS = convolved(phi_BSC, kernel).mT
        total_BHSR = running_sum(phi_BCS).unflatten(1, (c.shape.n_heads, -1)).mT
        theta_R = self.rope.omega(c)
        return (theta_R * total_BHSR).remainder(2 * math.pi).to(c.dtype)
