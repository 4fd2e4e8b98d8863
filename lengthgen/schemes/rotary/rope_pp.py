"""RoPE++: Liu et al. 2025, arXiv 2512.07525. Heads of the imaginary part of RoPE's product.

With channel pairs as complex numbers, RoPE's logit is the real part of sum_m q_m conj(k_m)
exp(i (p_q - p_k) omega_m). Here a second head has the imaginary part of the same sum, from the same
query, key and value: q turned by -pi/2. With a query of its own it would be RoPE once more.

The form with equal heads (RoPE++_EH; OpenMOSS/rope_pp, modeling_llama_rope_pp.py, imag1): half of
the heads are real, each with queries, keys and values that an imaginary one shares. All schemes
here have projections of one size: those of the other half take no part, so that the stored
parameters are RoPE's, and a quarter fewer of attention's are in use. Imaginary heads stand behind
all real ones, there each next to its own; the form that doubles heads (EC) is left out.
"""

import math
from typing import Any

import torch
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Rotated
from lengthgen.schemes.rotary.rope import Rope, angles


class RopePp(Rope):
    """Rotates queries and keys; the second half of the heads are imaginary ones of the first."""

    def __init__(self, shape: ModelDims, **others: Any) -> None:
        super().__init__(shape, **others)
        if shape.n_kv_heads % 2:
            raise ValueError(
                f"{shape.n_kv_heads} heads of keys do not form pairs; an even number is needed"
            )

    def projections(self, qkv_BTE: Tensor, c: AttentionContext) -> Tensor:
        halves = [x.chunk(2, dim=-1)[0] for x in qkv_BTE.split(self.shape.qkv_widths, dim=-1)]
        return torch.cat([half for half in halves for _ in range(2)], dim=-1)

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        omega_R = c.frequencies(self.omega(c))
        imaginary_H = torch.arange(self.shape.n_heads, device=omega_R.device) * 2
        imaginary_H = (imaginary_H >= self.shape.n_heads).to(omega_R.dtype)
        theta = angles(c.q_pos, omega_R) - math.pi / 2 * imaginary_H[:, None, None]
        return Rotated(self.rotate(q_BHQK, theta), self.rotate(k_BHSK, angles(c.k_pos, omega_R)))
