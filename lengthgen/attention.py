"""attend(): causal attention under a folded scheme; picks the kernel from the hooks overridden.

Queries are the last Q of S tokens. Logits are q.k / sqrt(d_head) + bias, whatever the widths of
q and k after `qk`. The causal mask is added here, to the logits, never by a part.

  plain     no hook on the matrix    SDPA; on the CPU, training: blocks of queries
  additive  bias or visible          blocks of queries with the bias of the block, never [T, T]
  relative  relative_keys, _values   the same blocks, with rows by distance through strides
  explicit  scores, weights, values  the same blocks, through the owners of these hooks

B batch, T tokens, H heads, Q queries, S keys, K head width.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import (
    create_block_mask,  # pyright: ignore[reportUnknownVariableType]
    flex_attention,
)

from lengthgen.schemes import Ctx, Layer, logits, weighted
from lengthgen.schemes.relative import Laid, by_key, by_place, laid_out, parted, spread

TRAIN_BLOCK = 128  # queries; scores of a few sequences stay in the cache of one core
EVAL_BLOCK = 1024  # queries; SDPA forms blocks of its own inside
NEAR_BLOCK = 512
EXPLICIT_BLOCK = 128
UNDERFLOW = 104.0  # exp(-104) is 0 in fp32, subnormal numbers included
SDPA_KEYS = 512  # keys that CPU SDPA takes at a time; a cut between them changes no rounding


def attend(layer: Layer, q_BHQK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, c: Ctx) -> Tensor:
    """Returns the attention output [B, H, Q, K] in v's dtype."""
    q, k, v = q_BHQK, k_BHSK, v_BHSK
    c = replace(c, acting=layer)
    on_cpu = q.device.type == "cpu"
    with torch.autocast(q.device.type, enabled=False):
        for part in layer.qk:
            q, k = part.qk(q, k, c)
        q, k = q.to(v.dtype), k.to(v.dtype)
        if layer.explicit:
            return explicit(layer, q, k, v, c, block=EXPLICIT_BLOCK)
        whole = q.shape[2] == k.shape[2]
        if on_cpu and torch.is_grad_enabled() and (layer.numbered or not layer.relative):
            return blocked(layer, q, k, v, c, block=TRAIN_BLOCK)
        if layer.relative:
            return explicit(layer, q, k, v, c, block=EXPLICIT_BLOCK)
        if layer.plain and whole and c.absent_B is None:
            return fused(q, k, v, is_causal=True, scale=c.shape.d_head**-0.5)
        if layer.toeplitz and c.absent_B is None:
            table = distance_table(layer, c)
            if on_cpu:
                reach_H = reach(table, q, k, scale=c.shape.d_head**-0.5)
                return near_keys(
                    table, q, k, v, reach_H=reach_H, scale=c.shape.d_head**-0.5, block=NEAR_BLOCK
                )
            if whole:
                return flex(table, q, k, v, scale=c.shape.d_head**-0.5, attention=_compiled_flex())
        return sdpa_by_blocks(layer, q, k, v, c, block=EVAL_BLOCK)


def explicit(
    layer: Layer, q_BHQK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, c: Ctx, *, block: int
) -> Tensor:
    """Attention as the hooks define it: the reference for every other kernel here.

    q and k have been through `qk`. Products are in their dtype, logits and softmax in c.dtype.
    Memory O(block * S).
    """
    q, k, v = q_BHQK, k_BHSK, v_BHSK
    c = _with_tables(layer, c, v.dtype)
    out: list[Tensor] = []
    for lo, hi, at in _blocks(c, q, k, block):
        q_blk, k_blk, v_blk = q[:, :, lo:hi], k[:, :, at.cols], v[:, :, at.cols]
        s = layer.scores.scores(q_blk, k_blk, at) if layer.scores else logits(q_blk, k_blk, at)
        if layer.visible or layer.weights or c.absent_B is not None:
            s = s.masked_fill(~_seen(layer, at), -math.inf)
        else:
            s = _Causal.apply(s)
            assert isinstance(s, Tensor)
        w = layer.weights.weights(s, at) if layer.weights else s.softmax(-1)
        out.append(layer.values.values(w, v_blk, at) if layer.values else weighted(w, v_blk, at))
    return torch.cat(out, dim=2).to(v.dtype)


def blocked(
    layer: Layer, q_BHQK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, c: Ctx, *, block: int
) -> Tensor:
    """Attention by blocks of queries with its own backward pass: training on a CPU."""
    c = _with_tables(layer, c, v_BHSK.dtype)
    biases: list[Tensor] = []
    if layer.bias or layer.visible or c.absent_B is not None:
        biases = [_additive(layer, at) for _, _, at in _blocks(c, q_BHQK, k_BHSK, block)]
    offset, table = c.queries_H1K, c.keys_HNK
    if offset is not None and table is not None:
        table = spread(table, k_BHSK.shape[2])
    k, near_keys = _parted(k_BHSK, table)
    v, near_values = _parted(v_BHSK, c.values_HNK)
    scale = c.shape.d_head**-0.5
    return _SavedWeights.apply(  # pyright: ignore[reportReturnType]
        q_BHQK, k, v, block, scale, offset, near_keys, near_values, *biases
    )


def fused(q_BHQK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, **how: Any) -> Tensor:
    """PyTorch's fused attention; v may be narrower than q and k.

    The fused kernel of a CPU takes one width only, and what stands in for it forms [Q, S] logits.
    """
    spare = q_BHQK.shape[-1] - v_BHSK.shape[-1]
    if spare <= 0 or q_BHQK.device.type != "cpu":
        return F.scaled_dot_product_attention(q_BHQK, k_BHSK, v_BHSK, **how)
    padded = F.pad(v_BHSK, (0, spare))
    return F.scaled_dot_product_attention(q_BHQK, k_BHSK, padded, **how)[..., :-spare]


def sdpa_by_blocks(
    layer: Layer, q_BHQK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, c: Ctx, *, block: int
) -> Tensor:
    """Fused attention by blocks of queries, each with the mask of its own rows."""
    c = replace(c, acting=layer)
    out = [
        fused(
            q_BHQK[:, :, lo:hi],
            k_BHSK[:, :, at.cols],
            v_BHSK[:, :, at.cols],
            attn_mask=_as_mask(_additive(layer, at), q_BHQK),
            scale=c.shape.d_head**-0.5,
        )
        for lo, hi, at in _blocks(c, q_BHQK, k_BHSK, block)
    ]
    return torch.cat(out, dim=2)


def distance_table(layer: Layer, c: Ctx) -> Tensor:
    """Returns the summed bias of all parts over (head, distance), [H, S] in c.dtype.

    It is the row of the last query, read backwards.
    """
    S = c.k_pos.shape[-1]
    last = slice(S - 1, S)
    at = replace(c, q_pos=c.k_pos[-1:], rows=last, cols=slice(0, S), acting=layer)
    bias = at.folded()
    assert bias is not None, "a table was asked of a layer without bias"
    return bias.expand(c.shape.n_heads, 1, S).reshape(c.shape.n_heads, S).flip(-1)


def near_keys(
    table_HS: Tensor,
    q_BHQK: Tensor,
    k_BHSK: Tensor,
    v_BHSK: Tensor,
    *,
    reach_H: Sequence[int],
    scale: float,
    block: int,
) -> Tensor:
    """Fused attention per head, of every query over its nearest keys: reach_H[h] or a few more."""
    B, H, Q, _ = q_BHQK.shape
    S = k_BHSK.shape[2]
    out = v_BHSK.new_empty(B, H, Q, v_BHSK.shape[-1])
    for h in range(H):
        # Rows run backwards, so that the mask is a view of one row of numbers: entry (i, j) depends
        # on i + j alone.
        rising = torch.cat([table_HS[h].flip(0), table_HS.new_full((block,), -math.inf)])
        for lo in range(0, Q, block):
            hi = min(lo + block, Q)
            first, last = S - Q + lo, S - Q + hi  # token indices of the block's queries
            start = max(0, first - reach_H[h] + 1) // SDPA_KEYS * SDPA_KEYS
            mask = rising.as_strided((hi - lo, last - start), (1, 1), S - last + start)
            rows = fused(
                q_BHQK[:, h : h + 1, lo:hi].flip(2),
                k_BHSK[:, h : h + 1, start:last],
                v_BHSK[:, h : h + 1, start:last],
                attn_mask=mask,
                scale=scale,
            )
            out[:, h : h + 1, lo:hi] = rows.flip(2)
    return out


def reach(table_HS: Tensor, q_BHQK: Tensor, k_BHSK: Tensor, *, scale: float) -> list[int]:
    """Returns per head the number of distances, from 0, at which a key can have any weight.

    A key at distance d has a logit of at most |q||k| scale + table[d], and the query's own key one
    of q.k scale + table[0]. Keys beyond the distance from which on the first stays UNDERFLOW below
    the second have weight 0 in fp32. Leaving them out changes no bit of the result: steep
    biases reach a few hundred keys, whatever the length.
    """
    Q, S = q_BHQK.shape[2], k_BHSK.shape[2]
    q, k = q_BHQK.float(), k_BHSK.float()
    k_max_BH1 = k.norm(dim=-1).amax(-1, keepdim=True)
    own_BHQ = (q * k[:, :, S - Q :]).sum(-1)
    excess_H = ((q.norm(dim=-1) * k_max_BH1 - own_BHQ) * scale).amax(dim=(0, 2))
    least_H = table_HS[:, 0].float() - excess_H - UNDERFLOW
    best_beyond_HS = table_HS.float().flip(-1).cummax(-1).values.flip(-1)
    negligible_HS = best_beyond_HS < least_H[:, None]  # never true of nan
    return (~negligible_HS).sum(-1).clamp(min=1).tolist()


def flex(
    table_HS: Tensor,
    q_BHQK: Tensor,
    k_BHSK: Tensor,
    v_BHSK: Tensor,
    *,
    scale: float,
    attention: Callable[..., Any],
) -> Tensor:
    """FlexAttention with a bias table over (head, distance); the table's gradient is exact."""
    length = q_BHQK.shape[2]

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + table_HS[h, (i - j).clamp(min=0)]

    def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return i >= j

    mask = create_block_mask(causal, None, None, length, length, device=q_BHQK.device)
    return attention(q_BHQK, k_BHSK, v_BHSK, score_mod=score_mod, block_mask=mask, scale=scale)


@cache
def _compiled_flex() -> Callable[..., Any]:
    return torch.compile(flex_attention)


def _blocks(c: Ctx, q_BHQK: Tensor, k_BHSK: Tensor, block: int) -> Iterator[tuple[int, int, Ctx]]:
    """Yields (first row, row after the last, context) of every block of queries.

    The block's keys are all those up to its last query.
    """
    Q, S = q_BHQK.shape[2], k_BHSK.shape[2]
    for lo in range(0, Q, block):
        hi = min(lo + block, Q)
        last = S - Q + hi
        yield (
            lo,
            hi,
            replace(
                c,
                q_pos=c.q_pos[..., lo:hi],
                k_pos=c.k_pos[..., :last],
                rows=slice(S - Q + lo, last),
                cols=slice(0, last),
            ),
        )


def _with_tables(layer: Layer, c: Ctx, dtype: torch.dtype) -> Ctx:
    """Returns the layer's context, with what its parts add to keys and values by distance."""
    c = replace(c, acting=layer)
    if layer.relative_keys:
        keys, queries = (
            hook(c)
            for hook in (layer.relative_keys.relative_keys, layer.relative_keys.relative_queries)
        )
        c = replace(
            c,
            keys_HNK=None if keys is None else keys.to(dtype),
            queries_H1K=None if queries is None else queries.to(dtype),
        )
    if layer.relative_values:
        values = layer.relative_values.relative_values(c)
        c = replace(c, values_HNK=None if values is None else values.to(dtype))
    return c


def _parted(x_BHSK: Tensor, table_HNK: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Returns keys or values with what all distances share, and the rows of the near ones."""
    if table_HNK is None:
        return x_BHSK, None
    near_HNK, far_H1K = parted(table_HNK, x_BHSK.shape[2])
    return (x_BHSK if far_H1K is None else x_BHSK + far_H1K), near_HNK


def _seen(layer: Layer, c: Ctx) -> Tensor:
    """Returns which keys of the block a query sees: none later, none hidden, none absent.

    bool [Q, S], or [B, 1, Q, S] if sequences differ.
    """
    device = c.q_pos.device
    i = torch.arange(c.rows.start, c.rows.stop, device=device)
    j = torch.arange(c.cols.start, c.cols.stop, device=device)
    seen = i[:, None] >= j
    if c.absent_B is not None:
        seen = seen & (j >= c.absent_B[:, None, None, None])
    for part in layer.visible:
        visible = part.visible(c)
        seen = seen if visible is None else seen & visible
    return seen


def _additive(layer: Layer, c: Ctx) -> Tensor:
    """Returns everything that is added to the logits of the block, in c.dtype."""
    bias, seen = c.folded(), _seen(layer, c)
    if bias is None:
        bias = torch.zeros(seen.shape, device=seen.device, dtype=c.dtype)
    return bias.masked_fill(~seen, -math.inf)


def _as_mask(bias: Tensor, q_BHQK: Tensor) -> Tensor:
    """Returns the bias in the type that SDPA takes beside q: fp32 on a CPU, q's own elsewhere.

    A mask of three dimensions would make SDPA on a CPU form all logits.
    """
    bias = bias[None] if bias.dim() == 3 else bias
    return bias if q_BHQK.device.type == "cpu" else bias.to(q_BHQK.dtype)


class _Causal(torch.autograd.Function):
    """Hides the keys behind each query, the last of which is the last key; before a softmax.

    masked_fill with a mask that broadcasts is slow on a CPU, forward and backward; this touches the
    diagonal square alone. The gradient passes unchanged: a softmax has 0 where its weight is 0.
    """

    @staticmethod
    def forward(ctx: Any, s_BHQS: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        n, S = s_BHQS.shape[-2:]
        later = torch.ones(n, n - 1, dtype=torch.bool, device=s_BHQS.device).triu()
        out = s_BHQS.clone()
        out[..., S - n + 1 :].masked_fill_(later, -math.inf)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return d_out


class _SavedWeights(torch.autograd.Function):
    """softmax(q k^T scale + bias) v by blocks of queries; the weights are kept for the backward.

    Against autograd over the same loop: no fp32 copy of the weights, no zero-padded gradients of k
    and v, and the causal mask touches the diagonal square of a block only. The softmax sums in
    fp32. Biases are one tensor per block, [H, Q, S] or [B, H, Q, S], with the mask in it. Rows that
    are added to keys and values by distance are [H, N, K]: see schemes/relative.py.
    """

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        block: int,
        scale: float,
        offset: Tensor | None,
        near_keys: Tensor | None,
        near_values: Tensor | None,
        *biases: Tensor,
    ) -> Tensor:
        B, H, Q, _ = q.shape
        S, before = k.shape[2], k.shape[2] - Q
        q3, k3, v3 = (q * scale).flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
        near_q3 = q3 if offset is None else ((q + offset) * scale).flatten(0, 1)
        out = v3.new_empty(B * H, Q, v.shape[-1])
        later = q.new_full((block, block), -math.inf).triu(1)
        saved: list[Tensor] = []
        for n, lo in enumerate(range(0, Q, block)):
            hi = min(lo + block, Q)
            last = before + hi
            s = torch.bmm(q3[:, lo:hi], k3[:, :last].transpose(1, 2))
            if near_keys is not None:
                rows, n_near = _laid(near_keys, (B, H), hi - lo, last)
                places = torch.bmm(near_q3[:, lo:hi], rows.transpose(1, 2))
                s[:, :, last - n_near :] += by_key(places, n_near)
            if biases:
                with_bias = torch.add(s.view(B, H, hi - lo, last), biases[n])
                w = with_bias.softmax(-1).to(q.dtype).view(B * H, hi - lo, last)
            else:
                s[:, :, last - (hi - lo) :] += later[: hi - lo, : hi - lo]
                w = s.softmax(-1)
            out[:, lo:hi] = torch.bmm(w, v3[:, :last])
            if near_values is not None:
                rows, n_near = _laid(near_values, (B, H), hi - lo, last)
                places = by_place(w[:, :, last - n_near :], rows.shape[1])
                out[:, lo:hi].baddbmm_(places, rows)
            saved.append(w)
        ctx.save_for_backward(q3, near_q3, k3, v3, near_keys, near_values, *saved)
        ctx.has_offset = offset is not None
        ctx.block, ctx.scale, ctx.sizes = block, scale, (B, H, Q, S)
        ctx.bias_shapes = [bias.shape for bias in biases]
        return out.view(B, H, Q, -1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        q3, near_q3, k3, v3, near_keys, near_values, *saved = ctx.saved_tensors
        B, H, Q, S = ctx.sizes
        d_out = d_out.flatten(0, 1)
        dq, dk, dv = torch.empty_like(q3), torch.zeros_like(k3), torch.zeros_like(v3)
        d_near_keys, d_near_values = (
            None if near is None else torch.zeros_like(near, dtype=_wide(near))
            for near in (near_keys, near_values)
        )
        near_dq = torch.empty_like(q3) if d_near_keys is not None else dq
        d_biases: list[Tensor | None] = []
        for n, lo in enumerate(range(0, Q, ctx.block)):
            hi = min(lo + ctx.block, Q)
            last = S - Q + hi
            w, d_rows = saved[n], d_out[:, lo:hi]
            dv[:, :last].baddbmm_(w.transpose(1, 2), d_rows)
            dw = torch.bmm(d_rows, v3[:, :last].transpose(1, 2))
            if d_near_values is not None:
                rows, n_near = _laid(near_values, (B, H), hi - lo, last)
                dw[:, :, last - n_near :] += by_key(torch.bmm(d_rows, rows.transpose(1, 2)), n_near)
                places = by_place(w[:, :, last - n_near :], rows.shape[1])
                _add_rows(d_near_values, torch.bmm(places.transpose(1, 2), d_rows), (B, H), n_near)
            ds = torch.ops.aten._softmax_backward_data(dw, w, -1, w.dtype)
            dq[:, lo:hi] = torch.bmm(ds, k3[:, :last])
            dk[:, :last].baddbmm_(ds.transpose(1, 2), q3[:, lo:hi])
            if d_near_keys is not None:
                rows, n_near = _laid(near_keys, (B, H), hi - lo, last)
                places = by_place(ds[:, :, last - n_near :], rows.shape[1])
                torch.bmm(places, rows, out=near_dq[:, lo:hi])
                d_rows = torch.bmm(places.transpose(1, 2), near_q3[:, lo:hi])
                _add_rows(d_near_keys, d_rows, (B, H), n_near)
            if ctx.bias_shapes:
                d_biases.append(
                    _bias_gradient(ds.view(B, H, hi - lo, last), ctx.bias_shapes[n])
                    if ctx.needs_input_grad[8 + n]
                    else None
                )
        d_offset = None
        if d_near_keys is not None:
            dq += near_dq
        if ctx.has_offset:
            wide = near_dq.view(B, H, Q, -1).sum((0, 2), dtype=_wide(near_dq)) * ctx.scale
            d_offset = wide[:, None].to(q3.dtype)
        dq.mul_(ctx.scale)
        shapes = [(dq, Q), (dk, S), (dv, S)]
        tables = (
            None if d is None else d.to(near.dtype)
            for d, near in ((d_near_keys, near_keys), (d_near_values, near_values))
        )
        by_input = (x.view(B, H, n, -1) for x, n in shapes)
        return *by_input, None, None, d_offset, *tables, *d_biases


def _laid(near_HNK: Tensor, heads: tuple[int, int], queries: int, keys: int) -> Laid:
    """Returns the rows of a block for B sequences of H heads each, [BH, W, K]."""
    rows_HWK, n_near = laid_out(near_HNK, queries=queries, keys=keys)
    return Laid(rows_HWK.expand(*heads, -1, -1).flatten(0, 1), n_near)


def _add_rows(d_near_HNK: Tensor, d_rows: Tensor, heads: tuple[int, int], n_near: int) -> None:
    """Adds the gradient of a block's rows, [BH, W, K], to that of the table they come from."""
    d_HWK = d_rows.unflatten(0, heads).sum(0, dtype=d_near_HNK.dtype)
    d_HWK = d_HWK.sum_to_size(len(d_near_HNK), *d_HWK.shape[1:])
    n = min(d_near_HNK.shape[1], n_near)
    d_near_HNK[:, :n] += d_HWK[:, n_near - n : n_near].flip(1)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(torch.float32, x.dtype)


def _bias_gradient(ds_BHQS: Tensor, shape: torch.Size) -> Tensor:
    """Returns the gradient of a bias of the given shape: summed over what it is shared by."""
    dtype = torch.promote_types(torch.float32, ds_BHQS.dtype)
    ds = ds_BHQS.sum(0, dtype=dtype) if len(shape) == 3 else ds_BHQS.to(dtype)
    return ds.sum_to_size(shape)
