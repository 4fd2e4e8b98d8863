"""ASEntmax, adaptive-scalable entmax: Vasylenko et al. 2025, arXiv 2506.16640.

alpha-entmax with alpha = 1.5 in place of softmax, whose weights are exactly 0 below a threshold:

  w_ij = max(0, z_ij / 2 - tau_i)^2, tau_i such that they sum to one (Peters et al. 2019)

of logits multiplied by delta + beta (ln n)^gamma, where beta = softplus(w_b . x_i) and
gamma = gamma_range tanh(w_g . x_i) of the query's token, per head: `adapt-softplus-tanh` of the
authors' code (deep-spin/asentmax, sparse_gemma.py). As there, n is one more than the number of keys
up to the query, so that its logarithm is positive. w_b and w_g are drawn from N(0, init_std^2).

Deviation: the authors scale the heads without positions alone, and give the others ALiBi.

tau is found by Newton's method on the norm of max(0, z/2 - tau), a convex function of tau.
"""

from typing import Any

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims
from lengthgen.schemes.parameters import cast, normal
from lengthgen.schemes.temperature import QueryFactor

NEWTON_STEPS = 12  # tau had all its digits after 7 for all shapes of up to 16k logits


class Asentmax(QueryFactor):
    """Replaces softmax by entmax of logits that are scaled by token, head and length.

    delta: 1 in the authors' code. gamma_range: the largest exponent of ln n, 2 there.
    """

    def __init__(
        self, shape: ModelDims, *, delta: NonNegativeFloat, gamma_range: PositiveFloat
    ) -> None:
        super().__init__(shape)
        self.delta, self.gamma_range = delta, gamma_range
        size = shape.n_layers, shape.n_heads, shape.d_model
        self.w_b = normal(*size, std=shape.init_std)
        self.w_g = normal(*size, std=shape.init_std)

    def factor(self, c: AttentionContext) -> Tensor:
        """Returns the factor of each head and query, [B, H, Q] in c.dtype."""
        x_BQD = c.x_BTD[:, c.rows].to(c.dtype)
        b_BQH, g_BQH = (F.linear(x_BQD, w) for w in cast(c, self.w_b, self.w_g))
        log_n_Q1 = (c.n_visible() + 1).to(c.dtype).log()[:, None]
        power_BQH = log_n_Q1 ** (self.gamma_range * g_BQH.tanh())
        return (self.delta + F.softplus(b_BQH) * power_BQH).mT

    def weights(self, s_BHQS: Tensor, c: AttentionContext) -> Tensor:
        return entmax15(s_BHQS)


def entmax15(s_BHQS: Tensor) -> Tensor:
    """Returns 1.5-entmax over the keys of logits that are -inf where hidden."""
    return _Entmax15.apply(s_BHQS)  # pyright: ignore[reportReturnType]


class _Entmax15(torch.autograd.Function):
    """With r = sqrt(w), the gradient is ds = r dw - r (r . dw) / sum(r)."""

    @staticmethod
    def forward(ctx: Any, s: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        # The largest weight is 1 at most: tau is no lower than -1, and no key below it counts.
        z = ((s - s.amax(-1, keepdim=True)) / 2).clamp_(min=-1)
        tau = torch.full_like(z[..., :1], -1)
        for _ in range(NEWTON_STEPS):
            above = (z - tau).clamp_(min=0)
            norm = above.norm(dim=-1, keepdim=True)
            tau += (norm - 1) * norm / above.sum(-1, keepdim=True)
        root = (z - tau).clamp_(min=0)
        ctx.save_for_backward(root)
        return root.square()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        (root,) = ctx.saved_tensors
        ds = root * d
        return ds.addcmul(root, ds.sum(-1, keepdim=True) / root.sum(-1, keepdim=True), value=-1)
