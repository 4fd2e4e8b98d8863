"""Biases that depend on head and distance, read from a table that is computed for every block."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, Part
from lengthgen.schemes.parameters import widest


class DistanceBias(Part, ABC):
    """Adds bias_at(distance) to the logits."""

    bidirectional = True
    distance_only = True

    @abstractmethod
    def bias_at(self, d_N: Tensor, c: AttentionContext) -> Tensor:
        """Returns the bias of every head at distances of 0 and more, [H, N] in their dtype."""

    def bias(self, c: AttentionContext) -> Tensor:
        return over_distances(lambda d_N: self.bias_at(d_N, c), c)


def over_distances(table: Callable[[Tensor], Tensor], c: AttentionContext) -> Tensor:
    """Returns the table's entry at the distance of every query and key, in c.dtype.

    table() maps the distances 0 ... farthest, [N], to biases [H, N]; the result is [H, Q, S], or
    [B, H, Q, S]. The table is computed in float64 and rounded once.
    """
    d = c.exact_distance()
    wide = widest(d.device)
    # To ask the tensor would wait for a GPU, and cut what is compiled in two.
    numbered = bool(c.hooks.bias) and c.hooks.contiguous
    last = c.rows.stop if c.shape.causal else c.cols.stop
    farthest = last - 1 if numbered else int(d.max())
    d = d.squeeze(-3) if d.dim() == 4 else d
    if d.numel() <= farthest + 1:  # of one query there is nothing to look up
        bias = table(d.flatten().to(wide)).to(c.dtype)
    else:
        table_HN = table(torch.arange(farthest + 1, device=d.device, dtype=wide)).to(c.dtype)
        bias = table_HN.gather(1, d.flatten().expand(len(table_HN), -1))
    return bias.unflatten(1, d.shape).movedim(0, -3)
