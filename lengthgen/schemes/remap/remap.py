"""Logits at remapped positions, from branches that each hold for some pairs of query and key.

A rotary part's logit is a function of q_pos - k_pos. A map of distances that is no such difference
is a few differences side by side: every branch has coordinates of its own, all its logits are one
matrix product, and each pair keeps the logit of the branch that it belongs to. Other parts' biases
are of the true distances: only rotations are remapped.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, Part


class Branch(NamedTuple):
    """Coordinates of queries and keys, and the pairs that they hold for."""

    q_pos: Tensor  # [Q] or [B, Q], int64 or, where fractional, c.dtype
    k_pos: Tensor  # [S] or [B, S]
    used: Tensor  # bool [Q, S], or [B, 1, Q, S] if sequences differ


class Remap(Part, ABC):
    """Computes the logits of rotary parts at the coordinates of branches."""

    remaps = True

    @abstractmethod
    def branches(self, c: AttentionContext) -> list[Branch]:
        """Returns the branches of the block; the last that uses a pair decides on it."""

    def scores(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Tensor:
        """Returns the block's logits in c.dtype, biases included; 0 for a pair that none uses."""
        s_BHQS = torch.zeros((), device=q_BHQK.device, dtype=c.dtype)
        for branch in self.branches(c):
            q, k = c.rotated(q_BHQK, k_BHSK, q_pos=branch.q_pos, k_pos=branch.k_pos)
            of_branch = (q @ k.transpose(-1, -2)).to(c.dtype) * c.shape.d_head**-0.5
            s_BHQS = torch.where(branch.used, of_branch, s_BHQS)
        return c.biased(s_BHQS)


def from_first(c: AttentionContext) -> tuple[Tensor, Tensor]:
    """Returns the coordinates of queries and keys counted from the first key of the sequence.

    Where a remap divides positions, this makes it blind to a constant added to all of them.
    """
    first = c.k_pos[..., :1]
    return c.q_pos - first, c.k_pos - first
