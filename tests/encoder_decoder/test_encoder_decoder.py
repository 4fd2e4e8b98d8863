"""Models with an encoder: what each side sees, parity with HF T5, and what is refused."""

from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from small import SMALL, SMALL_TASK, VOCAB, bare_call, close, dims, imported, some_tokens
from torch import Tensor, nn

from lengthgen.config.schema import Config, from_overrides
from lengthgen.encoder_decoder.model import CrossBlock, EncoderDecoder
from lengthgen.errors import UserError
from lengthgen.model.build import create, with_parts
from lengthgen.pipeline import validate
from lengthgen.schemes.bias.t5 import T5
from lengthgen.training.optim import adamw

SCHEMES = ["nope", "learned_absolute", "rope", "t5", "alibi +scheme.parts.alibi.sides=split"]
EVERY = pytest.mark.parametrize("scheme", SCHEMES)


def configured(*words: str, arch: str = "encoder_decoder") -> Config:
    asked = [*SMALL_TASK, f"model.arch={arch}", *words]
    return validate(from_overrides(asked, config_dir=None, plugins=[]))


@lru_cache
def model_of(words: str, arch: str = "encoder_decoder") -> Any:
    """Returns a model in float64 with all parameters moved off their initial values."""
    config = configured(*f"scheme={words} train.length=16".split(), arch=arch)
    model = create(config, vocab_size=VOCAB).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.rand(parameter.shape, generator=generator)
        model.scheme.clamp_parameters()
    return model.eval().requires_grad_(False)


def states(model: Any, tokens: Tensor, *answers: int) -> Tensor:
    """Returns the final states of rows whose answers begin at these tokens."""
    ends = {"n_tokens_B": torch.full((len(tokens),), tokens.shape[1])}
    return model(
        tokens, answer_B=torch.tensor(answers), **(ends if model.arch == "encoder" else {})
    )


def with_token_changed(tokens: Tensor, at: int | slice) -> Tensor:
    changed = tokens.clone()
    changed[:, at] = (changed[:, at] + 7) % VOCAB
    return changed


# What each side sees


@EVERY
def test_a_decoder_sees_all_of_the_prompt_and_no_later_token_of_the_answer(scheme: str) -> None:
    model, tokens, first = model_of(scheme), some_tokens(14, batch=1), 6
    before = states(model, tokens, first)
    for i in range(14):
        after = states(model, with_token_changed(tokens, i), first)
        same = torch.isclose(before, after, rtol=1e-9).all(-1)[0, first:]
        n_before = max(0, i - first)
        assert same[:n_before].all()
        assert not same[n_before:].any()


@EVERY
def test_a_masked_language_model_sees_all_of_the_prompt_and_nothing_of_the_answer(
    scheme: str,
) -> None:
    model, tokens = model_of(scheme, "encoder"), some_tokens(12, batch=1)
    before = states(model, tokens, 5)
    for i in range(12):
        after = states(model, with_token_changed(tokens, i), 5)
        differs = ~torch.isclose(before, after, rtol=1e-9).all(-1)
        assert differs.all() if i <= 5 else not differs.any()
    answer = before[:, 5:]  # without positions all masks are one token in one context
    is_one = torch.allclose(answer, answer[:, :1].expand_as(answer), rtol=0, atol=1e-12)
    assert is_one == (scheme == "nope")


@EVERY
def test_rows_of_other_prompts_and_lengths_in_the_batch_change_no_output(scheme: str) -> None:
    model, tokens, answers = model_of(scheme), some_tokens(14, batch=4), (2, 5, 9, 12)
    together = states(model, tokens, *answers)
    for row, first in enumerate(answers):
        alone = states(model, tokens[row : row + 1, : first + 2], first)
        close(together[row, first : first + 2], alone[0, first:], atol=1e-12)
    starts = {"answer_B": torch.tensor(answers)}
    assert torch.equal(model(tokens, n_last=4, **starts), together[:, -4:])


@EVERY
def test_only_positions_tell_the_encoder_the_order_and_those_of_an_answer_begin_at_0(
    scheme: str,
) -> None:
    model, tokens = deepcopy(model_of(scheme)), some_tokens(12)
    order, n_keys = torch.randperm(12, generator=torch.Generator().manual_seed(2)), [12, 12]
    got, want = (model.encode(x, torch.tensor(n_keys))[0] for x in (tokens[:, order], tokens))
    assert torch.allclose(got, want[:, order], rtol=0, atol=1e-12) == (scheme == "nope")
    for block in model.blocks:
        assert isinstance(block, CrossBlock)
        block.cross_out.weight.zero_()  # the decoder reads nothing of the prompt
    answer = some_tokens(5, batch=1)
    rows = [torch.cat([some_tokens(n, batch=1), answer], dim=1) for n in (2, 9)]
    close(states(model, rows[0], 2)[:, 2:], states(model, rows[1], 9)[:, 9:], atol=1e-12)


def test_encoder_and_decoder_have_parameters_of_their_own_that_variants_keep() -> None:
    config = configured("scheme=t5")
    model = create(config, vocab_size=VOCAB)
    own = dict(model.scheme.named_parameters())
    assert {"parts.t5.table", "encoder.parts.t5.table"} == {*own}
    assert not torch.equal(*own.values())
    _, of_scheme, _ = adamw(model, config.train).param_groups
    assert {id(p) for p in of_scheme["params"]} == {id(p) for p in own.values()}
    other = with_parts(model, config, config.scheme.parts)
    for name, parameter in other.named_parameters():
        assert torch.equal(parameter, own[name])


# Parity with HF


def test_t5_buckets_of_an_encoder_are_those_of_hf_transformers() -> None:
    length, num_buckets, max_distance = 400, 32, 128
    hf = imported("transformers.models.t5.modeling_t5").T5Attention
    offsets = torch.arange(length) - torch.arange(length)[:, None]
    theirs = hf._relative_position_bucket(
        offsets, bidirectional=True, num_buckets=num_buckets, max_distance=max_distance
    )
    shape = replace(dims(8, n_heads=4, n_layers=2), causal=False)
    part = T5(shape, num_buckets=num_buckets, max_distance=max_distance, share_layers=True)
    part.table.data = torch.arange(num_buckets).expand(1, 4, -1).float()
    bias = part.bias(bare_call(shape, length, dtype=torch.float32))
    assert bias is not None
    assert torch.equal(bias[0].long(), theirs)


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


def test_logits_are_those_of_hf_t5_with_its_weights() -> None:
    theirs, ours = hf_t5(), create(configured("scheme=t5"), vocab_size=VOCAB).double().eval()
    assert isinstance(ours, EncoderDecoder)
    decoder = (ours.scheme, ours.blocks, ours.norm, theirs.decoder)
    encoder = (ours.scheme.encoder, ours.encoder_blocks, ours.encoder_norm, theirs.encoder)
    for scheme, blocks, norm, stack in (decoder, encoder):
        assert scheme is not None
        attention = stack.block[0].layer[0].SelfAttention
        scheme.parts["t5"].table.data = attention.relative_attention_bias.weight.T[None]
        for block, other in zip(blocks, stack.block, strict=True):
            copy_block(block, other)
        norm.weight.data = stack.final_layer_norm.weight
    ours.embedding.weight.data = theirs.lm_head.weight.data = theirs.shared.weight
    tokens, answers = some_tokens(14, batch=3), (4, 9, 6)
    got = ours.logits(states(ours, tokens, *answers))
    with torch.no_grad():
        for row, first in enumerate(answers):
            want = theirs(
                input_ids=tokens[row : row + 1, : first + 1],
                decoder_input_ids=tokens[row : row + 1, first:],
            ).logits[0]
            close(got[row, first:], want, atol=1e-9)
    assert float(got.detach().std()) > 0.1  # there is something to compare


# What is refused


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("model.arch=t5", "model.arch: 't5' should be 'decoder', 'encoder' or 'encoder_decoder'"),
        ("scheme=fire", "scheme.parts.fire: not defined for keys after the query, which an "),
        ("scheme=transformer_xl_recurrent", "scheme.parts.transformer_xl: not defined"),
        ("scheme=alibi scheme.parts.alibi.beyond=interpolate", "scheme.parts.alibi: its outputs"),
        ("scheme=alibi eval.variants=[interpolate]", "eval.variants.interpolate.alibi: its out"),
        ("scheme=t5 scheme.parts.t5.num_buckets=7", "scheme.parts.t5: num_buckets=7 must be even"),
        ("runtime.compile=true", "runtime.compile=true: model.arch=encoder_decoder lacks it"),
        ("runtime.activation_checkpointing=true model.arch=encoder", "runtime.activation_check"),
        ("eval.decode=2 model.arch=encoder", "eval.decode=2: model.arch=encoder writes all of an"),
    ],
)
def test_what_a_model_with_an_encoder_cannot_be_is_one_line(words: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        configured(*words.split())
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


def test_a_masked_language_model_of_text_is_refused() -> None:
    with pytest.raises(UserError, match=r"^model.arch=encoder: corpus synthetic has no prompts"):
        validate(from_overrides([*SMALL, "model.arch=encoder"], config_dir=None, plugins=[]))
