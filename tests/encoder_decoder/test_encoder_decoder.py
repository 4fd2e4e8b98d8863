"""Encoder-decoder models: what each side sees, parity with HF T5, training and what is refused."""

from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from small import (
    SMALL_TASK,
    VOCAB,
    bare_call,
    close,
    dims,
    imported,
    some_tokens,
)
from torch import Tensor, nn

from lengthgen.config.schema import Config, from_overrides
from lengthgen.encoder_decoder.model import CrossBlock, EncoderDecoder
from lengthgen.errors import UserError
from lengthgen.model.build import create, with_parts
from lengthgen.pipeline import validate
from lengthgen.schemes import Part
from lengthgen.schemes.bias.t5 import T5
from lengthgen.training.optim import adamw

SCHEMES = [
    *("nope", "learned_absolute", "sinusoidal", "rope", "p_rope", "hope", "pope", "grape_m"),
    *("fope", "alibi", "alibi_learned", "t5", "kerple", "kerple_power", "sandwich", "bam"),
    *("dynamic_bias", "alibi +scheme.parts.alibi.sides=split"),
]
EVERY = pytest.mark.parametrize("scheme", SCHEMES)
TASK = [*SMALL_TASK, "model.arch=encoder_decoder"]


def configured(*words: str) -> Config:
    return validate(from_overrides([*TASK, *words], config_dir=None, plugins=[]))


@lru_cache
def model_of(words: str) -> EncoderDecoder:
    """Returns a model in float64 with all parameters moved off their initial values."""
    config = configured(*f"scheme={words} train.length=16".split())
    model = create(config, vocab_size=VOCAB).double()
    assert isinstance(model, EncoderDecoder)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.rand(parameter.shape, generator=generator)
        model.scheme.clamp_parameters()
    return model.eval().requires_grad_(False)


def states(model: EncoderDecoder, tokens: Tensor, *answers: int) -> Tensor:
    """Returns the final states of rows whose answers begin at these tokens."""
    return model(tokens, answer_B=torch.tensor(answers))


def encoded(model: EncoderDecoder, tokens: Tensor) -> Tensor:
    n_keys = torch.full((len(tokens),), tokens.shape[1])
    return model.encode(tokens, n_keys)[0]


# What each side sees


@EVERY
def test_the_decoder_never_sees_a_later_token_of_the_answer(scheme: str) -> None:
    model, tokens = model_of(scheme), some_tokens(14)
    changed = tokens.clone()
    changed[:, 9:] = (changed[:, 9:] + 7) % VOCAB
    before, after = states(model, tokens, 5, 6), states(model, changed, 5, 6)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.isclose(before[:, 9:], after[:, 9:]).all(-1).any()


@EVERY
def test_every_answer_depends_on_every_token_of_the_prompt(scheme: str) -> None:
    model, tokens = model_of(scheme), some_tokens(14, batch=1)
    before = states(model, tokens, 6)
    for i in range(7):
        changed = tokens.clone()
        changed[:, i] = (changed[:, i] + 7) % VOCAB
        after = states(model, changed, 6)
        assert not torch.isclose(before[:, 6:], after[:, 6:], rtol=1e-9).all(-1).any()


@EVERY
def test_rows_of_other_prompts_and_lengths_in_the_batch_change_no_output(scheme: str) -> None:
    model, tokens = model_of(scheme), some_tokens(14, batch=4)
    answers = (2, 5, 9, 12)
    together = states(model, tokens, *answers)
    for row, first in enumerate(answers):
        alone = states(model, tokens[row : row + 1, : first + 2], first)
        close(together[row, first : first + 2], alone[0, first:], atol=1e-12)


@EVERY
def test_only_positions_tell_the_encoder_the_order_of_a_prompt(scheme: str) -> None:
    model, tokens = model_of(scheme), some_tokens(12)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(2))
    got, want = encoded(model, tokens[:, order]), encoded(model, tokens)[:, order]
    assert torch.allclose(got, want, rtol=0, atol=1e-12) == (scheme == "nope")


@EVERY
def test_positions_of_an_answer_begin_at_0_whatever_the_length_of_its_prompt(scheme: str) -> None:
    model, answer = deepcopy(model_of(scheme)), some_tokens(5, batch=1)
    for block in model.blocks:
        assert isinstance(block, CrossBlock)
        block.cross_out.weight.zero_()  # the decoder reads nothing of the prompt
    after = [
        states(model, torch.cat([some_tokens(n, batch=1), answer], dim=1), n)[:, n:] for n in (2, 9)
    ]
    close(after[0], after[1], atol=1e-12)


def test_states_of_the_last_tokens_are_those_of_all() -> None:
    model, tokens = model_of("t5"), some_tokens(14)
    starts = {"answer_B": torch.tensor([5, 9])}
    assert torch.equal(model(tokens, n_last=4, **starts), model(tokens, **starts)[:, -4:])


def test_encoder_and_decoder_have_parameters_of_their_own_at_the_rate_of_the_scheme() -> None:
    config = configured("scheme=t5")
    model = create(config, vocab_size=VOCAB)
    named = dict(model.named_parameters())
    decoder, encoder = named["scheme.parts.t5.table"], named["scheme.encoder.parts.t5.table"]
    assert not torch.equal(decoder, encoder)
    _, of_scheme, _ = adamw(model, config.train).param_groups
    assert {id(p) for p in of_scheme["params"]} == {id(decoder), id(encoder)}


def test_a_variant_has_the_trained_parameters_of_encoder_and_decoder() -> None:
    config = configured("scheme=t5")
    model = create(config, vocab_size=VOCAB)
    other = with_parts(model, config, config.scheme.parts)
    trained = dict(model.scheme.named_parameters())
    assert {"parts.t5.table", "encoder.parts.t5.table"} == {*trained}
    for name, parameter in other.named_parameters():
        assert torch.equal(parameter, trained[name])


# Positions in both directions


def bias_of(part: Part, length: int) -> Tensor:
    bias = part.bias(bare_call(part.shape, length, dtype=torch.float32))
    assert bias is not None
    return bias


SHAPE = dims(8, n_heads=4, n_layers=2)
BOTH_WAYS = replace(SHAPE, causal=False)


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20), (64, 1000)])
def test_t5_buckets_of_an_encoder_are_those_of_hf_transformers(
    num_buckets: int, max_distance: int
) -> None:
    length = 1200
    hf = imported("transformers.models.t5.modeling_t5").T5Attention
    offsets = torch.arange(length) - torch.arange(length)[:, None]
    theirs = hf._relative_position_bucket(
        offsets, bidirectional=True, num_buckets=num_buckets, max_distance=max_distance
    )
    part = T5(BOTH_WAYS, num_buckets=num_buckets, max_distance=max_distance, share_layers=True)
    part.table.data = torch.arange(num_buckets).expand(1, 4, -1).float()
    ours = bias_of(part, length)[0].long()
    assert torch.equal(ours, theirs)
    assert ours.unique().numel() == num_buckets - 1  # none is later at distance 0


def hf_t5() -> Any:
    """Returns a random T5 in float64 whose norms are ours; its GELU and blocks are as released."""
    t5 = imported("transformers.models.t5")
    config = t5.T5Config(
        **{"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2},
        **{"num_heads": 4, "feed_forward_proj": "gelu", "dropout_rate": 0.0},
        **{"tie_word_embeddings": False, "pad_token_id": 0},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = t5.T5ForConditionalGeneration(config).double().eval()
        for module in list(model.modules()):
            for name, child in module.named_children():
                if type(child).__name__ == "T5LayerNorm":
                    norm = nn.LayerNorm(32, bias=False, dtype=torch.float64)
                    norm.weight.data.uniform_(0.5, 1.5)
                    setattr(module, name, norm)
        for parameter in model.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def copy_block(block: Any, theirs: Any) -> None:
    """Copies a block of HF's T5; it does not divide logits by sqrt(d), so that its queries grow."""
    attention, mlp = theirs.layer[0], theirs.layer[-1]
    qkv = [attention.SelfAttention.q.weight * 8**0.5, attention.SelfAttention.k.weight]
    block.qkv.weight.data = torch.cat([*qkv, attention.SelfAttention.v.weight])
    block.attention_out.weight.data = attention.SelfAttention.o.weight
    block.attention_norm.weight.data = attention.layer_norm.weight
    block.mlp_in.weight.data = mlp.DenseReluDense.wi.weight
    block.mlp_out.weight.data = mlp.DenseReluDense.wo.weight
    block.mlp_norm.weight.data = mlp.layer_norm.weight
    if isinstance(block, CrossBlock):
        cross = theirs.layer[1]
        block.cross_q.weight.data = cross.EncDecAttention.q.weight * 8**0.5
        kv = [cross.EncDecAttention.k.weight, cross.EncDecAttention.v.weight]
        block.cross_kv.weight.data = torch.cat(kv)
        block.cross_out.weight.data = cross.EncDecAttention.o.weight
        block.cross_norm.weight.data = cross.layer_norm.weight


def table_of(stack: Any) -> Tensor:
    return stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight.T[None]


def test_logits_are_those_of_hf_t5_with_its_weights() -> None:
    theirs = hf_t5()
    model = create(configured("scheme=t5", "train.length=16"), vocab_size=VOCAB).double().eval()
    assert isinstance(model, EncoderDecoder)
    assert model.scheme.encoder is not None
    for scheme, stack in ((model.scheme, theirs.decoder), (model.scheme.encoder, theirs.encoder)):
        part = scheme.parts["t5"]
        assert isinstance(part, T5)
        part.table.data = table_of(stack)
    pairs = [*zip(model.blocks, theirs.decoder.block, strict=True)]
    pairs += zip(model.encoder_blocks, theirs.encoder.block, strict=True)
    for block, one in pairs:
        copy_block(block, one)
    model.norm.weight.data = theirs.decoder.final_layer_norm.weight
    model.encoder_norm.weight.data = theirs.encoder.final_layer_norm.weight
    model.embedding.weight.data = theirs.shared.weight
    theirs.lm_head.weight.data = theirs.shared.weight
    tokens, answers = some_tokens(14, batch=3), (4, 9, 6)
    ours = model.logits(states(model, tokens, *answers))
    seen = torch.arange(10) <= torch.tensor(answers)[:, None]
    with torch.no_grad():
        for row, first in enumerate(answers):
            want = theirs(
                input_ids=tokens[row : row + 1, :10],
                attention_mask=seen[row : row + 1].long(),
                decoder_input_ids=tokens[row : row + 1, first:],
            ).logits[0]
            close(ours[row, first:], want, atol=1e-9)
    assert float(ours.detach().std()) > 0.1  # there is something to compare


REFUSED = [
    ("model.arch=t5", r"model.arch: 't5' should be 'decoder', 'encoder' or 'encoder_decoder'"),
    ("scheme=fire", r"scheme.parts.fire: not defined for keys after the query, .* of alibi, .*t5"),
    ("scheme=transformer_xl_recurrent", r"scheme.parts.transformer_xl: not defined"),
    ("scheme=cope", r"scheme.parts.cope: not defined for keys after the query"),
    ("scheme=alibi scheme.parts.alibi.beyond=interpolate", r"scheme.parts.alibi: its outputs dep"),
    ("scheme=alibi eval.variants=[interpolate]", r"eval.variants.interpolate.alibi: its out"),
    ("scheme=t5 scheme.parts.t5.num_buckets=7", r"scheme.parts.t5: num_buckets=7 must be even"),
    ("runtime.compile=true", r"runtime.compile=true: model.arch=encoder_decoder lacks it"),
    ("runtime.activation_checkpointing=true", r"runtime.activation_checkpointing=true: model.arch"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_what_an_encoder_decoder_cannot_be_is_one_line(words: str, said: str) -> None:
    with pytest.raises(UserError, match=f"^{said}") as error:
        configured(*words.split())
    assert "\n" not in str(error.value)
