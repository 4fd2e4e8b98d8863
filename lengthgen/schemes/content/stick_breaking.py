"""Stick-breaking attention: Tan et al. 2024, arXiv 2410.17980.

Instead of a softmax, keys take shares of what the later ones left of a stick, nearest key first:

  w_ij = sigmoid(s_ij) * prod_{j<t<i} (1 - sigmoid(s_it)), j < i          o_i = sum_j w_ij v_j

The query's own key takes no share; its value gets the rest, w_ii = 1 - sum_{j<i} w_ij, which is
the product over all t < i, as if a last key took all. The authors' reference function leaves it to
its caller. The first query gets v_0.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, Part

LEAST = 4.5  # less than eps to this power is nothing: a CPU is slow with subnormal numbers


class StickBreaking(Part):
    """Replaces softmax by stick-breaking; other positional parts may be dropped."""

    def weights(self, s_BHQS: Tensor, c: AttentionContext) -> Tensor:
        return broken(s_BHQS, first_row=c.rows.start)


def broken(s_BHQS: Tensor, *, first_row: int) -> Tensor:
    """Returns the weights of logits that are -inf where hidden; the first query is `first_row`."""
    return _Broken.apply(s_BHQS, first_row)  # pyright: ignore[reportReturnType]


class _Broken(torch.autograd.Function):
    """With h = w dw, the gradient is ds_t = h_t - sigmoid(s_t) (h_i + sum_{j<=t} h_j), t < i.

    It needs no logarithm, and no infinite logit enters it.
    """

    @staticmethod
    def forward(ctx: Any, s: Tensor, first_row: int) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        share, log_kept = s.sigmoid(), F.logsigmoid(-s)
        for x in (share, log_kept):
            x.diagonal(first_row, -2, -1).zero_()
        left = log_kept.flip(-1).cumsum(-1).flip(-1)  # of the stick, after key j took its share
        least = LEAST * math.log(torch.finfo(s.dtype).eps)
        left = F.threshold(left, least, -math.inf, inplace=True).exp_()
        w = F.pad(left[..., 1:], (0, 1)).mul_(share)
        w.diagonal(first_row, -2, -1).copy_(left[..., 0])
        ctx.save_for_backward(share, w)
        ctx.first_row = first_row
        return w

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        share, w = ctx.saved_tensors
        h = d * w
        of_itself = h.diagonal(ctx.first_row, -2, -1)
        before = of_itself[..., None].clone()
        of_itself.zero_()
        return h.addcmul(share, h.cumsum(-1).add_(before), value=-1), None
