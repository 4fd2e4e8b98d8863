"""CoPE, contextual position encoding: Golovneva et al. 2024, arXiv 2405.18719.

Positions count gates instead of tokens: g_ij = sigmoid(q_i.k_j / sqrt(d)), and the position of key
j is p_ij = min(g_ij + ... + g_ii, n-1), the query's own token included. The logit gets z_i[p_ij],
z_i = q_i E, interpolated linearly between integer positions. E is [d, n], zero at first, shared by
the heads.

The paper (appendix B) adds z as it is: `unscaled`. The authors' release divides it by sqrt(d), like
q.k, by default: `scaled`, another function. Its options of separate keys for the gates
and of gates made from values are left out. Biases of other parts do not enter the gates.

N positions.
"""

from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from lengthgen.schemes.base import AttentionContext, ModelDims, Part, products
from lengthgen.schemes.parameters import of_layer

REPLICAS = 4  # places where a position's gradient is summed: additions to one wait for each other
FIRST_NEAR = 4  # keys at first, in multiples of n: gates of a quarter come to the last position


class Cope(Part):
    """Adds a trained logit of the contextual position.

    n_positions: n, 64 in the paper's language models; keys counted n-1 or more share one logit.
    """

    reads_qk = True

    def __init__(
        self,
        shape: ModelDims,
        *,
        n_positions: Annotated[int, Field(ge=2)],
        position_logits: Literal["unscaled", "scaled"],
        share_layers: bool,
    ) -> None:
        super().__init__(shape)
        self.scale = shape.d_head**-0.5 if position_logits == "scaled" else 1.0
        n = 1 if share_layers else shape.n_layers
        self.E = nn.Parameter(torch.zeros(n, shape.d_head, n_positions))

    def scores(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Tensor:
        s_BHQS = products(q_BHQK, k_BHSK, c)
        z_BHQN = (q_BHQK @ of_layer(self.E, c).to(q_BHQK.dtype)).to(c.dtype) * self.scale
        first_row = c.rows.start
        if torch.is_grad_enabled():
            s_BHQS = s_BHQS + at_counted_positions(s_BHQS, z_BHQN, first_row=first_row)
        else:
            add_counted_(s_BHQS, z_BHQN, first_row=first_row)
        return c.biased(s_BHQS)


def add_counted_(s_BHQS: Tensor, z_BHQN: Tensor, *, first_row: int) -> None:
    """Adds z at counted positions to s without a gradient, from the nearest key to the last."""
    (Q, S), n = s_BHQS.shape[-2:], z_BHQN.shape[-1]
    n_near = min(S, Q + FIRST_NEAR * n)
    while True:
        near = s_BHQS[..., S - n_near :]
        _, p = counts(near, n, first_row=first_row - (S - n_near))
        if n_near == S or bool((p[..., 0] == n - 1).all()):
            break
        n_near = min(S, 4 * n_near)
    s_BHQS[..., : S - n_near] += z_BHQN[..., -1:]
    near += interpolated(z_BHQN, p)


def at_counted_positions(s_BHQS: Tensor, z_BHQN: Tensor, *, first_row: int) -> Tensor:
    """Returns z at the positions that gates sigmoid(s) count; the first query is `first_row`."""
    return _Counted.apply(s_BHQS, z_BHQN, first_row)  # pyright: ignore[reportReturnType]


class _Counted(torch.autograd.Function):
    """Keeps gates and positions for the backward pass, no integer indices of 8 bytes each."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, z: Tensor, first_row: int) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        gate, p = counts(s, z.shape[-1], first_row=first_row)
        ctx.save_for_backward(gate, p, z)
        return interpolated(z, p)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        gate, p, z = ctx.saved_tensors
        n = z.shape[-1]
        floor, share = p.long(), p.frac()
        d_p = d * slope(z).gather(-1, floor)
        d_gate = d_p.cumsum(-1)  # a gate counts towards its own key's position and all earlier ones
        bucket = floor.add_(torch.arange(p.shape[-1], device=p.device) % REPLICAS * n)

        def sums(x: Tensor) -> Tensor:
            apart = z.new_zeros(*z.shape[:-1], REPLICAS * n).scatter_add_(-1, bucket, x)
            return apart.unflatten(-1, (REPLICAS, n)).sum(-2)

        d_z, upper = sums(d), sums(share.mul_(d))
        d_z -= upper
        d_z[..., 1:] += upper[..., :-1]
        return torch.ops.aten.sigmoid_backward(d_gate, gate), d_z, None


def counts(s_BHQS: Tensor, n: int, *, first_row: int) -> tuple[Tensor, Tensor]:
    """Returns the gates, 0 for later keys, and the positions that they count up to n - 1."""
    gate = s_BHQS.sigmoid().tril_(first_row)
    return gate, gate.flip(-1).cumsum(-1).flip(-1).clamp_(max=n - 1)


def interpolated(z_BHQN: Tensor, p_BHQS: Tensor) -> Tensor:
    """Returns z at positions between 0 and n - 1."""
    floor = p_BHQS.long()
    return torch.addcmul(z_BHQN.gather(-1, floor), p_BHQS.frac(), slope(z_BHQN).gather(-1, floor))


def slope(z_BHQN: Tensor) -> Tensor:
    """Returns z[n+1] - z[n], and 0 past the last: there a position moves nothing."""
    return F.pad(z_BHQN.diff(), (0, 1))
