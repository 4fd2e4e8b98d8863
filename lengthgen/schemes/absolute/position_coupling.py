"""Position coupling: Cho et al. 2024, arXiv 2405.20671. Reads alignment: an upper bound.

All tokens that belong together share one learned position: digits of the same value, the signs
between numbers, a character and its copy. The task says which: Task.alignment_ids.

As in the release (HanseulJo/position-coupling, src/data/addition.py), every example of a training
batch begins at a position of its own, drawn from all that leave room for its places, and drawn
again whenever the example comes back. Otherwise than there:

- Tests begin at a position in the middle, the same for all, and not at the first: that one is drawn
  least, as it can be nothing but the start. The release's table just holds the longest test; this
  one is larger, so that tests of up to 4 T tokens read rows that are trained as often as any.
- The release counts down from the signs to the highest digit where numbers are not reversed, here
  it is up: the same, mirrored, for rows that are learned in the same way.
"""

import torch
from torch import Tensor

from lengthgen.schemes.absolute.alignment import Aligned
from lengthgen.schemes.base import AttentionContext, ModelDims
from lengthgen.schemes.parameters import AtLeastOne, normal, tokens

PRIME = 2**31 - 1


class PositionCoupling(Aligned):
    """Adds one row of a table to the embeddings of all characters that belong together.

    Row 0 is that of tokens before the text, such as <|bos|>; row 1 + start + place of all others.
    rows: of the table, in multiples of T. Tests begin T/2 rows on (earlier if rows < 2): a text may
    have as many tokens as rows are left.
    """

    def __init__(self, shape: ModelDims, *, rows: AtLeastOne) -> None:
        super().__init__(shape)
        self.n_places = tokens(rows, shape)
        # A place occurs twice or more, in prompt and answer: up to T/2 rows from either end are
        # trained less than those between.
        self.start = min(shape.train_length, self.n_places - shape.train_length) // 2
        self.table = normal(self.n_places + 1, shape.d_model, std=shape.init_std)

    def unsupported_reason(self, length: int) -> str | None:
        longest = self.n_places - self.start
        return f"position_coupling has rows for {longest} tokens" if length > longest else None

    def rows_of(self, ids_BT: Tensor, c: AttentionContext) -> Tensor:
        start_B1: Tensor | int = self.start
        if c.training:
            room_B1 = self.n_places - ids_BT.amax(-1, keepdim=True).clamp(min=0)
            start_B1 = self.drawn(room_B1, c)
        return torch.where(ids_BT >= 0, ids_BT + 1 + start_B1, 0)

    def drawn(self, below_B1: Tensor, c: AttentionContext) -> Tensor:
        """Returns a number from 0 to below - 1 for each example, a function of it and c.generator.

        So it does not depend on what else is in the call. Examples are hashed with a key that is
        drawn for the call: numbers of different ones are independent, pair by pair (Carter and
        Wegman 1979, doi 10.1016/0022-0000(79)90044-8).
        """
        n_tokens = c.tokens_BT.shape[1]
        key_T = torch.randint(PRIME, (n_tokens + 1,), generator=self.generator(c))
        key_T = key_T.to(c.tokens_BT.device)
        hashed_B1 = (c.tokens_BT * key_T[1:]).sum(-1, keepdim=True) + key_T[0]
        return hashed_B1 % PRIME * below_B1 // PRIME
