"""LongRoPE2's first guess: Shang et al. 2025, arXiv 2502.20082, equation 10 and algorithms 1 and 2.

The paper's hypothesis: training within T teaches too little of the slow pairs' turns, and so the
angles of all pairs from a critical one d on, which comes before the first pair whose turn exceeds
T, are to be divided by s = L/T or more. Angle m is divided here by

  lambda_m = (excess s)^(m/d) for m < d        lambda_m = excess s for m >= d

which is NTK scaling with the base that lambda_d asks for, and one lambda beyond. d is the first
pair with at most critical_turns turns within T. For 1 that is equation 7, the theoretical critical
dimension; the paper looks for d between it and the first pair with at most 10 turns, and finds 25
for Phi3-mini and 30 for LLaMA3-8B: for both the first pair with at most 3. Up to T RoPE stays as
trained.

Deviation: the paper goes on from here. It searches d and every lambda_m with m >= d, from s to 2 s
and not falling, for the least perplexity of needles in long books, and then trains on short and
long texts. There is neither here; lambdas that were searched elsewhere are for `longrope`. The
paper names no scale of the logits. It is LongRoPE's here, as in microsoft/Phi-4-mini-instruct,
whose factors have this form and whose rope_type is `longrope`.
"""

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Rotated
from lengthgen.schemes.parameters import AtLeastOne
from lengthgen.schemes.rotary.longrope import attention_factor, refuse_without_mscale
from lengthgen.schemes.rotary.rope_scaling import RopeScaling, sharpened


class Longrope2(RopeScaling):
    """Divides slow angles by s, faster ones by a power of it; multiplies logits by 1 + ln s / ln T.

    factor: s; null: L/T of each call, at least 1. critical_turns: turns within T of the fastest
    pair that is divided by all of it; 1 to 10 in the paper. excess: what s is multiplied by in the
    angles; 1 to 2 in the paper.
    """

    def __init__(
        self,
        shape: ModelDims,
        *,
        factor: AtLeastOne | None,
        critical_turns: PositiveFloat,
        excess: AtLeastOne,
        original_max_position_embeddings: PositiveInt | None = None,
    ) -> None:
        super().__init__(
            shape,
            factor=factor,
            original_max_position_embeddings=original_max_position_embeddings,
        )
        refuse_without_mscale(self.original_length)
        self.critical_turns, self.excess = critical_turns, excess

    def frequencies(self, omega_R: Tensor, c: AttentionContext) -> Tensor:
        s = self.stretch(c)
        if s == 1:
            return omega_R
        fast_R = self.turns(omega_R) > self.critical_turns
        m = torch.arange(len(omega_R), device=omega_R.device, dtype=omega_R.dtype)
        share_R = torch.where(fast_R, m / fast_R.sum().clamp(min=1), 1)
        return omega_R * (self.excess * s) ** -share_R

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        return sharpened(attention_factor(self.stretch(c), self.original_length), q_BHQK, k_BHSK)
