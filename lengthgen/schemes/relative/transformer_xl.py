"""Transformer-XL's relative positions: Dai et al. 2019, arXiv 1901.02860, section 3.3.

The logit of query i and key j is ((q_i + u).k_j + (q_i + v).(W_R R_{i-j})) / sqrt(d). R_n holds
sin(n w_m) in its first half and cos(n w_m) in its second, w_m = 10000^(-2m/D). u and v are shared
by all layers and W_R is one matrix per layer, as in the authors' release (kimiyoung/transformer-xl,
pytorch/mem_transformer.py); all begin at N(0, init_std^2).

It is written here with q_i + u as the queries: they meet keys as they are, and with v - u added the
rows W_R R_{i-j}. clamp_len, which the release applies to distances at evaluation, is left out. A
temperature multiplies q_i + u, not v - u. For the paper's segments see `recurrence`.
"""

import torch
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Part, Rotated
from lengthgen.schemes.parameters import Base, normal, of_layer
from lengthgen.schemes.rotary.rope import angles, powers


class TransformerXl(Part):
    """Adds u to queries where they meet keys, and v where they meet projected distances.

    base: 10000 in the paper.
    """

    reads_qk = True

    def __init__(self, shape: ModelDims, *, base: Base) -> None:
        super().__init__(shape)
        if shape.d_model % 2:
            raise ValueError(f"model.d_model={shape.d_model} must be even")
        self.base = base
        H, K, std = shape.n_heads, shape.d_head, shape.init_std
        self.u = normal(H, 1, K, std=std)
        self.v = normal(H, 1, K, std=std)
        self.W_R = normal(shape.n_layers, H, K, shape.d_model, std=std)

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        return Rotated(q_BHQK + self.u.to(q_BHQK.dtype), k_BHSK)

    def relative_keys(self, c: AttentionContext) -> Tensor:
        farthest = c.k_pos.shape[-1] - 1 if c.hooks.contiguous else int(c.exact_distance().max())
        distance_N = torch.arange(farthest + 1, device=c.k_pos.device)
        theta_NM = angles(distance_N, powers(self.base, self.shape.d_model, c))
        R_ND = torch.cat([theta_NM.sin(), theta_NM.cos()], dim=-1)
        return R_ND @ of_layer(self.W_R, c).to(c.dtype).transpose(-1, -2)

    def relative_queries(self, c: AttentionContext) -> Tensor:
        return self.v - self.u
