"""Transformer-XL's relative positions: Dai et al. 2019, arXiv 1901.02860, section 3.3.

The logit of query i and key j is ((q_i + u).k_j + (q_i + v).(W_R R_{i-j})) / sqrt(d). R_n holds
sin(n w_m) in its first half and cos(n w_m) in its second, w_m = 10000^(-2m/D). u and v are shared
by all layers and W_R is one matrix per layer, as in the authors' release (kimiyoung/transformer-xl,
pytorch/mem_transformer.py); all begin at N(0, init_std^2).

It is written here as (q_i + u).(k_j + W_R R_{i-j}) + (v - u).(W_R R_{i-j}): queries with u, keys
with a row by distance, and a bias over distances. A part that scales queries, a temperature, leaves
the bias as it is. clamp_len, which the release applies to distances at evaluation, is left out.
The segments that give the paper its name are the part `recurrence`.

H heads, N distances, K head width, D width, B batch, Q queries, S keys.
"""

import torch
from torch import Tensor, nn

from lengthgen.schemes.base import Ctx, Part, Rotated, Shape, of_layer
from lengthgen.schemes.distances import at_distances
from lengthgen.schemes.rope import angles, powers


class TransformerXl(Part):
    """Adds u to queries, a projected sinusoid of the distance to keys, and what v adds to both.

    base: 10000 in the paper.
    """

    distance_only = True

    def __init__(self, shape: Shape, *, base: float) -> None:
        super().__init__(shape)
        if base <= 1:
            raise ValueError(f"base={base} must be above 1")
        if shape.d_model % 2:
            raise ValueError(f"model.d_model={shape.d_model} must be even")
        self.base = base
        H, K, D = shape.n_heads, shape.d_head, shape.d_model
        self.u = nn.Parameter(torch.empty(H, 1, K))
        self.v = nn.Parameter(torch.empty(H, 1, K))
        self.W_R = nn.Parameter(torch.empty(shape.n_layers, H, K, D))
        for parameter in (self.u, self.v, self.W_R):
            nn.init.normal_(parameter, std=shape.init_std)

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: Ctx) -> Rotated:
        return Rotated(q_BHQK + self.u.to(q_BHQK.dtype), k_BHSK)

    def relative_keys(self, c: Ctx) -> Tensor:
        """Returns W_R R at every distance of the call, [H, N, K]."""
        farthest = c.k_pos.shape[-1] - 1 if c.acting.numbered else int(c.steps().max())
        distance_N = torch.arange(farthest + 1, device=c.k_pos.device)
        theta_NM = angles(distance_N, powers(self.base, self.shape.d_model, c))
        R_ND = torch.cat([theta_NM.sin(), theta_NM.cos()], dim=-1)
        return R_ND @ of_layer(self.W_R, c).to(c.dtype).transpose(-1, -2)

    def bias(self, c: Ctx) -> Tensor:
        rows_HNK = self.relative_keys(c) if c.keys_HNK is None else c.keys_HNK
        more_HK1 = (self.v - self.u).transpose(-1, -2).to(c.dtype) * self.shape.d_head**-0.5
        table_HN = (rows_HNK.to(c.dtype) @ more_HK1)[..., 0]
        return at_distances(table_HN, c)
