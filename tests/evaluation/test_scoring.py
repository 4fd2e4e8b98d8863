"""Forward passes: shared prefixes, altered far text, and the same bits however they are divided."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import hidden, plan_of, small_config, small_model
from small_corpora import load_tokens
from trained import ALONE, QUIET

from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.windows import Endpoint, Span
from lengthgen.evaluation import evaluator, scoring
from lengthgen.evaluation.protocols import PROTOCOLS, Cell, named
from lengthgen.evaluation.scored_text import Nats, Plan
from lengthgen.evaluation.scoring import Replace, shared
from lengthgen.model.transformer import Transformer

VOCAB = 50  # of small_model


@pytest.fixture(scope="module")
def planned(corpus: TokenizedCorpus) -> Plan:
    return plan_of(small_config("eval.endpoints=6"), corpus)


def model_of(
    corpus: TokenizedCorpus, scheme: str = "rope", variant: str | None = None
) -> Transformer:
    model = small_model(scheme, variant)
    weight = model.embedding.weight
    rows = weight.data[np.arange(corpus.vocab_size) % VOCAB] * 1.0
    weight.data = rows
    model.embedding.num_embeddings = corpus.vocab_size
    return model


def score(
    model: Transformer,
    spans: list[Span],
    corpus: TokenizedCorpus,
    *,
    replaced: Replace | None = None,
    advance: Callable[[int], object] = id,
) -> dict[Span, Nats]:
    how: Any = {"precision": "fp32", "seed": 0, "ranks": ALONE, "advance": advance}
    return scoring.score(model, spans, corpus, replace=replaced, **how)


def all_spans(protocol: str, planned: Plan) -> list[Span]:
    cells = [Cell(named(protocol), None, length) for length in (16, 32, 64)]
    return [span for cell in cells for span in cell.windows(planned)]


def nats_alone(model: Transformer, span: Span, corpus: TokenizedCorpus) -> Nats:
    """Returns the nats of a span's targets from one call of the model on its window."""
    tokens = corpus.validation.document(span.document)
    targets = torch.from_numpy(tokens[span.start : span.end].astype(int))[None]
    inputs = torch.cat([torch.tensor([corpus.beginning]), targets[:, :-1]], dim=1)
    with torch.no_grad():
        x = hidden(model, inputs)
        return model.token_nll(x, targets)[0, -span.scored :].numpy()


@pytest.mark.parametrize("protocol", ["tail", "nonoverlap", "sliding-8", "alibi_sliding1", "fox"])
@pytest.mark.parametrize("scheme", [("rope",), ("t5",), ("rope", "yarn"), ("rope", "dynamic_ntk")])
def test_a_shared_pass_gives_what_each_window_gives_alone(
    scheme: tuple[str, ...], protocol: str, corpus: TokenizedCorpus, planned: Plan
) -> None:
    model, spans = model_of(corpus, *scheme), all_spans(protocol, planned)
    together = score(model, spans, corpus)
    for span in spans[::3]:
        want = nats_alone(model, span, corpus)
        np.testing.assert_allclose(together[span], want, rtol=0, atol=1e-9)


def test_windows_are_shared_unless_length_matters(corpus: TokenizedCorpus, planned: Plan) -> None:
    spans, costs = all_spans("nonoverlap", planned), dict[bool, int]()
    for variant, is_shared in (("window", True), ("dynamic_ntk", False)):
        model, advanced = model_of(corpus, "rope", variant), list[int]()
        calls = recorded_calls(model)
        score(model, spans, corpus, advance=advanced.append)
        costs[is_shared] = sum(call.size for call in calls)
        passes = scoring.passes(scoring.hosts(model, spans, predicts=False))
        assert sum(advanced) == sum(batch.cost(model) for batch in passes)
    assert costs[False] == sum(span.length for span in spans)
    assert costs[True] == sum(host.length for host in set(shared(spans).values())) < costs[False]


def replacement(kind: str, planned: Plan) -> Replace:
    """Returns the first replacement of far text, of two documents, with T = 8."""
    two = (Endpoint(0, 80), Endpoint(1, 80))
    planned = replace(planned, endpoints=two, train_length=8)
    return evaluator.replacements(PROTOCOLS[kind], planned, seed=0)[0]


def recorded_calls(model: Transformer) -> list[np.ndarray]:
    """Returns the list into which the tokens of every later call go."""
    calls: list[np.ndarray] = []
    model.register_forward_pre_hook(lambda _, args: calls.append(args[0].numpy()))
    return calls


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("kind", ["swap", "shuffle"])
def test_far_text_is_altered_and_t_tokens_before_each_target_are_not(
    kind: str, bos: bool, corpus: TokenizedCorpus, planned: Plan
) -> None:
    corpus = corpus if bos else replace(corpus, bos_id=None)
    planned = replace(planned, corpus=corpus)
    model, span = model_of(corpus), Span(0, 80, 64, 8)
    calls = recorded_calls(model)
    score(model, [span], corpus)
    score(model, [span], corpus, replaced=replacement(kind, planned))
    score(model, [span._replace(document=1)], corpus)
    plain, changed, other = (call[0] for call in calls)
    first = 1 if bos else 0
    far = slice(first, first + 48)  # T = 8 tokens before the first of 8 targets are kept
    assert (changed[:first] == plain[:first]).all()
    assert (changed[far.stop :] == plain[far.stop :]).all()
    assert (changed[far] != plain[far]).any()
    if kind == "swap":
        assert (changed[far] == other[far]).all()
    else:
        assert sorted(changed[far]) == sorted(plain[far])


def test_documents_take_text_of_three_others(tmp_path: Path) -> None:
    config = small_config("eval.endpoints=9", "eval.protocols=[swap]", "corpus.documents=60")
    planned = plan_of(config, load_tokens(config.corpus, cache_dir=tmp_path, say=QUIET.say))
    spans = Cell(PROTOCOLS["swap"], None, 64).windows(planned)
    documents = {span.document for span in spans}
    assert len(documents) > 3
    assert len(evaluator.replacements(PROTOCOLS["swap"], planned, seed=0)) == 3
    for n in (1, 2, 3):  # each document gives as often as it takes
        given = {span.document: evaluator.donor(span, n, planned).document for span in spans}
        assert {*given.values()} == {*given}
    for span in spans:
        donors = [evaluator.donor(span, n, planned) for n in (1, 2, 3)]
        assert len({donor.document for donor in donors} | {span.document}) == 4
        assert all(donor.length == 64 and donor.start >= 0 for donor in donors)


def test_shuffles_are_three_different_orders(corpus: TokenizedCorpus) -> None:
    config = small_config("eval.protocols=[shuffle]")
    planned = plan_of(config, corpus)
    [span, *_] = Cell(PROTOCOLS["shuffle"], None, 64).windows(planned)
    model = model_of(corpus)
    calls = recorded_calls(model)
    for replaced in evaluator.replacements(PROTOCOLS["shuffle"], planned, seed=0):
        score(model, [span], corpus, replaced=replaced)
    assert len({call.tobytes() for call in calls}) == 3
