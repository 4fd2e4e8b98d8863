"""What stands twice: runs of tokens in both splits, and bigrams that copy far text."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lengthgen.data import overlap
from lengthgen.data.corpora import Split, TokenizedCorpus

RANDOM = np.random.default_rng(0)


def split_of(*documents: NDArray[np.integer]) -> Split:
    return Split(
        tokens=np.concatenate(documents).astype(np.uint16),
        offsets=np.cumsum([0, *map(len, documents)]).astype(np.int64),
        names=[str(i) for i in range(len(documents))],
    )


def corpus_of(train: NDArray[np.integer], validation: NDArray[np.integer]) -> TokenizedCorpus:
    return TokenizedCorpus(
        name="repeats",
        train=split_of(train),
        validation=split_of(validation),
        vocab_size=1000,
        bos_id=999,
        packed=False,
        token_bytes=np.full(1000, 4),
        fingerprint="0" * 64,
        tokenizer_path=Path("none"),
        meta={},
    )


def text(n: int, vocab: int = 999) -> NDArray[np.integer]:
    return RANDOM.integers(vocab, size=n)


def in_training(corpus: TokenizedCorpus, cache: Path) -> list[int]:
    """Returns the numbers of the validation tokens that lie in a run that training has too."""
    return np.flatnonzero(overlap.in_training(corpus, cache_dir=cache)).tolist()


@pytest.mark.parametrize(
    ("begin", "length", "in_run"),
    [(300, 20, True), (300, 33, True), (0, 20, True), (580, 20, True), (300, 19, False)],
)
def test_a_run_of_20_tokens_that_training_has_is_found_and_none_that_is_shorter(
    begin: int, length: int, in_run: bool, tmp_path: Path
) -> None:
    held_out = text(600)
    train = np.concatenate([text(700), held_out[begin : begin + length], text(700)])
    want = list(range(begin, begin + length)) if in_run else []
    assert in_training(corpus_of(train, held_out), tmp_path) == want


@pytest.mark.parametrize(("length", "in_run"), [(50, True), (49, False)])
def test_a_run_of_bytes_has_50_of_them(length: int, in_run: bool, tmp_path: Path) -> None:
    held_out = text(600)
    train = np.concatenate([text(700), held_out[200 : 200 + length], text(700)])
    corpus = replace(corpus_of(train, held_out), token_bytes=np.ones(1000, dtype=np.int64))
    assert in_training(corpus, tmp_path) == (list(range(200, 200 + length)) if in_run else [])


def test_a_run_across_two_validation_documents_is_none(tmp_path: Path) -> None:
    held_out, train = text(600), text(700)
    corpus = replace(
        corpus_of(np.concatenate([train, held_out[290:310], held_out[400:420]]), held_out),
        validation=split_of(held_out[:300], held_out[300:]),
    )
    assert in_training(corpus, tmp_path) == list(range(400, 420))


def test_a_run_may_lie_across_the_chunks_in_which_tokens_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_out = text(600)
    train = np.concatenate([text(90), held_out[290:310], text(500)])
    monkeypatch.setattr(overlap, "CHUNK", 100)  # 10 tokens of the run lie in the second chunk
    assert in_training(corpus_of(train, held_out), tmp_path) == list(range(290, 310))


def test_the_answer_is_kept_and_belongs_to_the_tokens(tmp_path: Path) -> None:
    held_out = text(603)
    corpus = corpus_of(np.concatenate([text(99), held_out[:300]]), held_out)
    assert in_training(corpus, tmp_path) == list(range(300))
    clean = replace(corpus, train=split_of(text(900)))
    assert in_training(clean, tmp_path) == list(range(300))  # of one fingerprint: one corpus
    assert in_training(replace(clean, fingerprint="1" * 64), tmp_path) == []


@pytest.mark.parametrize("n", [20, 50])
def test_hashes_differ_where_runs_do(n: int) -> None:
    tokens = np.concatenate([np.zeros(120, dtype=int), text(5000, vocab=2), text(5000, vocab=3)])
    hashes = overlap.gram_hashes(tokens, n)
    runs = {tokens[i : i + n].tobytes() for i in range(len(tokens) - n + 1)}
    assert len(hashes) == len(tokens) - n + 1
    assert len(set(hashes.tolist())) == len(runs)
    assert len(set(hashes[: 121 - n].tolist())) == 1


def plainly_far(tokens: list[int], end: int, *, targets: int, near: int, far: int) -> list[bool]:
    """Returns which targets copy far text, by looking at every earlier place in turn."""
    is_far: list[bool] = []
    for t in range(end - targets, end):
        distance = next(
            (
                d
                for d in range(1, far + 1)
                if t - d >= 1 and tokens[t - d - 1 : t - d + 1] == tokens[t - 1 : t + 1]
            ),
            None,
        )
        is_far.append(distance is not None and distance > near)
    return is_far


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize(("end", "far"), [(400, 300), (400, 390), (120, 100), (90, 88)])
def test_far_copies_are_those_that_a_search_finds(end: int, far: int, bos: bool) -> None:
    tokens = text(401, vocab=9)
    corpus = corpus_of(text(60), tokens)
    last = end
    if not bos:
        corpus, last = replace(corpus, bos_id=None), end - 1
    got = overlap.far_copies(corpus, 0, last, targets=40, near=50, far=far)
    want = plainly_far(tokens.tolist(), end, targets=40, near=50, far=far)
    assert got.tolist() == want
    assert 0 < sum(want) < 40
