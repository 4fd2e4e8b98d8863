"""Abacus embeddings: McLeish et al. 2024, arXiv 2405.17399. Reads alignment: an upper bound.

A learned row marks the place of a digit in its number, the lowest first; all numbers share rows.
In training the places of a call begin at a random one, so that longer numbers meet trained rows. As
in the authors' release (mcleish7/arithmetic, abacus.py): 1024 rows, row 0 for all other characters,
places shifted by 0 to 99 in training and not at all in tests.

The task says the places, here also of other characters than digits: Task.alignment_ids.
"""

import torch
from pydantic import NonNegativeInt
from torch import Tensor

from lengthgen.schemes.absolute.alignment import Aligned
from lengthgen.schemes.base import AttentionContext, ModelDims
from lengthgen.schemes.parameters import normal


class Abacus(Aligned):
    """Adds row `place` of a table to the embeddings of characters that have a place, row 0 else.

    rows: of the table. shift: the most that is added to the places of a call in training.
    """

    def __init__(self, shape: ModelDims, *, rows: int, shift: NonNegativeInt) -> None:
        super().__init__(shape)
        if rows <= shape.train_length + shift:
            raise ValueError(
                f"rows={rows} must be more than T + shift ({shape.train_length} + {shift}): places "
                "up to that occur in training"
            )
        self.rows, self.shift = rows, shift
        self.table = normal(rows, shape.d_model, std=shape.init_std)

    def unsupported_reason(self, length: int) -> str | None:
        return f"abacus has {self.rows} rows" if length >= self.rows else None

    def rows_of(self, ids_BT: Tensor, c: AttentionContext) -> Tensor:
        shift = 0
        if c.training and self.shift:
            shift = int(torch.randint(self.shift + 1, (), generator=self.generator(c)))
        return torch.where(ids_BT > 0, ids_BT + shift, 0)
