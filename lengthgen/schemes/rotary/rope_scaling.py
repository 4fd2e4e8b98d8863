"""The parts that stretch RoPE past its trained length: s, and the scale of the logits."""

import math
from abc import ABC, abstractmethod

from pydantic import PositiveInt
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Part, Rotated
from lengthgen.schemes.parameters import AtLeastOne


class RopeScaling(Part, ABC):
    """Changes rotary frequencies by s, how many times a text is as long as trained ones.

    factor: s; null: L/T of each call, at least 1. original_max_position_embeddings: T of what is
    above; null: train.length. It is to be given where a run begins with the weights of one of
    another length (train.init_from).
    """

    bidirectional = True

    def __init__(
        self,
        shape: ModelDims,
        *,
        factor: AtLeastOne | None,
        original_max_position_embeddings: PositiveInt | None = None,
    ) -> None:
        super().__init__(shape)
        T = original_max_position_embeddings
        self.original_length = shape.train_length if T is None else T
        self.factor = factor
        self.depends_on_length = factor is None

    def stretch(self, c: AttentionContext) -> float:
        """Returns s."""
        return self.times_trained(c) if self.factor is None else self.factor

    def times_trained(self, c: AttentionContext) -> float:
        """Returns how many times the call is as long as T, at least 1."""
        return max(1.0, c.length / self.original_length)

    def turns(self, omega_R: Tensor) -> Tensor:
        """Returns how many turns each pair makes within T."""
        return omega_R * (self.original_length / (2 * math.pi))

    @abstractmethod
    def frequencies(self, omega_R: Tensor, c: AttentionContext) -> Tensor: ...


def sharpened(mscale: float, q_BHQK: Tensor, k_BHSK: Tensor) -> Rotated:
    """Returns q times mscale^2, and k: their product as if cos and sin were mscale times larger."""
    return Rotated(q_BHQK * mscale**2, k_BHSK)
