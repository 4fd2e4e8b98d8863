"""LongRoPE: Ding et al. 2024, arXiv 2402.13753. Angle m is divided by a factor lambda_m of its own.

The paper finds the lambdas by an evolutionary search on data and fine-tunes; there is no search
here: they are the user's. Where nothing is stretched (s = 1) RoPE stays as trained. As in the
release (microsoft/LongRoPE, rope/longrope.py:62-75), cos and sin are multiplied by
mscale = sqrt(1 + ln s / ln T): here q by mscale^2, with partial rotation in all its channels. The
paper's other part, no interpolation for the first tokens, is left out: it makes the angle between
two tokens depend on more than their distance. For LongRoPE2 (Shang et al. 2025, arXiv 2502.20082),
which has another search, for lambdas of the same use, see `longrope2`.
"""

import math

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from lengthgen.errors import UserError
from lengthgen.schemes.base import AttentionContext, ModelDims, Rotated
from lengthgen.schemes.parameters import AtLeastOne
from lengthgen.schemes.rotary.rope_scaling import RopeScaling, sharpened


class Longrope(RopeScaling):
    """Divides each pair's angle by its lambda, and multiplies the logits by 1 + ln s / ln T.

    factor: s; null: L/T of each call, at least 1. lambdas: one per rotated channel pair, the
    fastest first.
    """

    def __init__(
        self,
        shape: ModelDims,
        *,
        factor: AtLeastOne | None,
        lambdas: list[PositiveFloat],
        original_max_position_embeddings: PositiveInt | None = None,
    ) -> None:
        super().__init__(
            shape,
            factor=factor,
            original_max_position_embeddings=original_max_position_embeddings,
        )
        refuse_without_mscale(self.original_length)
        self.lambdas = lambdas

    def frequencies(self, omega_R: Tensor, c: AttentionContext) -> Tensor:
        if len(self.lambdas) != len(omega_R):
            raise UserError(
                f"longrope.lambdas: {len(self.lambdas)} numbers for {len(omega_R)} rotated channel "
                "pairs; give one for each"
            )
        if self.stretch(c) == 1:
            return omega_R
        return omega_R / torch.tensor(self.lambdas, device=omega_R.device, dtype=omega_R.dtype)

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        return sharpened(attention_factor(self.stretch(c), self.original_length), q_BHQK, k_BHSK)


def refuse_without_mscale(T: int) -> None:
    """Raises ValueError for a T that mscale has no value for."""
    if T < 2:
        raise ValueError(
            f"train.length, or original_max_position_embeddings: {T} must be above 1, since mscale "
            "has ln T"
        )


def attention_factor(s: float, T: int) -> float:
    """Returns mscale."""
    return math.sqrt(1 + math.log(s) / math.log(T))
