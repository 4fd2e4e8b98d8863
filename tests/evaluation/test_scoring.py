"""Forward passes: shared prefixes, altered far text, and the same bits however they are divided."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from evaluated import ALONE, QUIET
from small import every_scheme, small_config, small_model

from lengthgen.data import corpora
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.spans import Span
from lengthgen.evaluation import evaluator, plan, scoring
from lengthgen.evaluation.scored_text import Cell, Nats, Plan
from lengthgen.evaluation.scoring import Altered, shared
from lengthgen.model.transformer import Transformer

VOCAB = 50  # of small_model


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> TokenizedCorpus:
    config = small_config()
    found = corpora.load(config.corpus, cache_dir=tmp_path_factory.mktemp("cache"), say=QUIET.say)
    assert found.bos_id is not None
    return found


@pytest.fixture(scope="module")
def planned(corpus: TokenizedCorpus) -> Plan:
    return plan.plan(small_config("eval.endpoints=6"), corpus)


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
    altered: Altered | None = None,
    advance: Callable[[int], None] = lambda n: None,
) -> dict[Span, Nats]:
    return scoring.score(
        model,
        spans,
        corpus,
        precision="fp32",
        seed=0,
        ranks=ALONE,
        advance=advance,
        altered=altered,
    )


def all_spans(protocol: str, planned: Plan) -> list[Span]:
    return [
        s for length in (16, 32, 64) for s in plan.windows(Cell(protocol, None, length), planned)
    ]


# Prefixes


@pytest.mark.parametrize(("scheme", "variant"), every_scheme())
def test_a_shared_pass_gives_what_each_window_gives_alone(
    scheme: str, variant: str | None, corpus: TokenizedCorpus, planned: Plan
) -> None:
    model = model_of(corpus, scheme, variant)
    if model.scheme.unsupported_reason(64):
        pytest.skip(str(model.scheme.unsupported_reason(64)))
    spans = [*all_spans("nonoverlap", planned)[:40], *all_spans("last_k", planned)]
    together = score(model, spans, corpus)
    for span in spans:
        alone = score(model, [span], corpus)[span]
        np.testing.assert_allclose(together[span], alone, rtol=0, atol=1e-9)


def test_windows_are_shared_unless_the_scheme_depends_on_the_length(
    corpus: TokenizedCorpus, planned: Plan
) -> None:
    spans = all_spans("nonoverlap", planned)
    cost: dict[str, int] = {}
    for variant in ("window", "dynamic_ntk", "temperature"):
        model = model_of(corpus, "rope", variant)
        cost[variant] = sum(one.n_tokens for one in scoring.passes(model, spans))
    alone = sum(span.length for span in spans)
    assert cost["dynamic_ntk"] == cost["temperature"] == alone
    assert cost["window"] == sum(host.length for host in set(shared(spans).values())) < alone


def test_a_prefix_is_not_the_same_where_the_scheme_depends_on_the_length(
    corpus: TokenizedCorpus,
) -> None:
    long, short = Span(0, 64, 64, 64), Span(0, 32, 32, 32)
    for variant, same in (("window", True), ("dynamic_ntk", False), ("temperature", False)):
        model = model_of(corpus, "rope", variant)
        whole, part = score(model, [long], corpus)[long], score(model, [short], corpus)[short]
        assert np.allclose(whole[:32], part, rtol=0, atol=1e-9) == same, variant


def test_progress_adds_up_to_the_tokens_of_the_passes(
    corpus: TokenizedCorpus, planned: Plan
) -> None:
    model, spans, seen = model_of(corpus), all_spans("nonoverlap", planned), list[int]()
    score(model, spans, corpus, advance=seen.append)
    assert sum(seen) == sum(one.n_tokens for one in scoring.passes(model, spans))


def test_short_windows_come_first(corpus: TokenizedCorpus, planned: Plan) -> None:
    spans = all_spans("nonoverlap", planned)[::-1]
    found = scoring.passes(model_of(corpus), spans)
    lengths = [one.hosts[0].length for one in found]
    assert lengths == sorted(lengths)
    assert all(len({host.length for host in one.hosts}) == 1 for one in found)


# Far text


def altered(kind: str, spans: list[Span], *, T: int = 8) -> Altered:
    donors = {s: s._replace(document=1 - s.document) for s in spans}
    named = "swap" if kind == "swap" else "shuffle"
    return Altered(kind=named, train_length=T, donors=donors, seed=0)


def recorded_calls(model: Transformer) -> list[np.ndarray]:
    """Returns the list into which the tokens of every later call go."""
    calls: list[np.ndarray] = []
    model.register_forward_pre_hook(lambda _, args: calls.append(args[0].numpy()))
    return calls


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("kind", ["swap", "shuffle"])
def test_far_text_is_altered_and_t_tokens_before_each_target_are_not(
    kind: str, bos: bool, corpus: TokenizedCorpus
) -> None:
    corpus = corpus if bos else replace(corpus, bos_id=None)
    model, span = model_of(corpus), Span(0, 80, 64, 8)
    calls = recorded_calls(model)
    score(model, [span], corpus)
    score(model, [span], corpus, altered=altered(kind, [span]))
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


def test_a_model_that_sees_t_tokens_does_not_notice_a_swap(corpus: TokenizedCorpus) -> None:
    """Windows of T/2 in two layers: no scored token reaches what stands T tokens back."""
    span = Span(0, 80, 64, 1)
    near, whole = model_of(corpus, "rope", "bca"), model_of(corpus)
    for model, notices in ((near, True), (whole, True)):
        plain = score(model, [span], corpus)[span]
        swapped = score(model, [span], corpus, altered=altered("swap", [span]))[span]
        assert (abs(plain - swapped).max() > 1e-6) == notices
    swapped = score(near, [span], corpus, altered=altered("swap", [span], T=39))[span]
    np.testing.assert_allclose(swapped, score(near, [span], corpus)[span], rtol=0, atol=1e-12)


def test_documents_take_text_of_three_others(tmp_path: Path) -> None:
    config = small_config("eval.endpoints=9", "eval.protocols=[swap]", "corpus.documents=60")
    planned = plan.plan(config, corpora.load(config.corpus, cache_dir=tmp_path, say=QUIET.say))
    spans = plan.windows(Cell("swap", None, 64), planned)
    documents = {span.document for span in spans}
    assert len(documents) > 3
    found = evaluator.replacements(config, planned, "swap", spans)
    assert len(found) == 3
    for span in spans:
        donors = [one.donors[span] for one in found]
        assert len({donor.document for donor in donors} | {span.document}) == 4
        assert all(donor.length == 64 and donor.start >= 0 for donor in donors)
    for one in found:  # each donor gives as often as it takes
        given = {span.document: donor.document for span, donor in one.donors.items()}
        assert set(given.values()) == set(given)


def test_shuffles_are_three_different_orders(corpus: TokenizedCorpus) -> None:
    config = small_config("eval.protocols=[shuffle]")
    planned = plan.plan(config, corpus)
    [span, *_] = plan.windows(Cell("shuffle", None, 64), planned)
    model = model_of(corpus)
    calls = recorded_calls(model)
    for one in evaluator.replacements(config, planned, "shuffle", [span]):
        score(model, [span], corpus, altered=one)
    assert len({call.tobytes() for call in calls}) == 3
