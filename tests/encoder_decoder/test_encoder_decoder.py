"""Models with an encoder: what each side sees, parity with HF T5, masked spans, refusals."""

from copy import deepcopy
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from small import (
    SMALL,
    SMALL_TASK,
    VOCAB,
    close,
    create,
    experiment_of,
    imported,
    plan_of,
    refusal,
    some_tokens,
    valid,
)
from small_corpora import random_corpus
from torch import Tensor, nn
from trained import ALONE

from lengthgen.config.schema import Config
from lengthgen.data.windows import IGNORED, Ints, Windows
from lengthgen.encoder_decoder import spans
from lengthgen.encoder_decoder.model import CrossBlock
from lengthgen.encoder_decoder.spans import SPANS, masked_targets, n_masked
from lengthgen.evaluation import scoring
from lengthgen.evaluation.scored_text import Plan
from lengthgen.model.build import redesigned
from lengthgen.training.optim import optimizers_of

SCHEMES = ["nope", "learned_absolute", "rope", "t5", "alibi +scheme.parts.alibi.sides=split"]
EVERY = pytest.mark.parametrize("scheme", SCHEMES)
TEXT = "scheme=t5 eval.lengths=[4,32,128] eval.max_context=128 train.length=32 eval.targets=10"
LENGTHS = (4, 32, 128)
FIRST_SENTINEL = 10_000


def configured(words: str, *, arch: str = "encoder_decoder", text: bool = False) -> Config:
    """Returns the configuration of a model of a task, or of text."""
    asked = [*(SMALL if text else SMALL_TASK), f"model.arch={arch}", *words.split()]
    return valid(asked)


@lru_cache
def model_of(words: str, arch: str = "encoder_decoder") -> Any:
    """Returns a model in float64 with all parameters moved off their initial values."""
    config = configured(f"scheme={words} train.length=16", arch=arch)
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
    of_arch = ends if model.arch == "encoder" else {}
    return model(tokens, answer_B=torch.tensor(answers), **of_arch)


@EVERY
@pytest.mark.parametrize("arch", ["encoder_decoder", "encoder"])
def test_all_of_the_prompt_is_seen_and_of_the_answer_what_is_before(arch: str, scheme: str) -> None:
    model, tokens, first = model_of(scheme, arch), some_tokens(14, batch=1), 6
    before = states(model, tokens, first)
    changed = tokens.repeat(14, 1)
    changed.diagonal().add_(7).remainder_(VOCAB)
    for i, after in enumerate(states(model, changed, *[first] * 14)):
        differs = ~torch.isclose(before[0], after, rtol=1e-9).all(-1)[first:]
        first_seeing = max(0, i - first) if arch == "encoder_decoder" else 8 * (i > first)
        assert differs.tolist() == [place >= first_seeing for place in range(8)]
    if arch == "encoder":  # without positions all masks are one token in one context
        is_same = torch.allclose(before[:, first:], before[:, -1:], rtol=0, atol=1e-12)
        assert is_same == (scheme == "nope")


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


@pytest.mark.parametrize("n", [1, 2, 3, 7, 20, 39, 114, 568, 4000])
def test_a_row_is_the_text_with_spans_left_out_and_the_spans(n: int) -> None:
    m, k = n_masked(n)
    masked = spans.noise_mask(n, (0, 0))
    begins = np.flatnonzero(np.diff(masked.astype(int), prepend=0) == 1)
    assert (len(masked), masked.sum(), len(begins)) == (n, m, k)
    assert masked[-1]
    assert n == 1 or not masked[0]
    assert max(abs(m - 0.15 * n), abs(k - m / 3)) < 1
    inputs, targets = spans.corrupted(np.arange(n + 1), masked, vocab_size=FIRST_SENTINEL)
    n_ignored = int((targets == IGNORED).sum())
    prompt, answer = inputs[: n_ignored + 1].tolist(), targets[n_ignored:].tolist()
    for side in (prompt, answer):  # sentinel 0 ends them
        assert [t - FIRST_SENTINEL for t in side if t >= FIRST_SENTINEL] == [*range(1, k + 1), 0]
    filled: dict[int, list[int]] = {}
    for token in answer[:-1]:
        filled |= {token: []} if token >= FIRST_SENTINEL else {}
        filled[max(filled)] += [token] if token < FIRST_SENTINEL else []
    assert [t for token in prompt[:-1] for t in filled.get(token, [token])] == [*range(n + 1)]


def test_the_encoder_reads_the_trained_length_as_in_t5_and_no_window_has_more_sentinels() -> None:
    for length in (*range(3, 70), 512):
        n = spans.text_length(length)
        assert spans.n_read(n) <= length < spans.n_read(n + 1)
        assert 1 + max(n_masked(i)[1] for i in range(1, n + 1)) <= spans.n_sentinels(length)
    # 568 raw tokens give 512 inputs and 114 targets in its release, an end token on each side
    # included; sentinel 0 is that token here, and the token before the window is one more.
    assert (n_masked(568), spans.n_read(568), spans.text_length(513)) == ((85, 28), 513, 568)


def test_a_row_is_the_same_at_every_resume_and_another_in_every_step_and_seed() -> None:
    tokens: Ints = np.random.default_rng(1).integers(VOCAB, size=(4, 41))
    batch = Windows(tokens[:, :-1].copy(), tokens[:, 1:].copy())
    batch.targets_BT[-1, 20:] = IGNORED  # the end of a document

    def rows(seed: int, step: int) -> Windows:
        objective = experiment_of(configured(f"{TEXT} seed={seed}", text=True)).objective
        return objective.batch(batch, vocab_size=VOCAB, step=step)

    first, again, *others = rows(3, 5), rows(3, 5), rows(3, 6), rows(4, 5)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(np.array_equal(first.inputs_BT, other.inputs_BT) for other in others)
    assert len({(row >= VOCAB).tobytes() for row in first.inputs_BT[:3]}) > 1  # each has its own


@pytest.fixture(scope="module")
def planned() -> Plan:
    return plan_of(configured(f"{TEXT} eval.deduplicate=false", text=True), random_corpus(1, 512))


def text_model() -> Any:
    return create(configured(TEXT, text=True), vocab_size=VOCAB).double().eval()


def scores(model: Any, planned: Plan, length: int) -> list[float]:
    wanted = SPANS.windows(length, planned)
    how: Any = {"precision": "fp32", "seed": 0, "ranks": ALONE, "advance": id}
    nats = scoring.score(model, wanted, planned.corpus, protocol=SPANS, **how)
    return np.concatenate([nats[span] for span in wanted]).tolist()


def test_the_same_tokens_are_scored_at_every_length(planned: Plan) -> None:
    def scored(length: int) -> list[tuple[int, int, list[int]]]:
        windows = SPANS.windows(length, planned)
        assert min(span.start for span in windows) >= 0  # every window is full
        return [(s.document, s.end, SPANS.targets(s, planned).tolist()) for s in windows]

    assert scored(4) == scored(32) == scored(128)


def test_a_model_that_ignores_the_encoder_gains_nothing_from_more_text(planned: Plan) -> None:
    model = text_model()
    reads = [scores(model, planned, length) for length in LENGTHS]
    ignore_the_encoder(model)
    ignores = [scores(model, planned, length) for length in LENGTHS]
    assert all(shorter != longer for shorter, longer in pairwise(reads))
    assert all(shorter == pytest.approx(longer, rel=1e-12) for shorter, longer in pairwise(ignores))


def test_a_masked_token_is_scored_given_text_around_and_earlier_ones(planned: Plan) -> None:
    model, span = text_model(), SPANS.windows(32, planned)[0]
    nats = scores(model, planned, 32)[: n_masked(span.scored)[0]]
    masked = np.array([False] * (span.length - span.scored) + masked_targets(span).tolist())
    text = planned.corpus.validation.document(span.document)[span.start : span.end + 1]
    text = np.delete(text.astype(np.int64), [1, 2])  # so that the encoder reads 32 tokens
    inputs, targets = map(torch.tensor, spans.corrupted(text, masked[2:], vocab_size=VOCAB))
    with torch.no_grad():
        log_p = model.logits(model(inputs[None], answer_B=torch.tensor([31])))[0].log_softmax(-1)
    assert (targets[:31] == IGNORED).all()
    want = [-float(log_p[i, t]) for i, t in enumerate(targets) if 0 <= t < VOCAB]
    assert nats == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("model.arch=t5", "model.arch: 't5' should be 'decoder', 'encoder' or 'encoder_decoder'"),
        ("scheme=fire", "scheme.parts.fire: not defined in an encoder, whose queries see "),
        ("scheme=alibi eval.variants=[interpolate]", "eval.variants.interpolate.alibi: not defi"),
        ("scheme=t5 scheme.parts.t5.num_buckets=7", "scheme.parts.t5: num_buckets=7 must be even"),
        ("scheme=alibi model.n_heads=1 +scheme.parts.alibi.sides=split",
         "scheme.parts.alibi: sides=split needs an even model.n_heads, not 1"),
        ("model.parallel_residual=true", "model.parallel_residual=true: model.arch=encoder_dec"),
        ("model.n_kv_heads=2", "model.n_kv_heads=2: model.arch=encoder_decoder lacks it"),
        ("runtime.compile=true", "runtime.compile=true: model.arch=encoder_decoder lacks it"),
        ("runtime.activation_checkpointing=true model.arch=encoder", "runtime.activation_check"),
        ("eval.decode=2 model.arch=encoder", "eval.decode=2: model.arch=encoder writes all of an"),
        ("text model.arch=encoder", "model.arch=encoder: corpus synthetic has no prompts"),
        ("text eval.protocols=[tail]", "eval.protocols: tail scores text from left to right, and"),
        ("text model.arch=decoder eval.protocols=[spans]", "eval.protocols: spans scores masked"),
        ("text eval.lengths=[3,32]", "eval.lengths: 3 is shorter than the 4 targets that a window"),
    ],
)  # fmt: skip
def test_what_a_model_with_an_encoder_cannot_be_is_one_line(words: str, said: str) -> None:
    of_text = words.startswith("text ")
    words = f"{TEXT} {words.removeprefix('text ')}" if of_text else words
    assert refusal(configured, words, text=of_text).startswith(said)
