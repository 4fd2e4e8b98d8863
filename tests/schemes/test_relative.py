"""Rows by distance against plain loops, and states carried from layer to layer."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from parts import Scattered
from small import VOCAB, close, context, layer_of, small_config, small_model, some_qkv, some_tokens
from torch import Tensor, nn

from lengthgen.model.attention import attend, eager
from lengthgen.model.layer_state import StateTransformer
from lengthgen.model.transformer import Block
from lengthgen.schemes import AttentionContext, ModelDims, Part, Rotated, Scheme
from lengthgen.schemes.content.layer_state import LayerState, StateContext

SHAPE = small_config().shape
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
    others, rows = [Scattered(SHAPE)] * scattered, slice(LENGTH - queries, LENGTH)
    c = context(small_model("nope"), LENGTH, dtype=torch.float64)
    pos = others[0].positions(c.tokens_BT, c) if others else c.pos
    c = replace(c, pos=pos, q_pos=pos[..., rows], k_pos=pos, rows=rows)
    c = replace(c, hooks=layer_of(part, *others))
    leaves = [*some_qkv(LENGTH, dtype=torch.float64), *part.parameters()]
    for leaf in leaves[:3]:
        leaf.requires_grad_()
    q, k, v = leaves[0][:, :, rows], leaves[1], leaves[2]
    want = loops(part, q, k, v, c)
    upstream = torch.randn_like(want)
    gradients = torch.autograd.grad((want * upstream).sum(), leaves)
    for got in (attend(q, k, v, c), eager(q, k, v, c, block=block)):
        close(got, want, atol=1e-12)
        ours = torch.autograd.grad((got * upstream).sum(), leaves)
        for gradient, expected in zip(ours, gradients, strict=True):
            close(gradient, expected, atol=1e-11)
    with torch.no_grad():
        close(attend(q, k, v, c), want, atol=1e-12)
        close(eager(q, k, v, c, block=block), want, atol=1e-12)


TWO_BLOCKS = 150  # two blocks of attend(), the second not full


class Carrying(LayerState):
    """Carries the token embeddings, moved by all that `next_state` is given; writes both down."""

    def __init__(self, shape: ModelDims) -> None:
        super().__init__(shape)
        self.calls: list[tuple[Tensor, Tensor, AttentionContext]] = []
        self.states: list[Tensor] = []

    def initial_state(self, c: AttentionContext) -> Tensor:
        return c.x_BTD.to(c.dtype)

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        assert isinstance(c, StateContext)
        self.states.append(c.state_BSE)
        return Rotated(q_BHQK, k_BHSK)

    def next_state(self, mean_BQE: Tensor, added_BQD: Tensor, c: StateContext) -> Tensor:
        self.calls.append((mean_BQE, added_BQD, c))
        return c.state_BSE[:, c.rows] + mean_BQE - 2 * added_BQD


@pytest.mark.parametrize(("grad", "n_last"), [(True, None), (False, 3)])
def test_a_layer_moves_the_state_by_its_own_weights(grad: bool, n_last: int | None) -> None:
    part, tokens, added = Carrying(SHAPE), some_tokens(TWO_BLOCKS), []
    plain = small_model("nope")
    model = StateTransformer(small_config("scheme=nope"), plain.design, vocab_size=VOCAB)
    model.load_state_dict(plain.state_dict())
    model.scheme = Scheme({"carrying": part}, layers=None, n_layers=2)
    model = model.double().eval()
    block = model.blocks[0]
    assert isinstance(block, Block)
    block.mlp_out.register_forward_hook(lambda _module, _inputs, out: added.append(out))
    with torch.set_grad_enabled(grad):
        out = model(tokens, n_last=n_last)
    x = model.embedding(tokens)
    parts = block.qkv(block.attention_norm(x)).chunk(3, dim=-1)
    q, k = (one.unflatten(-1, (4, 8)).transpose(1, 2) for one in parts[:2])
    hidden = torch.ones(TWO_BLOCKS, TWO_BLOCKS, dtype=torch.bool).triu(1)
    w = (q @ k.mT * 8**-0.5).masked_fill(hidden, -torch.inf).softmax(-1)
    mean = (w @ x.unflatten(-1, (4, 8)).transpose(1, 2)).transpose(1, 2).flatten(2)
    ((got_mean, got_added, c),) = part.calls  # not in the last layer
    assert (c.layer, c.rows, c.hooks) == (0, slice(0, TWO_BLOCKS), model.scheme.layers[0])
    close(got_mean, mean, atol=1e-12)
    assert torch.equal(got_added, added[0])
    assert torch.equal(part.states[0], x)
    close(part.states[1], x + mean - 2 * added[0], atol=1e-12)
    close(out, plain(tokens, n_last=n_last), atol=1e-12)  # what is carried alone changes nothing
