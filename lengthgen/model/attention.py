"""attend(): attention under a scheme; picks the kernel from the hooks overridden.

Queries are the last Q of S tokens, but in an encoder and across to it. Logits are
q.k / sqrt(d_head) + bias, whatever the widths of q and k after `qk`. The causal mask is added here,
to the logits, never by a part.

  plain     no hook on the matrix    SDPA; on the CPU, training: blocks of queries
  row       bias alone, one query    SDPA with all keys
  additive  bias or visible          blocks of queries with the bias of the block, never [T, T]
  toeplitz  bias of distance alone   additive; CPU, evaluation: SDPA over the nearest keys;
                                     CUDA, training: FlexAttention over a table
  relative  relative_keys, _values   the same blocks, with rows by distance through strides
  remapped  branches of a Remap      CPU, evaluation: SDPA of each branch, merged
  recurrent scores and weights       of one part, as a recurrence over the tokens
  eager     scores, weights, values  the same blocks, through the owners of these hooks;
                                     in an encoder, each block with all keys

B batch, T tokens, H heads, Q queries, S keys, K head width.
"""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lengthgen.model.kernels import (
    Causal,
    CausalDistances,
    SavedWeights,
    flex,
    flex_takes,
    fused,
    fused_with_logsumexp,
    hide_later_,
    max_attended_distance,
    sdpa_nearest_keys,
)
from lengthgen.schemes import AttentionContext, Part, Unfit, logits, through_qk, weighted
from lengthgen.schemes.remap import Remap

BLOCK = 128  # queries; scores or biases of a few sequences stay in the caches of one core
NEAR_BLOCK = 512
EVAL_BLOCK = 1024  # queries; SDPA forms blocks of its own inside
MPS_KEYS = 4096
LONG = 65_536  # keys, of more of which biases of EVAL_BLOCK queries would fill a GPU


def attend(q_BHQK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, c: AttentionContext) -> Tensor:
    """Returns the attention output under c.hooks, [B, H, Q, K] in v's dtype."""
    layer, on_cpu, v = c.hooks, q_BHQK.device.type == "cpu", v_BHSK
    on_gpu = q_BHQK.device.type == "cuda"  # which waits for launches: more queries at a time
    few = BLOCK if not on_gpu or torch.is_grad_enabled() or k_BHSK.shape[2] > LONG else EVAL_BLOCK
    with torch.autocast(q_BHQK.device.type, enabled=False):
        q, k = through_qk(layer.qk, q_BHQK, k_BHSK, c)
        if not c.shape.causal:
            return eager(q, k, v, c, block=EVAL_BLOCK)
        if layer.eager:
            if layer.recurrence and c.key_padding_BS is None:
                return layer.recurrence.recurrence(q, k, v, c)
            others = (layer.weights, layer.values, layer.relative_keys, layer.relative_values)
            alone = not any(others)
            if on_cpu and alone and isinstance(layer.scores, Remap) and not torch.is_grad_enabled():
                return sdpa_by_branches(q, k, v, c, layer.scores)
            return eager(q, k, v, c, block=few)
        if on_cpu and torch.is_grad_enabled():
            return blocked(q, k, v, c)
        is_whole, scale = q.shape[2] == k.shape[2], c.shape.d_head**-0.5
        if q.shape[2] == 1 and not layer.visible and c.key_padding_BS is None:
            return fused(q, k, v, attn_mask=c.total_bias(), scale=scale)  # it sees all keys
        # At most widths of heads MPS forms all logits: not of thousands of keys.
        is_whole &= on_cpu or on_gpu or torch.is_grad_enabled() or k.shape[2] <= MPS_KEYS
        if not (layer.bias or layer.visible) and is_whole and c.key_padding_BS is None:
            return fused(q, k, v, is_causal=True, scale=scale)
        if layer.toeplitz and c.key_padding_BS is None:
            table = distance_table(c)
            if on_cpu:
                reach_H = max_attended_distance(table, q, k, scale=scale)
                return sdpa_nearest_keys(
                    table, q, k, v, reach_H=reach_H, scale=scale, block=NEAR_BLOCK
                )
            if is_whole and flex_takes(q, v):
                return flex(table, q, k, v, scale=scale)
        block = BLOCK if layer.bias and (on_cpu or k.shape[2] > LONG) else EVAL_BLOCK
        return sdpa_by_blocks(q, k, v, c, block=NEAR_BLOCK if layer.visible else block)


def eager(
    q_BHQK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, c: AttentionContext, *, block: int = BLOCK
) -> Tensor:
    """Attention as the hooks define it: the reference for every other kernel here.

    q and k have been through `qk`. Products are in their dtype, logits and softmax in c.dtype.
    Memory O(block * S).
    """
    layer, q, k, v = c.hooks, q_BHQK, k_BHSK, v_BHSK
    c = replace(
        c,
        keys_HNK=_table(layer.relative_keys, "relative_keys", c, v.dtype),
        queries_H1K=_table(layer.relative_keys, "relative_queries", c, v.dtype),
        values_HNK=_table(layer.relative_values, "relative_values", c, v.dtype),
    )
    if c.shape.causal:  # in an encoder one block is the rule
        k, v = k.contiguous(), v.contiguous()  # each block reads them
    out: list[Tensor] = []
    # The last block, which has the most keys, comes first: what it frees has room for the others.
    for queries, at in reversed(_blocks(c, q, k, block)):
        q_blk, k_blk, v_blk = q[:, :, queries], k[:, :, at.cols], v[:, :, at.cols]
        s = layer.scores.scores(q_blk, k_blk, at) if layer.scores else logits(q_blk, k_blk, at)
        if layer.visible or layer.weights or c.key_padding_BS is not None:
            s = s.masked_fill(~_seen(at), -math.inf)
        elif c.shape.causal and torch.is_grad_enabled():
            s = Causal.apply(s)
            assert isinstance(s, Tensor)
        elif c.shape.causal:
            hide_later_(s)
        w = layer.weights.weights(s, at) if layer.weights else s.softmax(-1)
        out.append(layer.values.values(w, v_blk, at) if layer.values else weighted(w, v_blk, at))
    return torch.cat(out[::-1], dim=2).to(v.dtype)


def blocked(
    q_BHQK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, c: AttentionContext, *, block: int = BLOCK
) -> Tensor:
    """Attention by blocks of queries with its own backward pass: training on a CPU."""
    biases: list[Any] = []
    if c.hooks.toeplitz and c.key_padding_BS is None:
        table_HS = distance_table(c)
        for queries, at in _blocks(c, q_BHQK, k_BHSK, block):
            of_keys, n = table_HS[:, : at.cols.stop], queries.stop - queries.start
            biases.append(CausalDistances.apply(of_keys, n))
    elif c.hooks.bias or c.hooks.visible or c.key_padding_BS is not None:
        biases = [_additive(at) for _, at in _blocks(c, q_BHQK, k_BHSK, block)]
    scale = c.shape.d_head**-0.5
    out = SavedWeights.apply(q_BHQK, k_BHSK, v_BHSK, block, scale, *biases)
    return out  # pyright: ignore[reportReturnType]


def sdpa_by_blocks(
    q_BHQK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, c: AttentionContext, *, block: int = BLOCK
) -> Tensor:
    """Fused attention by blocks of queries, each with the mask of its own rows.

    Keys that no query of a block sees are left out of it: a window costs what it holds.
    """
    layer = c.hooks
    out: list[Tensor] = []  # list[Tensor]() would end a graph of torch.compile
    by_distance = layer.contiguous and all(part.distance_only for part in layer.bias)
    table = distance_table(c) if layer.bias and by_distance else None
    for queries, at in reversed(_blocks(c, q_BHQK, k_BHSK, block)):  # as in eager()
        k_blk, v_blk = k_BHSK[:, :, at.cols], v_BHSK[:, :, at.cols]
        if layer.visible:
            seen, kept = _seen(at), None
            if not torch.compiler.is_compiling():  # a graph ends where values decide a shape
                kept = seen.flatten(0, -2).any(0).nonzero().squeeze(-1)
            if kept is not None and 2 * len(kept) < seen.shape[-1]:
                k_blk, v_blk, seen = k_blk[:, :, kept], v_blk[:, :, kept], seen[..., kept]
                bias = _bias_of(kept, at, table)
            else:
                bias = _bias(at)
            added = bias.masked_fill(~seen, -math.inf)
        else:
            added = _additive(at)
        q_blk, scale = q_BHQK[:, :, queries], c.shape.d_head**-0.5
        out.append(fused(q_blk, k_blk, v_blk, attn_mask=added, scale=scale))
    return torch.cat(out[::-1], dim=2)


def sdpa_by_branches(
    q_BHQK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, c: AttentionContext, remap: Remap
) -> Tensor:
    """Fused attention of each branch by blocks of queries, merged by the branches' logsumexp."""
    out: list[Tensor] = []
    for queries, at in reversed(_blocks(c, q_BHQK, k_BHSK, NEAR_BLOCK)):  # as in eager()
        bias, scale = _bias(at), c.shape.d_head**-0.5
        results: list[Tensor] = []
        totals: list[Tensor] = []
        for q, k, used, keys in remap.rotated(q_BHQK[:, :, queries], k_BHSK, at, _seen(at)):
            added = (bias[..., keys] if bias.dim() else bias).masked_fill(~used, -math.inf)
            added = added[(None,) * (4 - added.dim())]
            result, total = fused_with_logsumexp(q, k, v_BHSK[:, :, keys], added, scale=scale)
            results.append(result)
            totals.append(total.masked_fill(~used.any(-1), -math.inf))
        share = torch.stack(totals).softmax(0)[..., None]
        out.append((share * torch.stack(results)).sum(0).to(v_BHSK.dtype))
    return torch.cat(out[::-1], dim=2)


def distance_table(c: AttentionContext) -> Tensor:
    """Returns the summed bias of all parts over (head, distance), [H, S] in c.dtype.

    It is the row of the last query, read backwards.
    """
    S = c.k_pos.shape[-1]
    last = replace(c, q_pos=c.k_pos[-1:], rows=slice(S - 1, S), cols=slice(0, S))
    return _bias(last).expand(c.shape.n_heads, 1, S).reshape(c.shape.n_heads, S).flip(-1)


def _blocks(
    c: AttentionContext, q_BHQK: Tensor, k_BHSK: Tensor, block: int
) -> list[tuple[slice, AttentionContext]]:
    """Returns the rows of q, and the context, of every block of queries.

    The block's keys are all those up to its last query; in an encoder, all.
    """
    Q, S = q_BHQK.shape[2], k_BHSK.shape[2]
    divided: list[tuple[slice, AttentionContext]] = []
    for lo in range(0, Q, block):
        queries = slice(lo, min(lo + block, Q))
        rows = slice(S - Q + lo, S - Q + queries.stop)
        cols = slice(0, rows.stop if c.shape.causal else S)
        pos = {"q_pos": c.q_pos[..., queries], "k_pos": c.k_pos[..., cols]}
        divided.append((queries, replace(c, **pos, rows=rows, cols=cols)))
    return divided


def _table(part: Part | None, hook: str, c: AttentionContext, dtype: torch.dtype) -> Tensor | None:
    """Returns what the hook of a part returns. Raises Unfit for another shape."""
    H, K, N = c.shape.n_heads, c.shape.d_head, "1" if hook == "relative_queries" else "N"
    if part is None or ((x := getattr(part, hook)(c)) is None and N == "1"):
        return None
    fits = torch.is_tensor(x) and x.dim() == 3 and x.shape[0] in (1, H) and x.shape[2] == K
    if x is None or not fits or (N == "1" and x.shape[1] != 1):
        expected = f"a tensor [H, {N}, K] or [1, {N}, K]; here H = {H}, K = {K}"
        raise Unfit(part, hook, x, expected)
    return x.to(dtype)


def _seen(c: AttentionContext) -> Tensor:
    """Returns which keys of the block a query sees: none later, none hidden, none absent.

    bool [Q, S], [H, Q, S] if heads differ, [B, 1 or H, Q, S] if sequences do.
    """
    device = c.q_pos.device
    i = torch.arange(c.rows.start, c.rows.stop, device=device)
    j = torch.arange(c.cols.start, c.cols.stop, device=device)
    seen = i[:, None] >= j if c.shape.causal else torch.ones_like(j, dtype=torch.bool)
    if c.key_padding_BS is not None:
        seen = seen & ~c.key_padding_BS[:, None, None, c.cols]
    for part in c.hooks.visible:
        visible = part.visible(c)
        if not isinstance(visible, Tensor) or visible.dtype != torch.bool:
            raise Unfit(
                part, "visible", visible, "a bool tensor [Q, S], [H, Q, S] or [B, 1 or H, Q, S]"
            )
        seen = seen & visible
    return seen


def _bias(c: AttentionContext) -> Tensor:
    """Returns the block's bias of all parts in c.dtype; 0 if none has one."""
    bias = c.total_bias()
    return torch.zeros((), device=c.q_pos.device, dtype=c.dtype) if bias is None else bias


def _bias_of(kept: Tensor, c: AttentionContext, table_HS: Tensor | None) -> Tensor:
    """Returns the bias of the kept keys, from the table over distances if there is one."""
    if table_HS is None:
        bias = _bias(c)
        return bias.expand(*bias.shape[:-1], c.cols.stop)[..., kept]
    i = torch.arange(c.rows.start, c.rows.stop, device=kept.device)
    return table_HS[:, (i[:, None] - kept).clamp(min=0)]


def _additive(c: AttentionContext) -> Tensor:
    """Returns everything that is added to the logits of the block, in c.dtype."""
    bias = _bias(c)
    if c.hooks.visible or c.key_padding_BS is not None:
        return bias.masked_fill(~_seen(c), -math.inf)
    size = c.rows.stop - c.rows.start, c.cols.stop - c.cols.start
    return Causal.apply(bias.expand(*bias.shape[:-2], *size))  # pyright: ignore[reportReturnType]
