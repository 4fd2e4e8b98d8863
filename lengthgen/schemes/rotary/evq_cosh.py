"""EVQ-Cosh: RoPE with more of its pairs fast; github.com/misaya-yang/hybrid-rope, no arXiv id.

Pair m of K turns by base^(-phi(u)) per token, u = (m + 1/2) / K, with

  phi(u) = 1 - asinh((1 - u) sinh(tau)) / tau

At tau = 0, phi(u) = u: RoPE whose pairs stand half a step behind their usual places. The density of
phi is in proportion to cosh(tau (1 - phi)): the larger tau, the fewer slow pairs. As in
scripts/lib/rope/schedules.py of the authors, whose operating point is tau = d / sqrt(T). Left out:
tau as a trained parameter (learnable_evq.py).
"""

import math
from typing import Any

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims
from lengthgen.schemes.rotary.rope import Rope


class EvqCosh(Rope):
    """Rotates queries and keys, with more of the channel pairs fast.

    tau: null: rotated channels / sqrt(T). base: 500000 in the authors' code.
    """

    def __init__(self, shape: ModelDims, *, tau: NonNegativeFloat | None, **others: Any) -> None:
        super().__init__(shape, **others)
        self.tau = self.n_rotated / math.sqrt(shape.train_length) if tau is None else tau

    def omega(self, c: AttentionContext) -> Tensor:
        K, base = self.n_rotated // 2, self.bases[c.layer % len(self.bases)]
        behind = 1 - (torch.arange(K, device=c.q_pos.device, dtype=c.dtype) + 0.5) / K
        if self.tau:
            behind = (behind * math.sinh(self.tau)).asinh() / self.tau
        return base ** (behind - 1)
