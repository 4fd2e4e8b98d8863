"""attend(): attention under a scheme; picks the kernel from the hooks overridden.

Queries are the last Q of S tokens, but in an encoder and across to it. Logits are
q.k / sqrt(d_head) + bias, whatever the widths of q and k after `qk`. The causal mask is added here,
to the logits, never by a part.

  plain     no hook on the matrix    SDPA; on the CPU, training: blocks of queries
  additive  bias or visible          blocks of queries with the bias of the block, never [T, T]
  toeplitz  bias of distance alone   additive; CPU, evaluation: SDPA over the nearest keys;
                                     CUDA: FlexAttention over a table of distances
  relative  relative_keys, _values   the same blocks, with rows by distance through strides
  eager     scores, weights, values  the same blocks, through the owners of these hooks
  dense     no causal mask: encoder  the same blocks, each with all keys

B batch, T tokens, H heads, Q queries, S keys, K head width.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lengthgen.model.kernels import (
    Causal,
    SavedWeights,
    flex,
    flex_kernel,
    flex_takes,
    fused,
    hide_later_,
    max_attended_distance,
    sdpa_nearest_keys,
)
from lengthgen.schemes import AttentionContext, LayerHooks, logits, through_qk, weighted
from lengthgen.schemes.relative_shift import extend_table, split_clipped

TRAIN_BLOCK = 128  # queries; scores of a few sequences stay in the cache of one core
BIAS_BLOCK = 128  # queries; their biases stay in the caches between the passes over them
EVAL_BLOCK = 1024  # queries; SDPA forms blocks of its own inside
NEAR_BLOCK = 512
EAGER_BLOCK = 128


def attend(
    layer: LayerHooks, q_BHQK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, c: AttentionContext
) -> Tensor:
    """Returns the attention output [B, H, Q, K] in v's dtype."""
    q, k, v = q_BHQK, k_BHSK, v_BHSK
    c = replace(c, hooks=layer)
    on_cpu = q.device.type == "cpu"
    with torch.autocast(q.device.type, enabled=False):
        q, k = through_qk(layer.qk, q, k, c)
        if not c.shape.causal:
            return dense(q, k, v, c, block=EVAL_BLOCK)
        if layer.eager:
            return eager(layer, q, k, v, c, block=EAGER_BLOCK)
        whole = q.shape[2] == k.shape[2]
        if on_cpu and torch.is_grad_enabled() and (layer.contiguous or not layer.relative):
            return blocked(layer, q, k, v, c, block=TRAIN_BLOCK)
        if layer.relative:
            return eager(layer, q, k, v, c, block=EAGER_BLOCK)
        if layer.vanilla and whole and c.key_padding_BS is None:
            return fused(q, k, v, is_causal=True, scale=c.shape.d_head**-0.5)
        if layer.toeplitz and c.key_padding_BS is None:
            table, scale = distance_table(layer, c), c.shape.d_head**-0.5
            if on_cpu:
                reach_H = max_attended_distance(table, q, k, scale=scale)
                return sdpa_nearest_keys(
                    table, q, k, v, reach_H=reach_H, scale=scale, block=NEAR_BLOCK
                )
            if whole and flex_takes(q, v):
                return flex(table, q, k, v, scale=scale, attention=flex_kernel())
        block = NEAR_BLOCK if layer.visible else EVAL_BLOCK
        if on_cpu and layer.bias and not layer.visible:
            block = BIAS_BLOCK
        return sdpa_by_blocks(layer, q, k, v, c, block=block)


def dense(
    q_BHQK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, c: AttentionContext, *, block: int
) -> Tensor:
    """Attention to all keys that hold a token, within a text or across to another.

    For `bidirectional` parts, which own neither logits nor weights. Memory O(block * S), with
    gradients O(Q * S).
    """
    out: list[Tensor] = []
    for lo in range(0, q_BHQK.shape[2], block):
        hi = min(lo + block, q_BHQK.shape[2])
        at = replace(c, q_pos=c.q_pos[..., lo:hi], rows=slice(lo, hi))
        s = logits(q_BHQK[:, :, lo:hi], k_BHSK, at)
        if c.key_padding_BS is not None:
            s = s.masked_fill(c.key_padding_BS[:, None, None], -math.inf)
        out.append(weighted(s.softmax(-1), v_BHSK, at))
    return torch.cat(out, dim=2).to(v_BHSK.dtype)


def eager(
    layer: LayerHooks,
    q_BHQK: Tensor,
    k_BHSK: Tensor,
    v_BHSK: Tensor,
    c: AttentionContext,
    *,
    block: int,
) -> Tensor:
    """Attention as the hooks define it: the reference for every other kernel here.

    q and k have been through `qk`. Products are in their dtype, logits and softmax in c.dtype.
    Memory O(block * S).
    """
    q, k, v = q_BHQK, k_BHSK.contiguous(), v_BHSK.contiguous()  # each block reads them
    c = _with_tables(layer, c, v.dtype)
    out: list[Tensor] = []
    # The last block, which has the most keys, comes first: what it frees has room for the others.
    for lo, hi, at in reversed(list(_blocks(c, q, k, block))):
        q_blk, k_blk, v_blk = q[:, :, lo:hi], k[:, :, at.cols], v[:, :, at.cols]
        s = layer.scores.scores(q_blk, k_blk, at) if layer.scores else logits(q_blk, k_blk, at)
        if layer.visible or layer.weights or c.key_padding_BS is not None:
            s = s.masked_fill(~_seen(layer, at), -math.inf)
        elif torch.is_grad_enabled():
            s = Causal.apply(s)
            assert isinstance(s, Tensor)
        else:
            hide_later_(s)
        w = layer.weights.weights(s, at) if layer.weights else s.softmax(-1)
        out.append(layer.values.values(w, v_blk, at) if layer.values else weighted(w, v_blk, at))
    return torch.cat(out[::-1], dim=2).to(v.dtype)


def blocked(
    layer: LayerHooks,
    q_BHQK: Tensor,
    k_BHSK: Tensor,
    v_BHSK: Tensor,
    c: AttentionContext,
    *,
    block: int,
) -> Tensor:
    """Attention by blocks of queries with its own backward pass: training on a CPU."""
    c = _with_tables(layer, c, v_BHSK.dtype)
    biases: list[Tensor] = []
    if layer.bias or layer.visible or c.key_padding_BS is not None:
        biases = [_additive(layer, at) for _, _, at in _blocks(c, q_BHQK, k_BHSK, block)]
    offset, table = c.queries_H1K, c.keys_HNK
    if offset is not None and table is not None:
        table = extend_table(table, k_BHSK.shape[2])
    k, key_rows = (k_BHSK, None) if table is None else split_clipped(k_BHSK, table)
    v, value_rows = (v_BHSK, None) if c.values_HNK is None else split_clipped(v_BHSK, c.values_HNK)
    scale = c.shape.d_head**-0.5
    return SavedWeights.apply(  # pyright: ignore[reportReturnType]
        q_BHQK, k, v, block, scale, offset, key_rows, value_rows, *biases
    )


def sdpa_by_blocks(
    layer: LayerHooks,
    q_BHQK: Tensor,
    k_BHSK: Tensor,
    v_BHSK: Tensor,
    c: AttentionContext,
    *,
    block: int,
) -> Tensor:
    """Fused attention by blocks of queries, each with the mask of its own rows.

    Keys that no query of a block sees are left out of it: a window costs what it holds.
    """
    c = replace(c, hooks=layer)
    by_distance = layer.contiguous and all(part.distance_only for part in layer.bias)
    table = distance_table(layer, c) if layer.bias and by_distance else None
    out: list[Tensor] = []
    for lo, hi, at in reversed(list(_blocks(c, q_BHQK, k_BHSK, block))):  # as in eager()
        k_blk, v_blk = k_BHSK[:, :, at.cols], v_BHSK[:, :, at.cols]
        if layer.visible:
            seen = _seen(layer, at)
            kept = seen.flatten(0, -2).any(0).nonzero().squeeze(-1)
            if 2 * len(kept) < seen.shape[-1]:
                k_blk, v_blk = k_blk[:, :, kept], v_blk[:, :, kept]
                added = _masked(_of_kept(at, table, kept), seen[..., kept], at)
            else:
                added = _masked(at.total_bias(), seen, at)
        else:
            added = _additive(layer, at)
        mask = _as_mask(added, q_BHQK)
        q_blk = q_BHQK[:, :, lo:hi]
        out.append(fused(q_blk, k_blk, v_blk, attn_mask=mask, scale=c.shape.d_head**-0.5))
    return torch.cat(out[::-1], dim=2)


def _of_kept(c: AttentionContext, table_HS: Tensor | None, kept: Tensor) -> Tensor | None:
    """Returns the bias of the kept keys, from the table over distances if there is one."""
    if table_HS is None:
        bias = c.total_bias()
        return None if bias is None else bias.expand(*bias.shape[:-1], c.cols.stop)[..., kept]
    i = torch.arange(c.rows.start, c.rows.stop, device=kept.device)
    return table_HS[:, (i[:, None] - kept).clamp(min=0)]


def _masked(bias: Tensor | None, seen: Tensor, c: AttentionContext) -> Tensor:
    if bias is None:
        bias = torch.zeros(seen.shape, device=seen.device, dtype=c.dtype)
    return bias.masked_fill(~seen, -math.inf)


def distance_table(layer: LayerHooks, c: AttentionContext) -> Tensor:
    """Returns the summed bias of all parts over (head, distance), [H, S] in c.dtype.

    It is the row of the last query, read backwards.
    """
    S = c.k_pos.shape[-1]
    last = slice(S - 1, S)
    at = replace(c, q_pos=c.k_pos[-1:], rows=last, cols=slice(0, S), hooks=layer)
    bias = at.total_bias()
    assert bias is not None, "a table needs a layer with a bias"
    return bias.expand(c.shape.n_heads, 1, S).reshape(c.shape.n_heads, S).flip(-1)


def _blocks(
    c: AttentionContext, q_BHQK: Tensor, k_BHSK: Tensor, block: int
) -> Iterator[tuple[int, int, AttentionContext]]:
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


def _with_tables(layer: LayerHooks, c: AttentionContext, dtype: torch.dtype) -> AttentionContext:
    """Returns the layer's context, with what its parts add to keys and values by distance."""
    c = replace(c, hooks=layer)
    made: dict[str, Tensor | None] = {}
    if layer.relative_keys:
        made["keys_HNK"] = layer.relative_keys.relative_keys(c)
        made["queries_H1K"] = layer.relative_keys.relative_queries(c)
    if layer.relative_values:
        made["values_HNK"] = layer.relative_values.relative_values(c)
    tables: dict[str, Any] = {name: x if x is None else x.to(dtype) for name, x in made.items()}
    return replace(c, **tables)


def _seen(layer: LayerHooks, c: AttentionContext) -> Tensor:
    """Returns which keys of the block a query sees: none later, none hidden, none absent.

    bool [Q, S], or [B, 1, Q, S] if sequences differ.
    """
    device = c.q_pos.device
    i = torch.arange(c.rows.start, c.rows.stop, device=device)
    j = torch.arange(c.cols.start, c.cols.stop, device=device)
    seen = i[:, None] >= j
    if c.key_padding_BS is not None:
        seen = seen & ~c.key_padding_BS[:, None, None, c.cols]
    for part in layer.visible:
        visible = part.visible(c)
        seen = seen if visible is None else seen & visible
    return seen


def _additive(layer: LayerHooks, c: AttentionContext) -> Tensor:
    """Returns everything that is added to the logits of the block, in c.dtype."""
    if layer.visible or c.key_padding_BS is not None:
        return _masked(c.total_bias(), _seen(layer, c), c)
    bias = c.total_bias()
    if bias is None:
        bias = torch.zeros((), device=c.q_pos.device, dtype=c.dtype)
    size = c.rows.stop - c.rows.start, c.cols.stop - c.cols.start
    return Causal.apply(bias.expand(*bias.shape[:-2], *size))  # pyright: ignore[reportReturnType]


def _as_mask(bias: Tensor, q_BHQK: Tensor) -> Tensor:
    """Returns the bias in the type that SDPA takes next to q: fp32 on a CPU, q's own elsewhere.

    A mask of three dimensions would make SDPA on a CPU form all logits.
    """
    bias = bias[None] if bias.dim() == 3 else bias
    return bias if q_BHQK.device.type == "cpu" else bias.to(q_BHQK.dtype)
