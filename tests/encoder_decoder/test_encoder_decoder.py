"""Models with an encoder: what each side sees, parity with HF T5, refusals."""

from copy import deepcopy
from functools import lru_cache
from typing import Any

import pytest
import torch
from small import (
    SMALL,
    SMALL_TASK,
    VOCAB,
    close,
    create,
    imported,
    refusal,
    some_tokens,
    valid,
)
from torch import Tensor, nn

from lengthgen.config.schema import Config
from lengthgen.encoder_decoder.model import CrossBlock
from lengthgen.model.build import redesigned
from lengthgen.training.optim import optimizers_of

SCHEMES = ["nope", "learned_absolute", "rope", "t5", "alibi +scheme.parts.alibi.sides=split"]
EVERY = pytest.mark.parametrize("scheme", SCHEMES)


def configured(words: str) -> Config:
    return valid([*SMALL_TASK, "model.arch=encoder_decoder", *words.split()])


@lru_cache
def model_of(words: str) -> Any:
    """Returns a model in float64 with all parameters moved off their initial values."""
    config = configured(f"scheme={words} train.length=16")
    model = create(config, vocab_size=VOCAB).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.rand(parameter.shape, generator=generator)
        model.scheme.clamp_parameters()
    return model.eval().requires_grad_(False)


def states(model: Any, tokens: Tensor, *answers: int) -> Tensor:
    """Returns the final states of rows whose answers begin at these tokens."""
    return model(tokens, answer_B=torch.tensor(answers))


@EVERY
def test_all_of_the_prompt_is_seen_and_of_the_answer_what_is_before(scheme: str) -> None:
    model, tokens, first = model_of(scheme), some_tokens(14, batch=1), 6
    before = states(model, tokens, first)
    changed = tokens.repeat(14, 1)
    changed.diagonal().add_(7).remainder_(VOCAB)
    for i, after in enumerate(states(model, changed, *[first] * 14)):
        differs = ~torch.isclose(before[0], after, rtol=1e-9).all(-1)[first:]
        assert differs.tolist() == [place >= max(0, i - first) for place in range(8)]


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
def test_only_positions_tell_the_order_and_those_of_answers_begin_at_0(scheme: str) -> None:
    model, tokens = deepcopy(model_of(scheme)), some_tokens(12)
    order, n_keys = torch.randperm(12, generator=torch.Generator().manual_seed(2)), [12, 12]
    moved, want = (model.encode(x, torch.tensor(n_keys))[0] for x in (tokens[:, order], tokens))
    assert torch.allclose(moved, want[:, order], rtol=0, atol=1e-12) == (scheme == "nope")
    ignore_the_encoder(model)
    answer = some_tokens(5, batch=1)
    rows = [torch.cat([some_tokens(n, batch=1), answer], dim=1) for n in (2, 9)]
    close(states(model, rows[0], 2)[:, 2:], states(model, rows[1], 9)[:, 9:], atol=1e-12)


def ignore_the_encoder(model: Any) -> None:
    for block in model.blocks:
        block.cross_out.weight.data.zero_()


def test_encoder_and_decoder_have_parameters_of_their_own_that_variants_keep() -> None:
    config = configured("scheme=t5")
    model = create(config, vocab_size=VOCAB)
    own = dict(model.scheme.named_parameters())
    assert not torch.equal(own["parts.t5.table"], own["encoder.parts.t5.table"])
    _, of_scheme, _ = optimizers_of(model, config.train)[0].param_groups
    assert {id(p) for p in of_scheme["params"]} == {id(p) for p in own.values()}
    other = redesigned(model, model.design)
    for name, parameter in other.named_parameters():
        assert torch.equal(parameter, own[name])


def hf_t5() -> Any:
    """Returns a random T5 in float64 whose norms are ours; its GELU and blocks are as released."""
    t5 = imported("transformers.models.t5")
    config = t5.T5Config(
        **{"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2},
        **{"num_heads": 4, "feed_forward_proj": "gelu", "dropout_rate": 0.0},
        **{"tie_word_embeddings": False, "pad_token_id": 0},
        **{"relative_attention_num_buckets": 8, "relative_attention_max_distance": 16},
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
    return model.requires_grad_(False)


def copy_block(block: Any, theirs: Any) -> None:
    """Copies a block of HF's T5; it does not divide logits by sqrt(d), so that its queries grow."""
    attention, mlp = theirs.layer[0].SelfAttention, theirs.layer[-1]
    qkv = [attention.q.weight * 8**0.5, attention.k.weight, attention.v.weight]
    weights = {
        block.qkv: torch.cat(qkv),
        block.attention_out: attention.o.weight,
        block.attention_norm: theirs.layer[0].layer_norm.weight,
        block.mlp_in: mlp.DenseReluDense.wi.weight,
        block.mlp_out: mlp.DenseReluDense.wo.weight,
        block.mlp_norm: mlp.layer_norm.weight,
    }
    if isinstance(block, CrossBlock):
        cross = theirs.layer[1].EncDecAttention
        weights |= {
            block.cross_q: cross.q.weight * 8**0.5,
            block.cross_kv: torch.cat([cross.k.weight, cross.v.weight]),
            block.cross_out: cross.o.weight,
            block.cross_norm: theirs.layer[1].layer_norm.weight,
        }
    for module, weight in weights.items():
        module.weight.data = weight


def test_logits_are_those_of_hf_t5_with_its_weights() -> None:
    theirs = hf_t5()
    buckets = "scheme=t5 scheme.parts.t5.num_buckets=8 scheme.parts.t5.max_distance=16"
    ours: Any = create(configured(buckets), vocab_size=VOCAB).double().eval()
    ours.requires_grad_(False)
    decoder = (ours.scheme, ours.blocks, ours.norm, theirs.decoder)
    encoder = (ours.scheme.encoder, ours.encoder_blocks, ours.encoder_norm, theirs.encoder)
    for scheme, blocks, norm, stack in (decoder, encoder):
        table = stack.block[0].layer[0].SelfAttention.relative_attention_bias
        scheme.parts["t5"].table.data = table.weight.T[None]
        for block, other in zip(blocks, stack.block, strict=True):
            copy_block(block, other)
        norm.weight.data = stack.final_layer_norm.weight
    ours.embedding.weight.data = theirs.lm_head.weight.data = theirs.shared.weight
    tokens, answers = some_tokens(60, batch=3), (4, 29, 46)
    logits = ours.logits(states(ours, tokens, *answers))
    for row, first in zip(range(3), answers, strict=True):
        prompt, answer = tokens[row : row + 1, : first + 1], tokens[row : row + 1, first:]
        want = theirs(input_ids=prompt, decoder_input_ids=answer).logits[0]
        close(logits[row, first:], want, atol=1e-9)
    assert float(logits.std()) > 0.1  # there is something to compare


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("model.arch=t5", "model.arch: 't5' should be 'decoder' or 'encoder_decoder'"),
        ("scheme=fire", "scheme.parts.fire: not defined in an encoder, whose queries see "),
        ("scheme=alibi eval.variants=[interpolate]", "eval.variants.interpolate.alibi: not defi"),
        ("scheme=t5 scheme.parts.t5.num_buckets=7", "scheme.parts.t5: num_buckets=7 must be even"),
        ("scheme=alibi model.n_heads=1 +scheme.parts.alibi.sides=split",
         "scheme.parts.alibi: sides=split needs an even model.n_heads, not 1"),
        ("model.parallel_residual=true", "model.parallel_residual=true: model.arch=encoder_dec"),
        ("model.n_kv_heads=2", "model.n_kv_heads=2: model.arch=encoder_decoder lacks it"),
        ("runtime.compile=true", "runtime.compile=true: model.arch=encoder_decoder lacks it"),
        ("runtime.activation_checkpointing=true", "runtime.activation_checkpointing=true: model."),
        ("eval.protocols=[tail]", "eval.protocols: tail scores text from left to right, and"),
    ],
)  # fmt: skip
def test_what_a_model_with_an_encoder_cannot_be_is_one_line(words: str, said: str) -> None:
    assert refusal(configured, words).startswith(said)


def test_text_without_prompts_is_refused() -> None:
    said = refusal(valid, [*SMALL, "model.arch=encoder_decoder", "scheme=t5"])
    assert said.startswith("model.arch=encoder_decoder: corpus synthetic has no prompts")
