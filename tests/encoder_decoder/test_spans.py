"""Encoder-decoders on text: span corruption in training, matched spans in evaluation."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from small import VOCAB, small_config
from small_corpora import random_corpus
from trained import QUIET

from lengthgen.config.schema import Config
from lengthgen.data.windows import targets_of
from lengthgen.encoder_decoder.model import CrossBlock, EncoderDecoder
from lengthgen.encoder_decoder.objective import SPANS
from lengthgen.encoder_decoder.span_corruption import masked_targets, n_masked
from lengthgen.errors import UserError
from lengthgen.evaluation import evaluator
from lengthgen.evaluation.plan import plan
from lengthgen.evaluation.plan import windows as spans
from lengthgen.evaluation.scored_text import Cell, Plan
from lengthgen.evaluation.scoring import score
from lengthgen.model.build import create
from lengthgen.model.transformer import Transformer
from lengthgen.pipeline import train_and_evaluate
from lengthgen.probes.run import probe
from lengthgen.runs.distributed import ALONE, Ranks
from lengthgen.training.step import batch_of, fresh_state, windows_of

TEXT = ["model.arch=encoder_decoder", "scheme=t5", "eval.lengths=[4,32,128]", "eval.reach=128"]
LENGTHS = (4, 32, 128)


def configured(*words: str) -> Config:
    return small_config(*TEXT, "train.length=32", "eval.targets=10", *words)


@pytest.fixture(scope="module")
def planned() -> Plan:
    corpus = random_corpus(small_config("train.batch_tokens=64"), VOCAB)
    return plan(configured("eval.deduplicate=false"), corpus)


def scores(model: Transformer, planned: Plan, *lengths: int) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for length in lengths:
        wanted = spans(Cell("spans", None, length), planned)
        nats = score(
            model,
            wanted,
            planned.corpus,
            precision="fp32",
            seed=0,
            ranks=ALONE,
            advance=lambda n: None,
            protocol=SPANS,
        )
        found[length] = np.concatenate([nats[span] for span in wanted]).tolist()
    return found


def model_of(planned: Plan) -> EncoderDecoder:
    model = create(configured(), vocab_size=planned.corpus.vocab_size).double().eval()
    assert isinstance(model, EncoderDecoder)
    return model


def test_the_same_tokens_are_scored_at_every_length(planned: Plan) -> None:
    def scored(length: int) -> list[tuple[int, int, list[int]]]:
        return [
            (
                span.document,
                span.end,
                targets_of(span, planned.corpus)[masked_targets(span)].tolist(),
            )
            for span in spans(Cell("spans", None, length), planned)
        ]

    assert scored(4) == scored(32) == scored(128)
    ends = [span.end for span in spans(Cell("spans", None, 128), planned)]
    assert min(ends) >= 128  # so that every window is full


def test_a_model_that_ignores_the_encoder_gains_nothing_from_more_text(planned: Plan) -> None:
    model = model_of(planned)
    reads = scores(model, planned, *LENGTHS)
    with torch.no_grad():
        for block in model.blocks:
            assert isinstance(block, CrossBlock)
            block.cross_out.weight.zero_()
    ignores = scores(model, planned, *LENGTHS)
    for one, other in pairwise(LENGTHS):
        assert reads[one] != reads[other]
        assert ignores[one] == pytest.approx(ignores[other], rel=1e-12)


def test_a_masked_token_is_scored_given_the_text_around_it_and_earlier_masked_ones(
    planned: Plan,
) -> None:
    model, corpus = model_of(planned), planned.corpus
    span = spans(Cell("spans", None, 32), planned)[0]
    masked = [False] * (span.length - span.scored) + masked_targets(span).tolist()
    got = scores(model, planned, 32)[32][: n_masked(span.scored)[0]]
    targets = targets_of(span._replace(scored=span.length), corpus)[2:]
    masked = masked[2:]  # so that the encoder reads 32 tokens
    first = int(corpus.validation.document(span.document)[span.start])
    begins = [m and not (i and masked[i - 1]) for i, m in enumerate(masked)]
    V = corpus.vocab_size
    prompt, answer, n = [first], list[int](), 0
    for token, is_masked, starts in zip(targets.tolist(), masked, begins, strict=True):
        if starts:
            n += 1
            prompt.append(V + n)
            answer.append(V + n)
        (answer if is_masked else prompt).append(token)
    prompt.append(V)
    assert len(prompt) == 32
    row = torch.tensor([[*prompt, *answer]])
    with torch.no_grad():
        x = model(row[:, :-1], answer_B=torch.tensor([len(prompt) - 1]))
    nats = -model.logits(x)[0].detach().log_softmax(-1)[len(prompt) - 1 :]
    want = [float(nats[i, token]) for i, token in enumerate(answer) if token < V]
    assert got == pytest.approx(want, rel=1e-9)


def test_rows_do_not_depend_on_the_number_of_processes(planned: Plan) -> None:
    config, corpus = configured(), planned.corpus
    state = fresh_state(
        config, create(config, vocab_size=corpus.vocab_size), device=torch.device("cpu")
    )
    windows = windows_of(config, corpus)
    two = [Ranks(rank=rank, world_size=2, local_rank=rank) for rank in (0, 1)]
    whole = batch_of(state, windows, ranks=ALONE)
    halves = [batch_of(state, windows, ranks=ranks) for ranks in two]
    rows = torch.cat([micro.inputs_BT for micro in whole.micro_batches])
    for rank, half in enumerate(halves):
        mine = torch.cat([micro.inputs_BT for micro in half.micro_batches])
        assert torch.equal(mine, rows[rank::2])
        assert half.n_targets == whole.n_targets
    starts = state.model.answer_starts(whole.micro_batches[0].targets_BT)["answer_B"]
    assert int(starts.max()) + 1 == config.train.length  # tokens that the encoder reads


REFUSED = [
    (
        "eval.protocols=[tail]",
        "eval.protocols: tail scores text from left to right, and this model learns masked",
    ),
    ("model.arch=decoder eval.protocols=[spans]", "eval.protocols: spans scores masked spans, and"),
    (
        "eval.lengths=[3,32]",
        "eval.lengths: 3 is shorter than the 4 targets that a window of",
    ),
    ("train.length=2 train.batch_tokens=128", "train.length=2: text with a masked span has 3"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_what_cannot_be_scored_is_one_line(words: str, said: str) -> None:
    with pytest.raises(UserError, match=f"^{said}") as error:
        configured(*words.split())
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_run_on_text_is_trained_and_evaluated_by_length(tmp_path: Path) -> None:
    config = configured(f"runtime.root={tmp_path}")
    run_dir = train_and_evaluate(config, ranks=ALONE, show=QUIET)
    rows = evaluator.evaluate(config, run_dir, ranks=ALONE, show=QUIET)
    by_length = {length: [r for r in rows if r["length"] == length] for length in LENGTHS}
    counts = {sum(r["n_tokens"] for r in found) for found in by_length.values()}
    floors = {sum(r["unigram_nats"] for r in found) for found in by_length.values()}
    assert len(counts) == len(floors) == 1
    assert counts != {0}
    assert all(np.isfinite(row["nats"]) for row in rows)
    with pytest.raises(UserError, match=r"^probe: .* has model.arch=encoder_decoder"):
        probe(config, run_dir, [], show=QUIET)
