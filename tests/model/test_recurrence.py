"""Transformer-XL: its logits as published, and segments that remember exactly what they should."""

from dataclasses import replace

import pytest
import torch
from small import (
    VOCAB,
    close,
    context,
    create,
    det,
    dims,
    layer_of,
    small_config,
    small_model,
    some_tokens,
)
from torch import Tensor

from lengthgen.model.recurrent import Memory, RecurrentTransformer
from lengthgen.schemes import AttentionContext, logits
from lengthgen.schemes.relative.transformer_xl import TransformerXl

T = 16  # of the small configuration


def logits_of(part: TransformerXl, q: Tensor, k: Tensor, c: AttentionContext) -> Tensor:
    """Returns the scaled logits of the last queries over all keys, as a layer computes them."""
    c = replace(c, hooks=layer_of(part))
    q, k = part.qk(q, k, c)
    tables = {"keys_HNK": part.relative_keys(c), "queries_H1K": part.relative_queries(c)}
    return logits(q, k, replace(c, **tables))


def test_the_logits_are_those_of_the_reference_with_memory() -> None:
    # [X] kimiyoung/transformer-xl 44781ed, pytorch/mem_transformer.py:212-291, executed: H = 2,
    # d = 4, D = 8, 3 queries after a memory of 2.
    want = [  # of the three queries in head 0, then in head 1
        [-0.083318, 0.342978, 0.487457],
        [0.070964, -0.348685, -0.67129, -0.612844],
        [0.145667, -0.819722, -1.397251, -1.238299, -0.674583],
        [1.237296, 2.020783, 1.605415],
        [0.822097, 1.165601, 0.8608, 1.063174],
        [-0.043101, -0.286098, -0.261807, -0.21666, -0.043169],
    ]
    shape = dims(4, n_heads=2, train_length=3)
    part = TransformerXl(shape, base=1e4).double()
    with torch.no_grad():
        part.W_R.copy_(0.3 * det(2, 4, 8, a=0.53)[None])
        part.u.copy_(0.1 * det(2, 1, 4, a=0.9))
        part.v.copy_(0.1 * det(2, 1, 4, a=1.3))
    x = torch.cat([det(2, 8, a=0.2), det(3, 8, a=0.7)])  # memory, then the segment
    q, k, _ = (x @ (0.3 * det(24, 8, a=0.37)).T).view(5, 3, 2, 4).permute(1, 2, 0, 3)
    c = context(small_model("nope"), 5, dtype=torch.float64)
    c = replace(c, shape=shape, q_pos=c.pos[2:], rows=slice(2, 5))
    [got] = logits_of(part, q[None, :, 2:], k[None], c)
    for row, visible in zip(got.flatten(0, 1), want, strict=True):
        close(row[: len(visible)], torch.tensor(visible, dtype=torch.float64), atol=2e-6)


def recurrent(mem_len: float) -> RecurrentTransformer:
    config = small_config("scheme=transformer_xl", f"scheme.parts.recurrence.mem_len={mem_len}")
    model = create(config, vocab_size=VOCAB).double()
    assert isinstance(model, RecurrentTransformer)
    return model


def test_a_memory_of_everything_is_attention_without_segments() -> None:
    tokens = some_tokens(3 * T + 5)
    with torch.no_grad():
        close(recurrent(4.0)(tokens), recurrent(0.0)(tokens), atol=1e-12)


@pytest.mark.parametrize("n_last", [1, 5, 6, T + 5, T + 6, 3 * T + 5])
def test_the_last_rows_across_segments_are_those_of_the_whole(n_last: int) -> None:
    tokens, model = some_tokens(3 * T + 5), recurrent(1.0)
    with torch.no_grad():
        close(model(tokens, n_last=n_last), model(tokens)[:, -n_last:], atol=1e-12)


def test_a_memory_of_m_reaches_m_tokens_back_in_every_layer() -> None:
    tokens, model = some_tokens(4 * T), recurrent(1.0)  # 2 layers: two segments back, no further
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] + 1) % VOCAB
    with torch.no_grad():
        same = (model(tokens) == model(changed)).all(-1).all(0)
    assert same[3 * T :].all()
    assert not same[2 * T : 3 * T].all()
    short = recurrent(0.25)
    with torch.no_grad():
        same = (short(tokens) == short(changed)).all(-1).all(0)
    assert same[2 * T :].all()  # the first token is not among the last 4 of its segment, only
    assert not same[T : 2 * T].all()  # what the layer above made of these is


def test_a_row_that_begins_anew_sees_nothing_of_the_memory_it_is_given() -> None:
    model, tokens = recurrent(1.0), some_tokens(T)
    filled = torch.randn(2, 2, T, 32, dtype=torch.float64)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            given = Memory(filled, torch.tensor([T, 0]))
            (from_scratch, continued), _ = model.segment(tokens, given, n_last=T)
            alone = model(tokens)
            all_there, _ = model.segment(tokens, Memory(filled, torch.zeros(2)), n_last=T)
            close(from_scratch, alone[0], atol=1e-12)
            close(continued, all_there[1], atol=1e-12)
            assert not torch.allclose(continued, alone[1])


def test_what_is_absent_is_forgotten_as_segments_go_by() -> None:
    model = recurrent(2.0)
    memory = model.empty_memory(1, size=2 * T)
    for left in (T, 0, 0):
        _, memory = model.segment(some_tokens(T, batch=1), memory, n_last=T)
        assert memory.left_padding_B.tolist() == [left]
        assert memory.x_NBMD.shape[2] == 2 * T
