"""Attention that depends on the content against HF transformers 5 and x-transformers 2.31.

All run in float64 with the same weights. What differs by intention is asserted as such.
"""

import math

import pytest
import torch
from small import close, dims, imported, layer_of, some_qkv
from torch import Tensor

from lengthgen.model.attention import eager
from lengthgen.schemes import AttentionContext, Part
from lengthgen.schemes.content.cope import Cope
from lengthgen.schemes.content.fox import Fox
from lengthgen.schemes.relative.shaw import Shaw

LENGTH = 60
SHAPE = dims(n_heads=4, train_length=16)
SEEN = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()


def some_input() -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.randn(2, LENGTH, SHAPE.d_model, generator=generator, dtype=torch.float64)


def call(x_BTD: Tensor) -> AttentionContext:
    tokens = torch.zeros(x_BTD.shape[:2], dtype=torch.int64)
    return AttentionContext.of_call(SHAPE, tokens, x_BTD, training=False, generator=None)


def drawn(part: Part) -> Part:
    """Returns the part in float64 with parameters from N(0, 1)."""
    for parameter in part.double().requires_grad_(False).parameters():
        parameter.normal_()
    return part


def test_shaw_has_the_keys_of_wav2vec2_bert() -> None:
    # `relative_key` there: distances clipped on both sides, nothing added to the values.
    hf = imported("transformers.models.wav2vec2_bert.modeling_wav2vec2_bert")
    clip = 6
    config = imported("transformers").Wav2Vec2BertConfig(
        hidden_size=SHAPE.d_model,
        num_attention_heads=SHAPE.n_heads,
        position_embeddings_type="relative_key",
        left_max_position_embeddings=clip,
        right_max_position_embeddings=2,
        attn_implementation="eager",
    )
    theirs = hf.Wav2Vec2BertSelfAttention(config).double().eval().requires_grad_(False)
    ours = drawn(Shaw(SHAPE, clip=clip, share_layers=True))
    assert isinstance(ours, Shaw)
    ours.aV.zero_()
    theirs.distance_embedding.weight[: clip + 1] = ours.aK[0].flip(0)  # its rows: clip(j-i) + k
    x = some_input()
    mask = torch.zeros(1, 1, LENGTH, LENGTH).double().masked_fill(~SEEN, -math.inf)
    want, _ = theirs(x, attention_mask=mask)
    q, k, v = (
        project(x).unflatten(-1, (4, 8)).transpose(1, 2)
        for project in (theirs.linear_q, theirs.linear_k, theirs.linear_v)
    )
    out = eager(layer_of(ours), q, k, v, call(x), block=LENGTH).transpose(1, 2).flatten(2)
    close(theirs.linear_out(out), want, atol=1e-12)


@pytest.mark.parametrize("n_positions", [16, 64])  # its own number; past the last gate's count
def test_cope_is_that_of_x_transformers_given_masked_logits(n_positions: int) -> None:
    ours = drawn(
        Cope(SHAPE, n_positions=n_positions, position_logits="unscaled", share_layers=True)
    )
    theirs = imported("x_transformers.x_transformers").CoPE(8, 4, n_positions).double()
    assert isinstance(ours, Cope)
    theirs.requires_grad_(False).pos_emb.copy_(ours.E[0].T)
    q, k, _ = some_qkv(LENGTH, dtype=torch.float64)
    s = q @ k.transpose(-1, -2) / 8**0.5
    got = ours.scores(q, k, call(some_input())) - s
    masked = s.masked_fill(~SEEN, -torch.finfo(s.dtype).max)
    close(got[..., SEEN], theirs(q, masked)[..., SEEN], atol=1e-12)
    # It has no mask of its own: without one in the logits, later keys are counted too.
    assert not torch.allclose(got[..., SEEN], theirs(q, s)[..., SEEN], atol=0.1)


def test_fox_is_the_data_dependent_alibi_of_x_transformers() -> None:
    theirs = imported("x_transformers.x_transformers").DataDependentAlibi(32, 4)
    linear = theirs.double().requires_grad_(False).to_forget_gates[0]
    assert linear.bias.tolist() == [5.0] * 4  # f = 0.993 at the start; the authors' 0 is ours
    ours = Fox(SHAPE, gate_bias=5.0).double().requires_grad_(False)
    ours.w[0] = linear.weight
    x = some_input()
    got = ours.bias(call(x))
    close(got[..., SEEN], theirs(x)[..., SEEN], atol=1e-12)
