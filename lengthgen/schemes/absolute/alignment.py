"""Alignment ids: which characters of an example belong together, known to the task alone.

Parts that read them are oracles: upper bounds of what a scheme can do without.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from lengthgen.config.schema import AlignmentIds
from lengthgen.schemes.base import AttentionContext, Part


def ids_of(ids: AlignmentIds, tokens_BT: Tensor) -> Tensor:
    """Returns the alignment id of each token, [B, T] int64. It is never compiled."""
    return torch.tensor([ids(row) for row in tokens_BT.tolist()], device=tokens_BT.device)


class Aligned(Part, ABC):
    """Adds rows of a table by the alignment ids of the configured task; row 0 without one."""

    needs_whole_text = True
    reads_alignment = True
    table: nn.Parameter

    @abstractmethod
    def rows_of(self, ids_BT: Tensor, c: AttentionContext) -> Tensor:
        """Returns the row of each token, [B, T] int64."""

    def embed(self, x_BTD: Tensor, c: AttentionContext) -> Tensor:
        ids = self.alignment_ids
        if ids is None:
            return x_BTD + self.table[0].to(x_BTD.dtype)
        return x_BTD + self.table[self.rows_of(ids_of(ids, c.tokens_BT), c)].to(x_BTD.dtype)

    def generator(self, c: AttentionContext) -> torch.Generator:
        """Returns what draws on the CPU, for any device."""
        if c.generator is None:
            raise ValueError("places begin at random; call the model with a generator")
        return c.generator
