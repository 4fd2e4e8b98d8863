"""Alignment ids: which characters of an example belong together, known to the task alone.

Parts that read them are oracles: upper bounds of what a scheme can do without.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, Part

AlignmentIds = Callable[[Sequence[int]], list[int]]  # of a text's tokens; -1 before the text


def ids_of(ids: AlignmentIds, tokens_BT: Tensor) -> Tensor:
    """Returns the alignment id of each token, [B, T] int64. It is never compiled."""
    return torch.tensor([ids(row) for row in tokens_BT.tolist()], device=tokens_BT.device)


class Aligned(Part):
    """A part that reads alignment ids, which build_scheme() takes from the configured task."""

    needs_whole_text = True
    alignment_ids: AlignmentIds | None = None

    def ids(self, c: AttentionContext) -> Tensor | None:
        """Returns the alignment id of each token, [B, T] int64; None if the corpus has none."""
        ids = self.alignment_ids
        return None if ids is None else ids_of(ids, c.tokens_BT)
