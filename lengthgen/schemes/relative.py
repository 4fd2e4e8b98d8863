"""Sums over keys of rows that depend on the distance alone, without a tensor [Q, S, K].

A table [H, N, K], or [1, N, K] for all heads alike, holds a row per distance 0 ... N-1; its last
row serves all distances from there on. A block is Q consecutive queries and all S keys up to the
last of them, so that query i of the block is at distance S-Q+i-j from key j. A product of the
queries with the rows, laid out from the farthest distance to the nearest, holds for query i at
place Q-1-i+j what belongs to key j: what queries and keys share is a view of it with other strides.

B batch, H heads, Q queries, S keys, K head width, N distances, M keys that are near, W = M + Q - 1.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Parted(NamedTuple):
    """A table as rows for near distances, and what is common to all distances if it is clipped."""

    near_HNK: Tensor
    far_H1K: Tensor | None


class Laid(NamedTuple):
    """Rows of the near distances as a block needs them, and how many of its last keys are near."""

    rows_HWK: Tensor
    n_near: int


def parted(table_HNK: Tensor, keys: int) -> Parted:
    """Returns the table for up to `keys` keys, its last row taken out if it serves several."""
    if table_HNK.shape[1] >= keys:
        return Parted(table_HNK, None)
    far_H1K = table_HNK[:, -1:]
    return Parted((table_HNK[:, :-1] if table_HNK.shape[1] > 1 else far_H1K) - far_H1K, far_H1K)


def apart(x_BHSK: Tensor, table_HNK: Tensor) -> tuple[Tensor, Tensor]:
    """Returns keys or values with what all distances share, and the rows of the near ones."""
    near_HNK, far_H1K = parted(table_HNK, x_BHSK.shape[2])
    return (x_BHSK if far_H1K is None else x_BHSK + far_H1K), near_HNK


def spread(table_HNK: Tensor, keys: int) -> Tensor:
    """Returns the table with a row of its own for each of `keys` distances at least."""
    missing = keys - table_HNK.shape[1]
    if missing <= 0:
        return table_HNK
    return torch.cat([table_HNK, table_HNK[:, -1:].expand(-1, missing, -1)], dim=1)


def laid_out(near_HNK: Tensor, *, queries: int, keys: int) -> Laid:
    """Returns the rows by place: the farthest near distance first, zeros where there is none."""
    n_near = min(keys, queries + near_HNK.shape[1] - 1)
    distance = n_near - 1 - torch.arange(n_near + queries - 1, device=near_HNK.device)
    known = (distance >= 0) & (distance < near_HNK.shape[1])
    rows = near_HNK[:, distance.clamp(0, near_HNK.shape[1] - 1)]
    return Laid(rows * known[:, None], n_near)


def by_key(places: Tensor, n_near: int) -> Tensor:
    """Returns the view [..., Q, M] by key of a contiguous tensor [..., Q, W] by place."""
    queries, width = places.shape[-2:]
    assert places.is_contiguous(), "a view by key needs a contiguous tensor"
    strides = (*places.stride()[:-2], width - 1, 1)
    first = places.storage_offset() + queries - 1
    return places.as_strided((*places.shape[:-1], n_near), strides, first)


def by_place(near_keys: Tensor, width: int) -> Tensor:
    """Returns [..., Q, W] by place of a tensor [..., Q, M] by key: zeros elsewhere."""
    places = near_keys.new_zeros(*near_keys.shape[:-1], width)
    by_key(places, near_keys.shape[-1]).copy_(near_keys)
    return places


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
