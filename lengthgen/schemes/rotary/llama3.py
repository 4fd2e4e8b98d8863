"""Llama 3.1's scaling of RoPE: Meta 2024, as published in its code and in Megatron-LM.

By the turns that a pair makes within T: with high_freq_factor or more it keeps its angle, with
low_freq_factor or fewer the angle is divided by s, and between them the two are mixed linearly in
the number of turns. The old context length is T. Megatron-LM: rotary_pos_embedding.py:92-125; HF
transformers: rope_type `llama3`.
"""

from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims
from lengthgen.schemes.parameters import AtLeastOne
from lengthgen.schemes.rotary.rope_scaling import RopeScaling


class Llama3(RopeScaling):
    """Divides slow angles by s and leaves fast ones.

    factor: s, 8 in Llama 3.1; null: L/T of each call, at least 1. low_freq_factor and
    high_freq_factor: turns within T, 1 and 4.
    """

    def __init__(
        self,
        shape: ModelDims,
        *,
        factor: AtLeastOne | None,
        low_freq_factor: PositiveFloat,
        high_freq_factor: PositiveFloat,
        original_max_position_embeddings: PositiveInt | None = None,
    ) -> None:
        super().__init__(
            shape,
            factor=factor,
            original_max_position_embeddings=original_max_position_embeddings,
        )
        if low_freq_factor >= high_freq_factor:
            raise ValueError(
                f"low_freq_factor={low_freq_factor} must be below "
                f"high_freq_factor={high_freq_factor}"
            )
        self.low, self.high = low_freq_factor, high_freq_factor

    def frequencies(self, omega_R: Tensor, c: AttentionContext) -> Tensor:
        kept_R = ((self.turns(omega_R) - self.low) / (self.high - self.low)).clamp(0, 1)
        return omega_R * (kept_R + (1 - kept_R) / self.stretch(c))
