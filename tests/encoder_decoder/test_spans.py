"""Encoder-decoders on text: span corruption in training, matched spans in evaluation."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from small import VOCAB, small_config
from small_corpora import random_corpus

from lengthgen.config.schema import Config
from lengthgen.data.objective import objective_of
from lengthgen.data.windows import IGNORED, Ints, Span, Windows, targets_of
from lengthgen.encoder_decoder.model import CrossBlock, EncoderDecoder
from lengthgen.encoder_decoder.spans import (
    SPANS,
    corrupted,
    masked_targets,
    n_masked,
    n_read,
    n_sentinels,
    noise_mask,
    text_length,
)
from lengthgen.errors import UserError
from lengthgen.evaluation import scoring
from lengthgen.evaluation.plan import plan
from lengthgen.evaluation.scored_text import Plan
from lengthgen.model.build import create
from lengthgen.model.transformer import Transformer
from lengthgen.runs.distributed import ALONE

LENGTHS = (4, 32, 128)
FIRST_SENTINEL = 10_000


def configured(*words: str) -> Config:
    text = ("model.arch=encoder_decoder", "scheme=t5", "eval.lengths=[4,32,128]", "eval.reach=128")
    return small_config(*text, "train.length=32", "eval.targets=10", *words)


# Rows


@pytest.mark.parametrize("n", [*range(1, 40), 114, 568, 4000])
def test_a_row_is_the_text_with_spans_left_out_and_the_spans(n: int) -> None:
    m, k = n_masked(n)
    masked = noise_mask(n, (0, 0))
    begins = np.flatnonzero(np.diff(masked.astype(int), prepend=0) == 1)
    assert (len(masked), masked.sum(), len(begins)) == (n, m, k)
    assert masked[-1]
    assert n == 1 or not masked[0]
    assert abs(m - 0.15 * n) < 1
    assert abs(k - m / 3) < 1
    inputs, targets = corrupted(np.arange(n + 1), masked, vocab_size=FIRST_SENTINEL)
    n_ignored = int((targets == IGNORED).sum())
    prompt, answer = inputs[: n_ignored + 1].tolist(), targets[n_ignored:].tolist()
    for side in (prompt, answer):  # sentinel 0 ends them
        assert [t - FIRST_SENTINEL for t in side if t >= FIRST_SENTINEL] == [*range(1, k + 1), 0]
    spans: dict[int, list[int]] = {}
    for token in answer[:-1]:
        if token >= FIRST_SENTINEL:
            spans[token] = []
        else:
            spans[max(spans)].append(token)
    assert [t for token in prompt[:-1] for t in spans.get(token, [token])] == [*range(n + 1)]


@pytest.mark.parametrize("length", [*range(3, 70), 512, 2048])
def test_the_encoder_reads_the_trained_length_and_no_window_has_more_sentinels(length: int) -> None:
    n = text_length(length)
    assert n_read(n) <= length < n_read(n + 1)
    assert all(1 + n_masked(shorter)[1] <= n_sentinels(length) for shorter in range(1, n + 1))


def test_the_sizes_are_those_of_the_release_of_t5() -> None:
    # 568 raw tokens give 512 inputs and 114 targets there, an end token on each side included;
    # sentinel 0 is that token here, and the token before the window is one more.
    assert (n_masked(568), n_read(568) - 1, text_length(513)) == ((85, 28), 512, 568)


def test_a_row_is_the_same_at_every_resume_and_another_in_every_step_and_seed() -> None:
    tokens: Ints = np.random.default_rng(1).integers(VOCAB, size=(4, 41))
    batch = Windows(tokens[:, :-1].copy(), tokens[:, 1:].copy())
    batch.targets_BT[-1, 20:] = IGNORED  # the end of a document
    first, again, other_step, other_seed = (
        objective_of(configured(f"seed={seed}")).batch(batch, vocab_size=VOCAB, step=step)
        for seed, step in ((3, 5), (3, 5), (3, 6), (4, 5))
    )
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    for other in (other_step, other_seed):
        assert not np.array_equal(first.inputs_BT, other.inputs_BT)


# Evaluation


@pytest.fixture(scope="module")
def planned() -> Plan:
    corpus = random_corpus(1, 512)
    return plan(configured("eval.deduplicate=false"), corpus)


def scores(model: Transformer, planned: Plan, length: int) -> list[float]:
    wanted = SPANS.windows(length, planned)
    nats = scoring.score(
        model,
        wanted,
        planned.corpus,
        protocol=SPANS,
        precision="fp32",
        seed=0,
        ranks=ALONE,
        advance=lambda n: None,
    )
    return np.concatenate([nats[span] for span in wanted]).tolist()


def model_of(planned: Plan) -> EncoderDecoder:
    model = create(configured(), vocab_size=planned.corpus.vocab_size).double().eval()
    assert isinstance(model, EncoderDecoder)
    return model


def test_the_same_tokens_are_scored_at_every_length(planned: Plan) -> None:
    def scored(length: int) -> list[tuple[int, int, list[int]]]:
        spans = SPANS.windows(length, planned)
        return [(s.document, s.end, SPANS.targets(s, planned).tolist()) for s in spans]

    assert scored(4) == scored(32) == scored(128)
    assert min(span.start for span in SPANS.windows(128, planned)) >= 0  # every window is full
    a, b = (masked_targets(Span(2, end, 64, 32)) for end in (900, 932))
    assert not np.array_equal(a, b)


def test_a_model_that_ignores_the_encoder_gains_nothing_from_more_text(planned: Plan) -> None:
    model = model_of(planned)
    reads = [scores(model, planned, length) for length in LENGTHS]
    with torch.no_grad():
        for block in model.blocks:
            assert isinstance(block, CrossBlock)
            block.cross_out.weight.zero_()
    ignores = [scores(model, planned, length) for length in LENGTHS]
    assert all(shorter != longer for shorter, longer in pairwise(reads))
    assert all(shorter == pytest.approx(longer, rel=1e-12) for shorter, longer in pairwise(ignores))


def test_a_masked_token_is_scored_given_the_text_around_it_and_earlier_masked_ones(
    planned: Plan,
) -> None:
    model, corpus, V = model_of(planned), planned.corpus, planned.corpus.vocab_size
    span = SPANS.windows(32, planned)[0]
    got = scores(model, planned, 32)[: n_masked(span.scored)[0]]
    n_behind_first = 2  # are left out, so that the encoder reads 32 tokens
    masked = [False] * (span.length - span.scored) + masked_targets(span).tolist()
    targets = targets_of(span._replace(scored=span.length), corpus).tolist()
    first = int(corpus.validation.document(span.document)[span.start])
    prompt, answer, n = [first], list[int](), 0
    before = False
    for token, is_masked in [*zip(targets, masked, strict=True)][n_behind_first:]:
        if is_masked and not before:
            n += 1
            prompt.append(V + n)
            answer.append(V + n)
        (answer if is_masked else prompt).append(token)
        before = is_masked
    prompt.append(V)
    assert len(prompt) == 32
    with torch.no_grad():
        x = model(torch.tensor([[*prompt, *answer]])[:, :-1], answer_B=torch.tensor([31]))
    nats = -model.logits(x)[0].detach().log_softmax(-1)[31:]
    want = [float(nats[i, token]) for i, token in enumerate(answer) if token < V]
    assert got == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("eval.protocols=[tail]", "eval.protocols: tail scores text from left to right, and this "),
        ("model.arch=decoder eval.protocols=[spans]", "eval.protocols: spans scores masked spans"),
        ("eval.lengths=[3,32]", "eval.lengths: 3 is shorter than the 4 targets that a window of"),
    ],
)
def test_what_cannot_be_scored_is_one_line(words: str, said: str) -> None:
    with pytest.raises(UserError, match=f"^{said}") as error:
        configured(*words.split())
    assert "\n" not in str(error.value)
