"""What stands twice: runs of tokens in both splits, and chances to copy far text."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from small_corpora import corpus_of, split_of

from lengthgen.data import overlap
from lengthgen.data.corpora import TokenizedCorpus

RANDOM = np.random.default_rng(0)
Tokens = NDArray[np.integer]


def corpus(train: Tokens, *validation: Tokens, bytes_per_token: int = 4) -> TokenizedCorpus:
    about = {"vocab_size": 1000, "bos_id": 999, "bytes_per_token": bytes_per_token}
    return corpus_of(split_of(train), split_of(*validation), **about)


def text(n: int, vocab: int = 999) -> Tokens:
    return RANDOM.integers(vocab, size=n)


def in_training(corpus: TokenizedCorpus, cache: Path) -> list[int]:
    """Returns the numbers of the validation tokens that lie in a run that training has too."""
    return np.flatnonzero(overlap.in_training(corpus, cache_dir=cache)).tolist()


@pytest.mark.parametrize(
    ("begin", "length", "n_bytes", "in_run"),
    [
        *((300, 20, 4, True), (300, 33, 4, True), (0, 20, 4, True), (580, 20, 4, True)),
        *((300, 19, 4, False), (200, 50, 1, True), (200, 49, 1, False)),
    ],
)
def test_a_run_of_20_tokens_or_50_bytes_that_training_has_is_found_and_none_that_is_shorter(
    begin: int, length: int, n_bytes: int, in_run: bool, tmp_path: Path
) -> None:
    held_out = text(600)
    train = np.concatenate([text(700), held_out[begin : begin + length], text(700)])
    want = list(range(begin, begin + length)) if in_run else []
    assert in_training(corpus(train, held_out, bytes_per_token=n_bytes), tmp_path) == want


def test_a_run_may_lie_across_chunks_that_are_read_and_not_across_validation_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_out = text(600)
    train = np.concatenate([text(90), held_out[400:420], text(500), held_out[290:310]])
    monkeypatch.setattr(overlap, "CHUNK", 100)  # 10 tokens of the first run lie in the second
    given = corpus(train, held_out[:300], held_out[300:])
    assert in_training(given, tmp_path) == list(range(400, 420))


def test_the_answer_is_kept_and_belongs_to_the_tokens(tmp_path: Path) -> None:
    held_out = text(603)
    given = corpus(np.concatenate([text(99), held_out[:300]]), held_out)
    assert in_training(given, tmp_path) == list(range(300))
    clean = replace(given, train=split_of(text(900)))
    assert in_training(clean, tmp_path) == list(range(300))  # of one fingerprint: one corpus
    assert in_training(replace(clean, fingerprint="1" * 64), tmp_path) == []


@pytest.mark.parametrize("at", [0, 40, -1])
def test_a_kept_answer_that_is_damaged_is_found_again(tmp_path: Path, at: int) -> None:
    held_out = text(603)
    given = corpus(np.concatenate([text(99), held_out[:300]]), held_out)
    assert in_training(given, tmp_path) == list(range(300))
    (kept,) = tmp_path.glob(".overlap-*.bin")
    content = bytearray(whole := kept.read_bytes())
    content[at] ^= 1
    kept.write_bytes(content)
    assert in_training(given, tmp_path) == list(range(300))
    assert kept.read_bytes() == whole


@pytest.mark.parametrize("n", [20, 50])
def test_hashes_differ_where_runs_do(n: int) -> None:
    tokens = np.concatenate([np.zeros(120, dtype=int), text(5000, vocab=2), text(5000, vocab=3)])
    hashes = overlap.gram_hashes(tokens, n)
    runs = {tokens[i : i + n].tobytes() for i in range(len(tokens) - n + 1)}
    assert len(hashes) == len(tokens) - n + 1
    assert len(set(hashes.tolist())) == len(runs)
    assert len(set(hashes[: 121 - n].tolist())) == 1


def plainly_found(tokens: list[int], end: int, *, targets: int, near: int, far: int) -> list[bool]:
    """Returns which targets may copy far text, by looking at every earlier place in turn."""
    may_copy: list[bool] = []
    for t in range(end - targets, end):
        before = [d for d in range(1, far + 1) if t - d >= 2]
        same = (d for d in before if tokens[t - d - 2 : t - d] == tokens[t - 2 : t])
        may_copy.append(next(same, 0) > near)
    return may_copy


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize(("end", "far"), [(400, 300), (400, 390), (90, 88)])
def test_copy_opportunities_are_those_that_a_search_finds(end: int, far: int, bos: bool) -> None:
    tokens = np.random.default_rng(1).integers(9, size=401)
    given = replace(corpus(text(60), tokens), bos_id=999 if bos else None)
    got = overlap.copy_opportunities(given, 0, end - (not bos), targets=40, near=50, far=far)
    want = plainly_found(tokens.tolist(), end, targets=40, near=50, far=far)
    assert got.tolist() == want
    assert 0 < sum(want) < 40
