"""Rows by distance, added to keys and values: every kernel against plain loops."""

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st
from parts import Scattered
from small import close, context, dims, layer_of, small_model, some_qkv
from torch import Tensor, nn

from lengthgen.model.attention import attend, blocked, eager
from lengthgen.schemes import AttentionContext, Part
from lengthgen.schemes.relative_shift import pad_table, skew, split_clipped, unskew

SHAPE = dims(n_heads=4, train_length=16)
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


def loops(part: Rows, q: Tensor, k: Tensor, v: Tensor, c: AttentionContext) -> Tensor:
    """Returns attention with k_j + keys[distance] and v_j + rows[distance], pair by pair."""
    Q, S = q.shape[2], k.shape[2]
    distance = c.exact_distance().expand(2, 1, Q, S)
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


@given(
    heads=st.sampled_from([1, 4]),
    n_distances=st.integers(1, LENGTH + 20),
    queries=st.integers(1, LENGTH),
    scattered=st.booleans(),
    offset=st.booleans(),
    block=st.integers(1, LENGTH),
)
def test_rows_by_distance_are_added_to_keys_and_values(
    heads: int, n_distances: int, queries: int, scattered: bool, offset: bool, block: int
) -> None:
    part = Rows(n_distances, heads=heads, offset=offset)
    others = [Scattered(SHAPE)] * scattered
    layer, c = layer_of(part, *others), at(queries, *others)
    leaves = [*some_qkv(LENGTH, dtype=torch.float64), *part.parameters()]
    for leaf in leaves[:3]:
        leaf.requires_grad_()
    q, k, v = leaves[0][:, :, LENGTH - queries :], leaves[1], leaves[2]
    want = loops(part, q, k, v, c)
    upstream = torch.randn_like(want)
    gradients = torch.autograd.grad((want * upstream).sum(), leaves)
    kernels = [attend(layer, q, k, v, c), eager(layer, q, k, v, c, block=block)]
    if layer.contiguous:
        kernels.append(blocked(layer, q, k, v, c, block=block))
    for got in kernels:
        close(got, want, atol=1e-12)
        for one, other in zip(
            torch.autograd.grad((got * upstream).sum(), leaves), gradients, strict=True
        ):
            close(one, other, atol=1e-11)
    with torch.no_grad():
        close(attend(layer, q, k, v, c), want, atol=1e-12)
        close(eager(layer, q, k, v, c, block=block), want, atol=1e-12)


@given(queries=st.integers(1, 9), more=st.integers(0, 9), n_distances=st.integers(1, 12))
def test_a_skewed_block_is_the_block_by_key_with_other_strides(
    queries: int, more: int, n_distances: int
) -> None:
    keys = queries + more
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
