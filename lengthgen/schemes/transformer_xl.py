"""Transformer-XL's relative positions: Dai et al. 2019, arXiv 1901.02860, section 3.3.

The logit of query i and key j is ((q_i + u).k_j + (q_i + v).(W_R R_{i-j})) / sqrt(d). R_n holds
sin(n w_m) in its first half and cos(n w_m) in its second, w_m = 10000^(-2m/D). u and v are shared
by all layers and W_R is one matrix per layer, as in the authors' release (kimiyoung/transformer-xl,
pytorch/mem_transformer.py); all begin at N(0, init_std^2).

Since R is sinusoidal, the second term is a dot product of D more channels. With [A, B] =
W_R^T (q_i + v), A the sine half, it is the sum over m of

  (A_m sin(i w_m) + B_m cos(i w_m)) cos(j w_m) + (B_m sin(i w_m) - A_m cos(i w_m)) sin(j w_m),

so that plain attention with d + D channels computes the logits exactly. clamp_len, which the
release applies to distances at evaluation, breaks this identity and is left out. The segments that
give the paper its name are the part `recurrence`.

B batch, H heads, T tokens, K head width, D width, M = D/2 frequencies.
"""

import torch
from torch import Tensor, nn

from lengthgen.schemes.base import Ctx, Part, Rotated, Shape, of_layer
from lengthgen.schemes.rope import angles, powers


class TransformerXl(Part):
    """Widens queries and keys by the D channels of the position term.

    base: 10000 in the paper.
    """

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
        omega_M = powers(self.base, self.shape.d_model, c)
        theta_QM, theta_SM = angles(c.q_pos, omega_M), angles(c.k_pos, omega_M)
        cos_QM, sin_QM = theta_QM.cos(), theta_QM.sin()
        q = q_BHQK.to(c.dtype)
        A_BHQM, B_BHQM = ((q + self.v) @ of_layer(self.W_R, c)).chunk(2, dim=-1)
        on_cos, on_sin = A_BHQM * sin_QM + B_BHQM * cos_QM, B_BHQM * sin_QM - A_BHQM * cos_QM
        waves = torch.cat([theta_SM.cos(), theta_SM.sin()], dim=-1).to(k_BHSK.dtype)
        return Rotated(
            torch.cat([q + self.u, on_cos, on_sin], dim=-1),
            torch.cat([k_BHSK, waves.expand(*k_BHSK.shape[:3], -1)], dim=-1),
        )
