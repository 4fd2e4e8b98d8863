"""Sums over keys of rows that depend on the distance alone, without a tensor [Q, S, K].

A table [H, N, K], or [1, N, K] for all heads, holds a row per distance 0 ... N-1; its last
row serves all distances from there on. A block is Q consecutive queries and all S keys up to the
last of them, so that query i of the block is at distance S-Q+i-j from key j. A product of the
queries with the rows, laid out from the farthest distance to the nearest, holds for query i at
place Q-1-i+j what belongs to key j: what queries and keys share is a view of it with other strides.

B batch, H heads, Q queries, S keys, K head width, N distances, M keys that are near, W = M + Q - 1.
"""

import torch
from torch import Tensor


def split_clipped(x_BHSK: Tensor, table_HNK: Tensor) -> tuple[Tensor, Tensor]:
    """Returns keys or values plus the table's last row, and the other rows less that one.

    Both as they are if the table has a row for every key: then the last row serves one distance.
    """
    if table_HNK.shape[1] >= x_BHSK.shape[2]:
        return x_BHSK, table_HNK
    far_H1K = table_HNK[:, -1:]
    near_HNK = table_HNK[:, :-1] if table_HNK.shape[1] > 1 else far_H1K
    return x_BHSK + far_H1K, near_HNK - far_H1K


def extend_table(table_HNK: Tensor, keys: int) -> Tensor:
    """Returns the table with a row of its own for each of `keys` distances at least."""
    missing = keys - table_HNK.shape[1]
    if missing <= 0:
        return table_HNK
    return torch.cat([table_HNK, table_HNK[:, -1:].expand(-1, missing, -1)], dim=1)


def pad_table(near_HNK: Tensor, *, queries: int, keys: int) -> tuple[Tensor, int]:
    """Returns the rows by place, [H, W, K], farthest near distance first, and how many are near."""
    n_near = min(keys, queries + near_HNK.shape[1] - 1)
    distance = n_near - 1 - torch.arange(n_near + queries - 1, device=near_HNK.device)
    known = (distance >= 0) & (distance < near_HNK.shape[1])
    rows = near_HNK[:, distance.clamp(0, near_HNK.shape[1] - 1)]
    return rows * known[:, None], n_near


def skew(by_distance: Tensor) -> Tensor:
    """Returns the view [..., Q, M] by key of a contiguous tensor [..., Q, W] by place."""
    queries, width = by_distance.shape[-2:]
    # as_strided needs the offset, which cuts a compiled graph in two, where gradients get lost.
    rows = by_distance.flatten(-2)[..., queries - 1 : -1].unflatten(-1, (queries, width - 1))
    return rows[..., : width - queries + 1] if queries > 1 else by_distance


def unskew(near_keys: Tensor) -> Tensor:
    """Returns [..., Q, W] by place of a tensor [..., Q, M] by key: zeros elsewhere."""
    by_distance = near_keys.new_zeros(*near_keys.shape[:-1], sum(near_keys.shape[-2:]) - 1)
    skew(by_distance).copy_(near_keys)
    return by_distance


def at_distance(q_BHQK: Tensor, table_HNK: Tensor, distance: Tensor) -> Tensor:
    """Returns q_i . row[distance_ij] for any distances, int64 [Q, S] or [B, 1, Q, S]."""
    of_row_BHQN = q_BHQK @ table_HNK.transpose(-1, -2)
    row = distance.clamp(max=table_HNK.shape[1] - 1)
    return of_row_BHQN.gather(-1, row.expand(*of_row_BHQN.shape[:-1], -1))


def to_distance(w_BHQS: Tensor, table_HNK: Tensor, distance: Tensor) -> Tensor:
    """Returns the sum over j of w_ij row[distance_ij] for any distances, [B, H, Q, K]."""
    row = distance.clamp(max=table_HNK.shape[1] - 1).expand_as(w_BHQS)
    of_row = w_BHQS.new_zeros(*w_BHQS.shape[:-1], table_HNK.shape[1])
    return of_row.scatter_add(-1, row, w_BHQS) @ table_HNK
