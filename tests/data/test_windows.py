"""Training windows are a pure function of seed and step; evaluation windows score what they say."""

import math
from dataclasses import replace

import numpy as np
import pytest
import small_corpora
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from small_corpora import split_of

from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.windows import (
    IGNORED,
    Endpoint,
    TrainingWindows,
    consecutive_batch,
    endpoints,
    manifest,
    permuted,
    share_seen,
    train_batch,
)

BOS = 9_999


def corpus_of(lengths: list[int], *, bos: bool = True) -> TokenizedCorpus:
    """Returns a corpus whose token t of document d is 1000 d + t, in both splits."""
    split = split_of(*(1000 * d + np.arange(n) for d, n in enumerate(lengths)))
    return small_corpora.corpus_of(split, bos_id=BOS if bos else None)


def batches_of(corpus: TokenizedCorpus, *, length: int, batch: int, steps: int, seed: int = 1):
    windows = TrainingWindows(corpus, length)
    return [train_batch(windows, seed=seed, step=step, batch=batch) for step in range(steps)]


def test_consecutive_rows_read_on_where_they_stopped_and_an_epoch_has_every_target_once() -> None:
    lengths = [37, 8, 64, 5, 90, 23]
    windows = TrainingWindows(corpus_of(lengths), 8)
    steps, left = divmod(windows.count, 2)
    assert left == 0
    before: list[int | None] = [None] * 2
    continued = 0
    for epoch in range(3):
        seen: list[int] = []
        for step in range(steps):
            batch, anew = consecutive_batch(windows, seed=1, step=epoch * steps + step, batch=2)
            for row, targets in enumerate(batch.targets_BT):
                scored = targets[targets != IGNORED].tolist()
                assert anew[row] == (scored[0] % 1000 == 0 or step == 0)
                assert batch.inputs_BT[row, 0] == (BOS if anew[row] else scored[0] - 1)
                assert anew[row] or scored[0] == before[row]
                continued += not anew[row]
                before[row] = scored[-1] + 1
                seen += scored
        assert sorted(seen) == [1000 * d + t for d, n in enumerate(lengths) for t in range(n)]
    assert continued > windows.count  # of the 3 windows.count rows


@given(n=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
def test_a_permutation_meets_every_index_once(n: int, key: int) -> None:
    keys: NDArray[np.uint64] = np.full(n, key, dtype=np.uint64)
    order = permuted(np.arange(n), n, key=keys)
    assert sorted(order.tolist()) == list(range(n))
    if n > 500:
        other = permuted(np.arange(n), n, key=keys ^ np.uint64(1))
        assert abs(np.corrcoef(order, other)[0, 1]) < 0.2
        assert np.mean(order == other) < 0.05


@given(
    others=st.lists(st.integers(1, 99), max_size=7),
    length=st.integers(1, 40),
    bos=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_each_epoch_holds_every_target_in_windows_that_stay_in_their_document(
    others: list[int], length: int, bos: bool, seed: int
) -> None:
    lengths = [5, *others]  # documents of one token may have no target
    corpus = corpus_of(lengths, bos=bos)
    first = 0 if bos else 1  # target of a document
    windows = TrainingWindows(corpus, length)
    count = windows.count
    assert count == sum(math.ceil((n - first) / length) for n in lengths)
    wanted = {1000 * d + t for d, n in enumerate(lengths) for t in range(first, n)}
    for epoch in np.arange(2 * count).reshape(2, count):
        seen: set[int] = set()
        for step in epoch.tolist():
            (inputs,), (targets,) = train_batch(windows, seed=seed, step=step, batch=1)
            scored = targets[targets != IGNORED]
            assert len({target // 1000 for target in scored}) == 1
            assert (np.diff(scored) == 1).all()
            assert inputs[0] == (BOS if bos else targets[0] - 1)
            assert (inputs[1 : len(scored)] == scored[:-1]).all()
            seen.update(scored.tolist())
        assert seen == wanted


def test_epochs_cut_a_document_anew() -> None:
    batches = batches_of(corpus_of([70]), length=16, batch=5, steps=12)
    assert len({sorted(batch.targets_BT[:, 0].tolist())[1] for batch in batches}) > 3


def test_a_batch_depends_on_its_step_alone_and_a_large_one_is_small_ones_in_a_row() -> None:
    corpus = corpus_of([50, 60, 70, 80])
    small = batches_of(corpus, length=16, batch=2, steps=6)
    large = batches_of(corpus, length=16, batch=6, steps=2)
    alone = train_batch(TrainingWindows(corpus, 16), seed=1, step=1, batch=6)
    for part in (0, 1):
        rows = np.concatenate([batch[part] for batch in small])
        assert (rows == np.concatenate([batch[part] for batch in large])).all()
        assert (alone[part] == rows[6:]).all()


def drawn(
    corpus: TokenizedCorpus, *, seen: NDArray[np.bool_] | None = None, **changed: int
) -> list[Endpoint]:
    asked = {"depth": 64, "count": 10, "per_document": 4, "spacing": 8, "targets": 8, "seed": 0}
    return endpoints(corpus, **{**asked, **changed}, seen=seen)


def test_endpoints_lie_deep_enough_and_apart_in_documents_that_are_long_enough() -> None:
    corpus = corpus_of([63, 64, 65, 100, 500])
    ends = drawn(corpus)
    assert {e.document for e in ends} == {1, 2, 3, 4}
    for e in ends:
        assert 64 <= e.end <= corpus.validation.lengths[e.document]
    by_document = {d: sorted(e.end for e in ends if e.document == d) for d in range(5)}
    assert [len(by_document[d]) for d in range(5)] == [0, 1, 1, 4, 4]
    assert all((np.diff(ends) >= 8).all() for ends in by_document.values())


@pytest.mark.parametrize("n", [1, 3, 4])
def test_a_document_with_room_for_exactly_n_endpoints_gives_n(n: int) -> None:
    tokens, ends = 56 + 8 * n, [64 + 8 * i for i in range(n)]
    assert sorted(e.end for e in drawn(corpus_of([tokens]))) == ends
    without_bos = drawn(corpus_of([tokens, tokens + 1], bos=False))
    assert [e.document for e in without_bos].count(0) == len(ends) - 1
    assert sorted(e.end for e in without_bos if e.document == 1) == ends


def test_documents_come_in_the_order_of_the_seed_each_once_before_any_comes_twice() -> None:
    corpus = corpus_of([500] * 20)
    first, second = ([e.document for e in drawn(corpus, count=23, seed=s)] for s in (0, 1))
    assert sorted(first[:20]) == sorted(second[:20]) == list(range(20))
    assert list(range(20)) not in (first[:20], second[:20])
    assert first[:20] != second[:20]
    assert set(drawn(corpus_of([500]))) <= set(drawn(corpus_of([500, 700, 90]), count=100))


@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=12),
    count=st.integers(1, 80),
    each=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_groups_have_equally_many_endpoints_but_those_that_have_no_more(
    sizes: list[int], count: int, each: int, seed: int
) -> None:
    group_of = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    plain = corpus_of([500] * len(group_of))
    named = replace(plain.validation, groups=[f"group {g}" for g in group_of])
    corpus = replace(plain, validation=named)
    ends = drawn(corpus, count=count, per_document=each, seed=seed)
    assert len(ends) == len(set(ends)) == min(count, each * len(group_of))
    taken = np.bincount([group_of[e.document] for e in ends], minlength=len(sizes))
    more = taken[taken < each * np.array(sizes)]  # of groups that have further endpoints
    assert taken.max() <= more.min(initial=count) + 1
    documents = np.bincount([e.document for e in ends], minlength=len(group_of))
    for g in range(len(sizes)):
        assert np.ptp(documents[group_of == g]) <= 1
    alone = drawn(plain, count=10_000, per_document=each, seed=seed)
    assert {*ends} <= {*alone}


@pytest.mark.parametrize("bos", [True, False])
def test_no_span_holds_a_token_that_training_has_seen(bos: bool) -> None:
    corpus = corpus_of([80, 500, 500], bos=bos)
    seen = np.zeros(1080, dtype=bool)
    seen[[*range(80 + 100, 80 + 200), *range(580 + 60, 580 + 500, 12)]] = True
    first = 0 if bos else 1
    ends = drawn(corpus, count=100, per_document=10**15, seen=seen)
    for document, end in ends:
        stop = int(corpus.validation.offsets[document]) + end + first
        assert not seen[stop - 8 : stop].any()
    assert {e.document for e in ends} == {0, 1, 2}
    seen = np.ones(500, dtype=bool)
    seen[:260] = seen[300:308] = False
    corpus = corpus_of([500])
    assert {e.end for e in drawn(corpus, seen=seen, depth=270)} == {308}
    seen[304] = True
    assert drawn(corpus, seen=seen, depth=270) == []


def test_a_document_of_which_training_has_seen_more_than_half_gives_no_endpoint() -> None:
    corpus = corpus_of([500, 500])
    seen = np.zeros(1000, dtype=bool)
    seen[:251] = True
    assert {e.document for e in drawn(corpus, seen=seen)} == {1}
    seen[0] = False
    assert {e.document for e in drawn(corpus, seen=seen)} == {0, 1}


def test_the_share_that_training_has_seen_is_of_the_tokens_deep_enough_to_be_scored() -> None:
    corpus = corpus_of([63, 64, 100])
    seen = np.zeros(227, dtype=bool)
    seen[[*range(63), 63 + 55, 63 + 56, 127 + 56, 127 + 99]] = True  # 8 and 44 tokens count
    assert share_seen(corpus, seen, depth=64, targets=8) == 3 / 52


def test_a_manifest_names_the_set_of_endpoints_and_the_corpus() -> None:
    corpus = corpus_of([500] * 3)
    one, two = drawn(corpus), drawn(corpus, seed=1)
    assert manifest(corpus, one) == manifest(corpus, [*one])
    assert manifest(corpus, one) != manifest(corpus, two)
    assert manifest(corpus, one) != manifest(replace(corpus, fingerprint="1" * 64), one)
    assert manifest(corpus, one) != manifest(replace(corpus, bos_id=None), one)
