"""Randomized positional encodings: Ruoss et al. 2023, arXiv 2305.16843.

A window of L tokens gets L of the positions 0 ... maximum-1, drawn without replacement and sorted:
in training the model meets every distance that a longer text will have. Any other part may take
these positions. The paper draws from 2048 positions for training windows of at most 40.

One draw serves all layers and sequences of a call. The authors' release draws again in every layer
where encodings act inside attention (google-deepmind/randomized_positional_encodings,
models/positional_encodings.py). Evaluation draws too, as in the release, by default.
"""

from typing import Literal

import torch
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Part
from lengthgen.schemes.parameters import AtLeastOne, tokens


class Randomized(Part):
    """Gives out random positions in ascending order.

    maximum: positions to draw from, in multiples of T. evaluation: random, as in training; arange,
    0 ... L-1; linspace, L positions spread evenly from 0 to maximum-1.
    """

    def __init__(
        self,
        shape: ModelDims,
        *,
        maximum: AtLeastOne,
        evaluation: Literal["random", "arange", "linspace"],
    ) -> None:
        super().__init__(shape)
        self.maximum = tokens(maximum, shape)
        self.evaluation = evaluation

    @property
    def depends_on_length(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.training or self.evaluation != "arange"

    def unsupported_reason(self, length: int) -> str | None:
        if length > self.maximum and self.evaluation != "arange":
            return f"randomized has {self.maximum} positions"
        return None

    def largest_position(self, length: int) -> int:
        return self.maximum - 1

    def positions(self, tokens_BT: Tensor, c: AttentionContext) -> Tensor:
        how = "random" if c.training else self.evaluation
        if how == "arange":
            return c.pos
        if c.length > self.maximum:
            raise ValueError(f"{c.length} tokens, but randomized has {self.maximum} positions")
        if how == "linspace":
            numbers = torch.arange(c.length, device=c.pos.device)
            return numbers * (self.maximum - 1) // max(1, c.length - 1)
        if c.generator is None:
            raise ValueError("randomized draws positions; call the model with a generator")
        order = torch.randperm(self.maximum, generator=c.generator)  # on the CPU, for any device
        return order[: c.length].sort().values.to(c.pos.device)
