"""Learned absolute positions: a trained row per position of the training window, as in GPT-2.

Vaswani et al. 2017 (arXiv 1706.03762, section 3.5) compare it with sinusoids; rows N(0, 0.02^2) as
in GPT-2 (init_std of the model). There is no row for positions past T: see `beyond`.
"""

from typing import Literal

from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Part
from lengthgen.schemes.parameters import normal


class LearnedAbsolute(Part):
    """Adds row pos of a [T, D] table to the token embeddings.

    beyond: na, no value at lengths past T; clamp, the last row; wrap, row pos mod T; interpolate,
    the T rows resampled linearly to the length of the call (pos (T-1)/(L-1)).
    """

    bidirectional = True
    shift_invariant = False

    def __init__(
        self, shape: ModelDims, *, beyond: Literal["na", "clamp", "wrap", "interpolate"]
    ) -> None:
        super().__init__(shape)
        self.beyond = beyond
        self.rows = shape.train_length
        self.depends_on_length = beyond == "interpolate"
        self.table = normal(shape.train_length, shape.d_model, std=shape.init_std)

    def unsupported_reason(self, length: int) -> str | None:
        if self.beyond == "na" and length > self.rows:
            return f"learned_absolute has {self.rows} rows and beyond=na"
        return None

    def embed(self, x_BTD: Tensor, c: AttentionContext) -> Tensor:
        return x_BTD + self.lookup(c.pos, c.length).to(x_BTD.dtype)

    def lookup(self, pos: Tensor, length: int) -> Tensor:
        """Returns the rows at the given positions, [..., D]."""
        if self.beyond == "interpolate" and length > self.rows:
            at = pos.to(self.table.dtype) * ((self.rows - 1) / (length - 1))
            low = at.floor().long().clamp(max=self.rows - 1)
            high = (low + 1).clamp(max=self.rows - 1)
            share = (at - low)[..., None]
            return (1 - share) * self.table[low] + share * self.table[high]
        if self.beyond == "wrap":
            return self.table[pos % self.rows]
        return self.table[pos if self.beyond == "na" else pos.clamp(max=self.rows - 1)]
