"""Position coupling: Cho et al. 2024, arXiv 2405.20671. Told the places: an upper bound.

All tokens that belong together share one learned position: digits of the same value, the signs
between numbers, a character and its copy. In training the positions begin at a random one. The
release (HanseulJo/position-coupling, src/data/addition.py) counts down from the signs to the
highest digit, here it is up: the same, mirrored, for rows that are learned alike.

The task says what belongs together: Task.places.

B batch, T tokens, D width.
"""

import torch
from torch import Tensor, nn

from lengthgen.schemes.abacus import drawn
from lengthgen.schemes.base import Ctx, Part, Shape
from lengthgen.schemes.lengths import tokens


class PositionCoupling(Part):
    """Adds one row of a table to the embeddings of all characters that belong together.

    Row 0 is that of tokens before the text, such as <|bos|>; row 1 + place of all others, shifted
    in training by any number up to which the places of T tokens have rows. rows: of the table, in
    multiples of T: so much longer may a text be.
    """

    reads_places = True

    def __init__(self, shape: Shape, *, rows: float) -> None:
        super().__init__(shape)
        if rows < 1:
            raise ValueError(f"rows={rows} must be at least 1: T tokens have up to T places")
        n_places = tokens("rows", rows, shape)
        self.shift = n_places - shape.train_length
        self.table = nn.Parameter(torch.empty(n_places + 1, shape.d_model))
        nn.init.normal_(self.table, std=shape.init_std)

    def undefined_at(self, length: int) -> str | None:
        n_places = len(self.table) - 1
        return f"position_coupling has rows for {n_places} tokens" if length > n_places else None

    def embed(self, x_BTD: Tensor, c: Ctx) -> Tensor:
        if c.places_BT is None:
            return x_BTD + self.table[0].to(x_BTD.dtype)
        shift = drawn(self.shift, c)
        rows_BT = torch.where(c.places_BT >= 0, c.places_BT + 1 + shift, 0)
        return x_BTD + self.table[rows_BT].to(x_BTD.dtype)
