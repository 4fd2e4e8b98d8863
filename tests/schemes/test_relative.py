"""Rows by distance, added to keys and values: every kernel against plain loops."""

from dataclasses import replace

import pytest
import torch
from small import close, context, small_model, some_qkv
from torch import Tensor, nn

from lengthgen.model.attention import attend, blocked, eager
from lengthgen.schemes import AttentionContext, ModelDims, Part, Scheme
from lengthgen.schemes.relative_shift import pad_table, skew, split_clipped, unskew

SHAPE = ModelDims(d_model=32, n_layers=1, n_heads=4, d_head=8, train_length=16, init_std=0.02)
LENGTH = 40


class Rows(Part):
    """Adds rows of a table, some distances long, to keys and values."""

    def __init__(self, n_distances: int, *, heads: int, offset: bool) -> None:
        super().__init__(SHAPE)
        generator = torch.Generator().manual_seed(6)
        size = (2, heads, n_distances, 8)
        drawn = torch.randn(size, generator=generator, dtype=torch.float64)
        self.keys, self.rows = (nn.Parameter(table) for table in drawn)
        self.offset = nn.Parameter(torch.ones(4, 1, 8, dtype=torch.float64)) if offset else None

    def relative_keys(self, c: AttentionContext) -> Tensor:
        return self.keys

    def relative_queries(self, c: AttentionContext) -> Tensor | None:
        return self.offset

    def relative_values(self, c: AttentionContext) -> Tensor:
        return self.rows


class Scattered(Part):
    """Gives out coordinates with gaps, other ones in each sequence."""

    def positions(self, tokens_BT: Tensor, c: AttentionContext) -> Tensor:
        return (1 + tokens_BT % 3).cumsum(-1)


def loops(part: Rows, q: Tensor, k: Tensor, v: Tensor, c: AttentionContext) -> Tensor:
    """Returns attention with k_j + keys[distance] and v_j + rows[distance], pair by pair."""
    Q, S = q.shape[2], k.shape[2]
    distance = c.steps().expand(2, 1, Q, S)
    row = distance.clamp(max=part.keys.shape[1] - 1)
    keys, rows = (
        torch.stack([table.expand(4, -1, -1)[:, row[b, 0]] for b in range(2)])
        for table in (part.keys, part.rows)
    )  # [B, H, Q, S, K]
    meeting = q if part.offset is None else q + part.offset
    s = (q[:, :, :, None] * k[:, :, None] + meeting[:, :, :, None] * keys).sum(-1) * 8**-0.5
    later = torch.arange(S) > torch.arange(S - Q, S)[:, None]
    w = s.masked_fill(later, -torch.inf).softmax(-1)
    return (w[..., None] * (v[:, :, None] + rows)).sum(-2)


def at(queries: int, *others: Part) -> AttentionContext:
    """Returns the context of the last queries of a call, with the coordinates of a part."""
    c = context(small_model("nope"), LENGTH, dtype=torch.float64)
    for part in others:
        pos = part.positions(c.tokens_BT, c)
        c = replace(c, pos=pos, q_pos=pos, k_pos=pos)
    return replace(c, q_pos=c.pos[..., LENGTH - queries :], rows=slice(LENGTH - queries, LENGTH))


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("n_distances", [1, 2, 7, 40, 60])
@pytest.mark.parametrize("queries", [LENGTH, 9, 1])
@pytest.mark.parametrize("others", [(), (Scattered(SHAPE),)])
@pytest.mark.parametrize("offset", [False, True])
def test_rows_by_distance_are_added_to_keys_and_values(
    heads: int, n_distances: int, queries: int, others: tuple[Part, ...], offset: bool
) -> None:
    part = Rows(n_distances, heads=heads, offset=offset)
    parts = {"rows": part, **({"scattered": others[0]} if others else {})}
    [layer] = Scheme(parts, layers=None, n_layers=1).layers
    c = at(queries, *others)
    leaves = [*some_qkv(LENGTH, dtype=torch.float64), *part.parameters()]
    for leaf in leaves[:3]:
        leaf.requires_grad_()
    q, k, v = leaves[0][:, :, LENGTH - queries :], leaves[1], leaves[2]
    want = loops(part, q, k, v, c)
    upstream = torch.randn_like(want)
    gradients = torch.autograd.grad((want * upstream).sum(), leaves)
    kernels = [attend(layer, q, k, v, c), eager(layer, q, k, v, c, block=6)]
    if layer.numbered:
        kernels += [blocked(layer, q, k, v, c, block=block) for block in (1, 6)]
    for got in kernels:
        close(got, want, atol=1e-12)
        for one, other in zip(
            torch.autograd.grad((got * upstream).sum(), leaves), gradients, strict=True
        ):
            close(one, other, atol=1e-11)
    with torch.no_grad():
        close(attend(layer, q, k, v, c), want, atol=1e-12)
        for block in (1, 6, 128):
            close(eager(layer, q, k, v, c, block=block), want, atol=1e-12)


@pytest.mark.parametrize(("queries", "keys", "n_distances"), [(4, 9, 3), (5, 5, 9), (1, 6, 2)])
def test_a_skewed_block_is_the_block_by_key_with_other_strides(
    queries: int, keys: int, n_distances: int
) -> None:
    table = torch.arange(1.0, n_distances + 1)[None, :, None]
    rows, n_near = pad_table(table, queries=queries, keys=keys)
    by_distance = torch.ones(1, queries, 1) @ rows.transpose(-1, -2)
    seen = skew(by_distance, n_near)[0]
    for i in range(queries):
        for j in range(n_near):
            distance = n_near - queries + i - j
            want = distance + 1 if 0 <= distance < n_distances else 0
            assert seen[i, j] == want
    back = skew(unskew(seen, by_distance.shape[-1]), n_near)
    assert torch.equal(back, seen)


def test_a_table_that_ends_before_the_last_key_is_split_from_its_last_row() -> None:
    table, keys = torch.randn(2, 5, 3), torch.randn(1, 2, 6, 3)
    same = split_clipped(keys[:, :, :5], table)
    assert torch.equal(same[0], keys[:, :, :5])
    assert torch.equal(same[1], table)
    shifted, near = split_clipped(keys, table)
    close(near + table[:, 4:], table[:, :4], atol=1e-6)
    assert torch.equal(shifted, keys + table[:, 4:])
