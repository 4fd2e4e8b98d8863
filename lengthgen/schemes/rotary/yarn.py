"""YaRN: Peng et al. 2023, arXiv 2309.00071. Slow pairs are interpolated, and the logits scaled.

Angle m becomes omega_m (1 - ramp + ramp / s), ramp = (m - low) / (high - low) in [0, 1]: pairs that
make more than beta_fast turns within T keep their angle, those that make fewer than beta_slow are
divided by s. low and high are the pairs with beta_fast and beta_slow turns, rounded outwards. That
is the released code (jquesnelle/yarn, LlamaYaRNScaledRotaryEmbedding.py) and HF transformers; the
paper's ramp is linear in the number of turns instead. The number of a pair with n turns,
r ln(T / (2 pi n)) / (2 ln base), is read off the first two angles, whatever base made them.

Attention temperature: cos and sin times mscale = 0.1 ln s + 1, the logits times mscale^2. Here all
of q is multiplied by mscale^2, as the paper's 1/t multiplies the whole logit. With partial rotation
the released code and HF scale the rotated channels' part of the logit only.
"""

import math

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Rotated
from lengthgen.schemes.parameters import AtLeastOne
from lengthgen.schemes.rotary.rope_scaling import RopeScaling, sharpened


class Yarn(RopeScaling):
    """Divides slow angles by s, leaves fast ones, and multiplies the logits by (0.1 ln s + 1)^2.

    factor: s; null: L/T of each call, at least 1. beta_fast, beta_slow: turns within T; 32 and 1
    (beta and alpha in the paper).
    """

    def __init__(
        self,
        shape: ModelDims,
        *,
        factor: AtLeastOne | None,
        beta_fast: PositiveFloat,
        beta_slow: PositiveFloat,
        original_max_position_embeddings: PositiveInt | None = None,
    ) -> None:
        super().__init__(
            shape,
            factor=factor,
            original_max_position_embeddings=original_max_position_embeddings,
        )
        if beta_slow >= beta_fast:
            raise ValueError(f"beta_slow={beta_slow} must be below beta_fast={beta_fast}")
        self.beta_fast, self.beta_slow = beta_fast, beta_slow

    def frequencies(self, omega_R: Tensor, c: AttentionContext) -> Tensor:
        if len(omega_R) == 1:  # the fastest pair, which is never interpolated
            return omega_R
        low, high = self.bounds(omega_R)
        m = torch.arange(len(omega_R), device=omega_R.device, dtype=omega_R.dtype)
        ramp_R = ((m - low) / (high - low).clamp(min=0.001)).clamp(0, 1)  # 0.001 as released
        return omega_R * (1 - ramp_R + ramp_R / self.stretch(c))

    def bounds(self, omega_R: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the numbers of the last pair to keep and of the first one to divide by s."""
        first, second = self.turns(omega_R[:2]).log()
        low, high = (
            (first - math.log(n)) / (first - second) for n in (self.beta_fast, self.beta_slow)
        )
        return low.floor().clamp(min=0), high.ceil().clamp(max=2 * len(omega_R) - 1)

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        mscale = 0.1 * math.log(self.stretch(c)) + 1
        return sharpened(mscale, q_BHQK, k_BHSK)
