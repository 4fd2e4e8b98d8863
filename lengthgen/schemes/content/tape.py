"""TAPE, contextualized equivariant positional encoding: Zhu et al. 2025, arXiv 2501.00712.

A token's position is a point z_hm of the plane for every head h and channel pair m, by which
queries and keys are multiplied as complex numbers: the logit of query i and key j depends on
z_i conj(z_j). Before the first layer z is RoPE's, exp(i p omega_m), in all heads. Each layer moves
it by its own attention weights w_ij and by what its network f adds to the token's stream:

  z'_i = z_i + a_h sum_j w_ij z_j
  z''_i = z'_i + W diag(silu(G f_i)) U z'_i        U, W mix heads, alike in all pairs

so that turning all z by an angle of their pair turns what comes of them too (equivariance), and no
logit depends on where a text begins. As in the authors' code (VITA-Group/TAPE,
models/llama/adape.py): U and a begin at 0, so that the model begins as RoPE, G and W are drawn from
N(0, init_std^2), there are 4 hidden units per head, and pairs are those of halves.

Deviations from that code:

- The last layer moves nothing, since nothing reads what it would move; its parameters are left out.
- a_h is one number. There it is the sum of a row of a matrix over heads, the same function, whose
  steps under Adam are as many times as large as there are heads.
- No random offset is added to the positions in training: by equivariance it changes nothing.
- z is in fp32; means of z are in the dtype of the values, which they are computed along with.

M channel pairs, F hidden units, E = 2 H M numbers: the real parts of a head, then its imaginary
parts.
"""

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from lengthgen.schemes.base import AttentionContext, ModelDims, Rotated
from lengthgen.schemes.content.layer_state import LayerState, StateContext
from lengthgen.schemes.parameters import Base, cast, head_width, normal
from lengthgen.schemes.rotary.rope import powers, times


class Tape(LayerState):
    """Multiplies queries and keys by positions that every layer moves.

    base: of RoPE's angles, 10000. hidden_per_head: hidden units of the map of positions over heads,
    4 per head.
    """

    def __init__(self, shape: ModelDims, *, base: Base, hidden_per_head: PositiveInt) -> None:
        super().__init__(shape)
        n, H, D, std = shape.n_layers - 1, shape.n_heads, shape.d_model, shape.init_std
        if shape.d_head % 2:
            wider = head_width(shape, shape.d_head + 1)
            raise ValueError(f"head width of {shape.d_head} must be even; try {wider}")
        if n < 1:
            raise ValueError("one layer moves no positions: set model.n_layers=2, or scheme=rope")
        self.base, n_hidden = base, hidden_per_head * H
        self.a = nn.Parameter(torch.zeros(n, H))
        self.U = nn.Parameter(torch.zeros(n, n_hidden, H))
        self.G = normal(n, n_hidden, D, std=std)
        self.W = normal(n, H, n_hidden, std=std)

    def initial_state(self, c: AttentionContext) -> Tensor:
        theta = c.pos.to(c.dtype)[..., None] * powers(self.base, c.shape.d_head, c)
        z = torch.cat([theta.cos(), theta.sin()], dim=-1)
        return z.expand(len(c.tokens_BT), -1, -1).repeat(1, 1, c.shape.n_heads)

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        assert isinstance(c, StateContext), "a StateTransformer gives its parts a StateContext"
        z_BHSK = self.of_heads(c.state_BSE).transpose(1, 2)
        return Rotated(moved(q_BHQK, z_BHSK[:, :, c.rows]), moved(k_BHSK, z_BHSK))

    def next_state(self, mean_BQE: Tensor, added_BQD: Tensor, c: StateContext) -> Tensor:
        a, U, G, W = cast(c, self.a, self.U, self.G, self.W)
        z_BQHK = self.of_heads(c.state_BSE[:, c.rows])
        z_BQHK = z_BQHK + a[:, None] * self.of_heads(mean_BQE)
        gates_BQF = F.silu(added_BQD.to(c.dtype) @ G.mT)
        mixed_BQHH = (gates_BQF[..., None, :] * W) @ U  # smaller than the hidden units of all pairs
        return (z_BQHK + mixed_BQHH @ z_BQHK).flatten(2)

    def of_heads(self, state_BTE: Tensor) -> Tensor:
        """Returns the state of each head, [B, T, H, K]."""
        return state_BTE.unflatten(-1, (self.shape.n_heads, -1))


def moved(x_BHTK: Tensor, z_BHTK: Tensor) -> Tensor:
    """Returns x times its positions, in x's dtype."""
    return times(x_BHTK.to(z_BHTK.dtype), *z_BHTK.chunk(2, dim=-1)).to(x_BHTK.dtype)
