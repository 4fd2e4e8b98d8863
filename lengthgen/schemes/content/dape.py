"""DAPE, data-adaptive positional encoding: Zheng et al. 2024, arXiv 2405.14722 and 2410.04798 (V2).

Every logit is corrected by what all heads say of the same query and key:

  a = s + b + MLP([s; b]), s = q.k / sqrt(d), b the bias of the scheme's other parts

with MLP = Linear(2H, width), LeakyReLU(0.01), Linear(width, H) over the heads, one per layer,
initialised as PyTorch's Linear. Schemes without a bias, such as rope, take MLP(s) over H inputs
(`inputs: scores`).

V2 has two convolutions over `kernel` keys of a query in place of the two linear maps (1 x 3 in the
paper). Keys behind the query are zeros. As in the authors' code (chuanyang-Zheng/DAPE,
megatron/model/positional_embeddings.py, Kerple_DAPEV2), but that there a hidden unit behind the
last key of the call is 0, so that the last query of a text has another function than the same query
in a longer text; here all queries have that of the others.

C channels, M taps: keys that a convolution spans, or 1; N pairs of query and key.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Part, products
from lengthgen.schemes.parameters import as_linear, cast

SLOPE = 0.01  # of LeakyReLU below 0
PAIRS = 8192  # of query and key at a time, whose hidden units take a megabyte at width 32


class Dape(Part):
    """Adds to every logit a small network of all heads' logits and biases.

    width: hidden units, 32 in the paper. inputs: what the network sees.
    """

    def __init__(
        self, shape: ModelDims, *, width: PositiveInt, inputs: Literal["scores_and_bias", "scores"]
    ) -> None:
        super().__init__(shape)
        self.inputs = inputs
        n_in = shape.n_heads * (2 if inputs == "scores_and_bias" else 1)
        n, H = shape.n_layers, shape.n_heads
        self.w_in = as_linear(n, width, n_in, fan_in=n_in)
        self.b_in = as_linear(n, width, 1, fan_in=n_in)
        self.w_out = as_linear(n, H, width, fan_in=width)
        self.b_out = as_linear(n, H, 1, fan_in=width)

    def conflict(self, others: Mapping[str, Part]) -> str | None:
        biased = any(part.overrides("bias") for part in others.values())
        if biased == (self.inputs == "scores_and_bias"):
            return None
        return f"has inputs={self.inputs}, and {'a' if biased else 'no'} part beside it has a bias"

    def scores(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Tensor:
        s_BHQS, bias = products(q_BHQK, k_BHSK, c), None
        if self.inputs == "scores_and_bias":
            bias = s_BHQS.new_zeros(1, 1, 1) if (bias := c.total_bias()) is None else bias
            bias = bias.expand(*bias.shape[:-3], *s_BHQS.shape[1:])
            bias = bias if bias.dim() == 4 else bias[None]
        w_in, b_in, w_out, b_out = cast(c, self.w_in, self.b_in, self.w_out, self.b_out)
        w_in, w_out = (w if w.dim() == 3 else w[..., None] for w in (w_in, w_out))
        w_in, w_out = w_in.mT.flatten(1), w_out.permute(2, 0, 1).flip(0).flatten(0, 1)
        b_in, b_out = b_in.view(-1, 1), b_out.view(-1, 1, 1)
        out = _Corrected.apply(s_BHQS, bias, w_in, b_in, w_out, b_out, c.rows.start)
        assert isinstance(out, Tensor)
        return out


class DapeV2(Dape):
    """Adds to every logit a small network of all heads' logits and biases of the keys around it.

    kernel: keys that a convolution spans, odd; 3 in the paper. Others: as in Dape.
    """

    needs_whole_text = True

    def __init__(
        self, shape: ModelDims, *, width: PositiveInt, kernel: PositiveInt, **others: Any
    ) -> None:
        super().__init__(shape, width=width, **others)
        if kernel % 2 == 0:
            raise ValueError(f"kernel={kernel} must be odd")
        n, H, n_in = shape.n_layers, shape.n_heads, self.w_in.shape[-1]
        self.w_in = as_linear(n, width, n_in, kernel, fan_in=n_in * kernel)
        self.b_in = as_linear(n, width, fan_in=n_in * kernel)
        self.w_out = as_linear(n, H, width, kernel, fan_in=width * kernel)
        self.b_out = as_linear(n, H, fan_in=width * kernel)


class _Corrected(torch.autograd.Function):
    """s + b + network(s, b), by a few queries at a time, whose hidden units stay in a core's cache.

    Nor are they kept: the backward pass computes them again. w_in [width, M C] and w_out [M H,
    width] are by tap and channel; `first_row` is the first query's key.
    """

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        s: Tensor,
        bias: Tensor | None,
        w_in: Tensor,
        b_in: Tensor,
        w_out: Tensor,
        b_out: Tensor,
        first_row: int,
    ) -> Tensor:
        ctx.save_for_backward(s, bias, w_in, b_in, w_out)
        ctx.first_row, M = first_row, len(w_out) // s.shape[1]
        out = s + (b_out if bias is None else bias + b_out)
        for rows, keys in few_at_once(s, first_row):
            hidden = hidden_units(w_in, b_in, inputs(s, bias, rows, keys, M))
            add_folded_(out[:, :, rows, keys], through(w_out, hidden), M)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        s, bias, w_in, b_in, w_out = ctx.saved_tensors
        H, M, first_row = s.shape[1], len(w_out) // s.shape[1], ctx.first_row
        d_s, d_w_in, d_b_in, d_w_out = d_out.clone(), *map(torch.zeros_like, (w_in, b_in, w_out))
        d_bias = None if bias is None else d_out.sum_to_size(bias.shape).clone()
        d_b_out = (d_out if d_bias is None else d_bias).sum((0, 2, 3)).view(-1, 1, 1)
        for rows, keys in few_at_once(s, first_row):
            x, d_y = inputs(s, bias, rows, keys, M), unfolded(d_out[:, :, rows, keys], M)
            hidden = hidden_units(w_in, b_in, x)
            d_w_out.addbmm_(d_y, hidden.mT)
            d_hidden = through(w_out.T, d_y)
            slopes = torch.ops.aten.leaky_relu_backward.grad_input
            slopes(d_hidden, hidden, SLOPE, True, grad_input=d_hidden)
            d_w_in += torch.bmm(x, d_hidden.mT).sum(0).T  # in this order it is faster
            d_b_in += d_hidden.sum((0, 2))[:, None]
            d_x = s.new_zeros(len(s), w_in.shape[1] // M, rows.stop - rows.start, keys.stop)
            add_folded_(d_x, through(w_in.T, d_hidden), M)
            d_x = d_x.tril(first_row + rows.start) if M > 1 else d_x
            d_s[:, :, rows, keys] += d_x[:, :H]
            if d_bias is not None:
                shared = d_x[:, H:].sum(0) if len(d_bias) < len(s) else d_x[:, H:]
                d_bias[:, :, rows, keys] += shared
        return d_s, d_bias, d_w_in, d_b_in, d_w_out, d_b_out, None


def few_at_once(s_BHQS: Tensor, first_row: int) -> Iterator[tuple[slice, slice]]:
    """Yields queries, and the keys up to the last of them: PAIRS of both, or one query."""
    lo, Q = 0, s_BHQS.shape[2]
    at_once = s_BHQS.device.type != "cpu" or torch.compiler.is_compiling()
    while lo < Q:
        before, n_pairs = first_row + lo, PAIRS // len(s_BHQS)  # n (before + n) pairs of n queries
        n = Q if at_once else max(1, (math.isqrt(before**2 + 4 * n_pairs) - before) // 2)
        rows = slice(lo, min(lo + n, Q))
        yield rows, slice(0, first_row + rows.stop)
        lo = rows.stop


def inputs(s: Tensor, bias: Tensor | None, rows: slice, keys: slice, n_taps: int) -> Tensor:
    """Returns what the network reads of scores and biases by tap and channel, [B, M C, N]."""
    given = (s,) if bias is None else (s, bias.expand(len(s), -1, -1, -1))
    x_BCQS = torch.cat([x[:, :, rows, keys] for x in given], dim=1)
    return unfolded(
        x_BCQS.tril_(keys.stop - rows.stop + rows.start) if n_taps > 1 else x_BCQS, n_taps
    )


def hidden_units(w_in: Tensor, b_in: Tensor, x: Tensor) -> Tensor:
    return F.leaky_relu_(torch.baddbmm(b_in, w_in.expand(len(x), -1, -1), x), SLOPE)


def through(w: Tensor, x: Tensor) -> Tensor:
    return torch.bmm(w.expand(len(x), -1, -1), x)


def unfolded(x_BCQS: Tensor, n_taps: int) -> Tensor:
    """Returns what each tap of a convolution sees of the keys, [B, M C, Q (S + M // 2)].

    Keys behind the last are zeros, of which as many are seen as reach back to it.
    """
    reach, S = n_taps // 2, x_BCQS.shape[-1]
    padded = F.pad(x_BCQS, (reach, 2 * reach)) if reach else x_BCQS
    taps = [padded[..., m : m + S + reach] for m in range(n_taps)]
    return (torch.cat(taps, dim=1) if reach else padded).flatten(2)


def add_folded_(out_BCQS: Tensor, y: Tensor, n_taps: int) -> None:
    """Adds to out what `unfolded` would take from it: its adjoint."""
    (B, C, Q, S), reach = out_BCQS.shape, n_taps // 2
    for m, of_tap in enumerate(y.view(B, n_taps, C, Q, S + reach).unbind(1)):
        ahead = max(0, m - reach)
        out_BCQS[..., ahead:] += of_tap[..., max(0, reach - m) : S + reach - m]
