"""Every protocol, by hand: a model of known token frequencies on a text of 97 tokens."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small import create, experiment_of, plan_of, small_config
from small_corpora import corpus_of, files, load_tokens, split_of
from trained import QUIET, evaluate, save_model

from lengthgen.config.schema import Config
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.windows import Endpoint, Span, targets_of
from lengthgen.evaluation import evaluator, protocols, rows
from lengthgen.evaluation.protocols import PROTOCOLS, Cell
from lengthgen.evaluation.scored_text import Plan
from lengthgen.evaluation.stored import loss as loss_of
from lengthgen.model.transformer import Transformer

LETTERS = "abcd"
LENGTHS = (16, 32, 96)
TEXT = "".join(random.Random(0).choices(LETTERS, weights=(8, 4, 2, 1), k=97))
NO_CORPUS: Any = type("NoCorpus", (), {"packed": False})  # windows are placed without reading it
P = {"a": 0.5, "b": 0.25, "c": 0.125, "d": 0.0625}  # the model's; 1/16 is left for other bytes


def make_unigram(model: Transformer, probabilities: dict[int, float]) -> None:
    """Gives a model weights under which every token has its probability, whatever came before.

    All embeddings lie on one line through (1, -1, 1, ...), so that the final norm makes the same
    vector of each of them, and its product with a token's embedding is 10 D + log p.
    """
    V, D = model.embedding.weight.shape
    rest = (1 - sum(probabilities.values())) / (V - len(probabilities))
    log_p = torch.tensor([math.log(probabilities.get(v, rest)) for v in range(V)])
    line = torch.tensor([1.0, -1.0] * (D // 2))
    with torch.no_grad():
        for parameter in model.blocks.parameters():
            parameter.zero_()
        model.embedding.weight.copy_((10 + log_p[:, None] / D) * line)


class Measured(NamedTuple):
    """The evaluation of a unigram model under every protocol."""

    config: Config
    rows: Mapping[tuple[str, int], list[dict[str, Any]]]  # by protocol and length


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    root = tmp_path_factory.mktemp("unigram")
    for split in ("train", "validation"):
        (root / "text" / split).mkdir(parents=True)
    (root / "text/train/a.txt").write_text("dcba" * 50)
    (root / "text/validation/b.txt").write_text(TEXT)
    text = files(root / "text", tokenizer="bytes", vocab_size=257)
    words = (
        *("eval.lengths=[16,32,96]", "eval.max_context=96", "eval.targets=4", "eval.endpoints=1"),
        f"eval.protocols=[{','.join([*PROTOCOLS, 'sliding-8', 'sliding-1'])}]",
        *("eval.blocks=1", "eval.exact_targets=2", f"runtime.root={root}"),
    )
    config = small_config(*words).model_copy(update={"corpus": text})
    config = experiment_of(config).config  # with the arguments of the source
    corpus = loaded(config)
    tokens = corpus.validation.document(0).tolist()
    ids = {letter: tokens[TEXT.index(letter)] for letter in LETTERS}
    model = create(config, vocab_size=corpus.vocab_size)
    make_unigram(model, {ids[letter]: p for letter, p in P.items()})
    config.run_dir.mkdir(parents=True)
    save_model(config.run_dir, model, config, step=config.train.steps)
    every = evaluate(config, config.run_dir)
    rows: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in every:
        rows.setdefault((row["protocol"], row["length"]), []).append(row)
    return Measured(config, rows)


def loaded(config: Config) -> TokenizedCorpus:
    return load_tokens(config.corpus, cache_dir=config.runtime.cache_dir, say=QUIET.say)


def mean_nats(scored: Sequence[int]) -> float:
    return sum(-math.log(P[TEXT[t]]) for t in scored) / len(scored)


# The only endpoint drawn lies after target 95: 0 ... 95 stand before it, as in the stream's block.
SCORED = {
    **{("tail", length): range(92, 96) for length in LENGTHS},
    **{("last_k", length): range(92, 96) for length in LENGTHS},
    **{(f"sliding-{n}", 16): range(96) for n in (1, 8, 256)},
    **{("nonoverlap", 32): range(96), ("alibi_nonoverlap", 16): range(96)},
    **{("per_position", 96): range(96), ("yarn", 32): range(96)},
    **{("alibi_sliding1", 16): range(95, 96), ("alibi_sliding1", 96): range(95, 96)},
    **{("kerple", 16): range(16), ("kerple", 32): range(32), ("dape", 16): range(16)},
    **{("nope_f", 32): range(32), ("fox", 16): range(16), ("fox", 32): range(32)},
    ("shuffle", 32): range(92, 96),
}


@pytest.mark.parametrize(("protocol", "length"), SCORED)
def test_every_protocol_gives_the_number_that_one_computes_by_hand(
    measured: Measured, protocol: str, length: int
) -> None:
    rows, scored = measured.rows[protocol, length], SCORED[protocol, length]
    assert sum(row["n_tokens"] for row in rows) == len(scored)
    assert loss_of(rows) == pytest.approx(mean_nats(scored), rel=1e-4)


def test_frequencies_bytes_and_losses_by_position_of_the_scored_tokens(measured: Measured) -> None:
    [row] = measured.rows["nonoverlap", 16]
    p = 51 / (200 + loaded(measured.config).vocab_size)  # each letter 50 times, plus one
    assert row["unigram_nats"] == pytest.approx(-96 * math.log(p), rel=1e-12)
    assert row["n_bytes"] == 96
    [row] = measured.rows["per_position", 96]
    assert sum(row["position_tokens"]) == 96
    for i in range(16):  # one bin per position up to T
        assert row["position_nats"][i] == pytest.approx(-math.log(P[TEXT[i]]), rel=1e-3)
    assert sum(row["position_nats"]) == pytest.approx(96 * mean_nats(range(96)), rel=1e-4)


def test_a_mean_over_windows_weighs_short_windows_like_long_ones(measured: Measured) -> None:
    windows = protocols.named("yarn").windows(32, places_of(depth=80, longest=32))
    assert [s.scored for s in windows] == 2 * [32, 32, 16]
    [row] = measured.rows["yarn", 32]
    assert row["window_nats"] / row["n_windows"] == pytest.approx(mean_nats(range(96)), rel=1e-4)


def test_without_far_text_or_another_document_the_reason_is_said(measured: Measured) -> None:
    [skipped] = measured.rows["swap", 32]
    assert loss_of([skipped]) is None
    assert skipped["skipped"] == "there is one document only, and none to swap text with"
    lengths = {length for protocol, length in measured.rows if protocol in ("swap", "shuffle")}
    assert lengths == {32, 96}  # text within T is never altered
    config = small_config("eval.lengths=[16,24,25,64]", "eval.protocols=[tail,swap]")
    corpus = loaded(config)
    planned, model = plan_of(config, corpus), create(config, vocab_size=corpus.vocab_size)
    cells = {n: Cell(PROTOCOLS["swap"], None, n) for n in (24, 25, 64)}
    said = {n: evaluator.undefined(cell, model.scheme, planned) for n, cell in cells.items()}
    assert str(said[24]).startswith("of windows of up to 24 tokens, no token lies further than T")
    assert said[25] is said[64] is None


def places_of(*, depth: int = 96, longest: int = 96, blocks: int = 2) -> Plan:
    return Plan(
        corpus=NO_CORPUS,
        endpoints=(Endpoint(0, depth + 5), Endpoint(3, depth), Endpoint(0, depth + 40)),
        max_context=depth,
        blocks=blocks,
        targets=4,
        train_length=16,
        sliding_documents=2,
        exact_targets=3,
        longest=longest,
    )


def spans(protocol: str, length: int, **places: int) -> list[Span]:
    return protocols.named(protocol).windows(length, places_of(**places))


def scored(windows: Sequence[Span]) -> list[tuple[int, int]]:
    return [(s.document, t) for s in windows for t in range(s.end - s.scored, s.end)]


@pytest.mark.parametrize("length", [8, 16, 48, 96])
def test_sliding_by_whole_windows_is_nonoverlap(length: int) -> None:
    assert spans(f"sliding-{length}", length) == spans("nonoverlap", length)


@given(stride=st.integers(1, 200), length=st.integers(1, 96))
def test_sliding_scores_every_token_once_with_full_windows(stride: int, length: int) -> None:
    windows = spans(f"sliding-{stride}", length)
    every = [(d, t) for d, end in ((0, 101), (3, 96)) for t in range(end - 96, end)]
    assert sorted(scored(windows)) == sorted(every)
    assert {s.length for s in windows} == {length}
    later = [s for s in windows if s.scored < length]
    assert {s.scored for s in later} <= {min(stride, length), 96 % length, (96 - length) % stride}


@st.composite
def sizes(draw: st.DrawFn, *, beyond: bool = False) -> tuple[int, int, int]:
    """T, K and a length up to T, just beyond T, or far beyond."""
    T, K = draw(st.integers(1, 1024)), draw(st.integers(1, 256))
    near, distant = st.integers(T + 1, T + 2 * K), st.integers(T + 1, 9 * T)
    return T, K, draw(near | distant if beyond else st.integers(1, T) | near | distant)


def tail_of(T: int, K: int, length: int) -> list[Span]:
    deep = length + K - protocols.matched_block(length, K, T)
    where: Any = {"targets": K, "train_length": T, "endpoints": (Endpoint(0, deep),)}
    places = replace(places_of(depth=deep), **where)
    return protocols.named("tail").windows(length, places)


def contexts(windows: Sequence[Span]) -> dict[int, int]:
    """Returns how many inputs each scored target is predicted from."""
    return {t: t + 1 - s.start for s in windows for t in range(s.end - s.scored, s.end)}


@given(sizes())
def test_the_tail_scores_k_targets_from_nearly_c_tokens(size: tuple[int, int, int]) -> None:
    T, K, length = size
    windows = tail_of(T, K, length)
    end = max(s.end for s in windows)
    assert [t for _, t in scored(windows)] == list(range(end - K, end))
    assert all(s.length == length and s.start >= 0 for s in windows)
    seen = contexts(windows).values()
    assert max(seen) <= length
    assert min(seen) > (T if length > T else 63 / 64 * length)


def loss(T: int, K: int, length: int, *, reads: int) -> float:
    """Returns the loss of a model that gains from each of the last tokens that it reads."""
    return -sum(math.log(min(n, reads)) for n in contexts(tail_of(T, K, length)).values()) / K


@given(sizes(beyond=True))
def test_a_model_that_reads_t_tokens_gains_nothing_beyond_t(size: tuple[int, int, int]) -> None:
    T, K, length = size
    assert abs(loss(T, K, T, reads=T) - loss(T, K, length, reads=T)) <= 1 / 100


@pytest.mark.parametrize("times", [4, 8, 32])
def test_a_model_that_reads_beyond_t_gains_what_it_reads(times: int) -> None:
    at_T, beyond = (loss(512, 256, length, reads=2048) for length in (512, times * 512))
    assert at_T - beyond == pytest.approx(math.log(4), rel=0.05)


@given(sizes())
def test_a_replacement_leaves_every_target_t_tokens_of_its_own(size: tuple[int, int, int]) -> None:
    T, K, length = size
    for span in tail_of(T, K, length):
        changed = evaluator.n_replaced(span, T)
        first_scored = span.length - span.scored
        assert changed == 0 or first_scored - changed >= T
        if length > T + K:
            assert changed == length - T - K


@pytest.mark.parametrize("name", [*PROTOCOLS, "sliding-5"])
def test_no_window_leaves_its_text_and_no_token_is_scored_twice(name: str) -> None:
    for length in (8, 32, 96):
        windows = spans(name, length)
        assert windows
        assert all(s.start >= 0 and 0 < s.scored <= s.length <= length for s in windows)
        if name not in ("per_position", "fox"):  # windows of several endpoints may overlap
            assert len(set(scored(windows))) == len(scored(windows))


def test_sums_by_position_are_of_all_windows_of_a_document() -> None:
    ends = (Endpoint(0, 64), Endpoint(0, 96))
    text = corpus_of(split_of(range(97)))
    planned = replace(places_of(depth=64, longest=32), corpus=text, endpoints=ends)
    spans = protocols.named("per_position").windows(32, planned)
    scored = {s: (targets_of(s, planned.corpus), np.full(32, 1.0 + i)) for i, s in enumerate(spans)}
    [row] = rows.per_document(spans, scored, planned, copies=False, by_position=True)
    assert sum(row["position_tokens"]) == row["n_tokens"] == 64
    assert sum(row["position_nats"]) == pytest.approx(row["nats"])


def test_rows_name_the_group_of_a_document_and_of_a_block_the_one_of_most_tokens() -> None:
    split = split_of(*(np.arange(n) % 50 for n in (100, 60, 130)))
    text = corpus_of(replace(split, groups=["x", split.names[1], "y"]))
    ends = (Endpoint(0, 96), Endpoint(1, 50), Endpoint(2, 96))
    planned = replace(places_of(longest=32, blocks=3), corpus=text, endpoints=ends)

    def groups(name: str, planned: Plan) -> list[str | None]:
        spans = protocols.named(name).windows(32, planned)
        scored = {s: (targets_of(s, planned.corpus), np.zeros(s.scored)) for s in spans}
        found = rows.per_document(spans, scored, planned, copies=False, by_position=False)
        return [row["group"] for row in found]

    assert groups("tail", planned) == ["x", None, "y"]
    assert groups("alibi_nonoverlap", planned) == ["x", None, "y"]  # 96, 60 and 96 of 96 tokens
    packed = replace(corpus_of(split_of(range(290))), packed=True)
    assert groups("tail", replace(planned, corpus=packed, endpoints=(Endpoint(0, 96),))) == [None]


@pytest.mark.parametrize("name", [*PROTOCOLS, "sliding-5"])
def test_what_decides_the_scored_tokens_is_in_the_manifest(name: str) -> None:
    protocol, places = protocols.named(name), places_of()
    changes: dict[str, Any] = {"endpoints": (Endpoint(0, 101), Endpoint(2, 99)), "longest": 80}
    changes |= dict.fromkeys(("blocks", "sliding_documents", "exact_targets"), 1)
    for field, value in changes.items():
        other = replace(places, **{field: value})
        moved = any(protocol.windows(n, places) != protocol.windows(n, other) for n in (8, 32))
        named = protocol.manifest_parts(places)
        if moved:
            assert protocol.manifest_parts(other) != named, field
