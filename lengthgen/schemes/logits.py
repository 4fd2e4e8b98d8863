"""Logits and outputs of a block as most schemes have them: products, rows by distance, biases.

B batch, H heads, Q queries, S keys, K head width, N distances, M keys that are near, W = M + Q - 1.
"""

from typing import TYPE_CHECKING

from torch import Tensor

from lengthgen.schemes.relative_shift import (
    at_distance,
    extend_table,
    pad_table,
    skew,
    split_clipped,
    to_distance,
    unskew,
)

if TYPE_CHECKING:
    from lengthgen.schemes.base import AttentionContext


def logits(q_BHQK: Tensor, k_BHSK: Tensor, c: "AttentionContext") -> Tensor:
    """Returns the block's products and all biases, [B, H, Q, S] in c.dtype."""
    s_BHQS, bias = products(q_BHQK, k_BHSK, c), c.total_bias()
    return s_BHQS if bias is None else s_BHQS.add_(bias)


def products(q_BHQK: Tensor, k_BHSK: Tensor, c: "AttentionContext") -> Tensor:
    """Returns q.k / sqrt(d_head), k with its row by distance: [B, H, Q, S] in c.dtype."""
    Q, S, scale = q_BHQK.shape[2], k_BHSK.shape[2], c.shape.d_head**-0.5
    q_BHQK, table_HNK = q_BHQK * scale, c.keys_HNK
    if table_HNK is None:
        s_BHQS = q_BHQK @ k_BHSK.transpose(-1, -2)
    else:
        other_BHQK = q_BHQK
        if c.queries_H1K is not None:
            other_BHQK, table_HNK = q_BHQK + c.queries_H1K * scale, extend_table(table_HNK, S)
        if not c.acting.contiguous:
            added = at_distance(other_BHQK, table_HNK, c.exact_distance())
            n_near = S
        else:
            k_BHSK, near_HNK = split_clipped(k_BHSK, table_HNK)
            rows_HWK, n_near = pad_table(near_HNK, queries=Q, keys=S)
            added = skew((other_BHQK @ rows_HWK.transpose(-1, -2)).contiguous(), n_near)
        s_BHQS = q_BHQK @ k_BHSK.transpose(-1, -2)
        s_BHQS[..., S - n_near :] += added
    return s_BHQS.to(c.dtype)


def weighted(w_BHQS: Tensor, v_BHSK: Tensor, c: "AttentionContext") -> Tensor:
    """Returns the sum of the values, each with its row by distance, by their weights."""
    w_BHQS, Q, S = w_BHQS.to(v_BHSK.dtype), w_BHQS.shape[2], v_BHSK.shape[2]
    if c.values_HNK is None:
        return w_BHQS @ v_BHSK
    if not c.acting.contiguous:
        return w_BHQS @ v_BHSK + to_distance(w_BHQS, c.values_HNK, c.exact_distance())
    v_BHSK, near_HNK = split_clipped(v_BHSK, c.values_HNK)
    rows_HWK, n_near = pad_table(near_HNK, queries=Q, keys=S)
    return w_BHQS @ v_BHSK + unskew(w_BHQS[..., S - n_near :], n_near + Q - 1) @ rows_HWK
