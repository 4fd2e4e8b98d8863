"""What stands twice: runs of 50 tokens in both splits, and bigrams that copy far text."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lengthgen import repeats
from lengthgen.corpora import Split, TokenizedCorpus
from lengthgen.protocols import Endpoint

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
        token_bytes=np.ones(1000, dtype=np.int64),
        fingerprint="0" * 64,
        tokenizer_path=Path("none"),
        meta={},
    )


def text(n: int, vocab: int = 999) -> NDArray[np.integer]:
    return RANDOM.integers(vocab, size=n)


def unseen(corpus: TokenizedCorpus, cache: Path, *ends: int, targets: int = 20) -> list[int]:
    drawn = [Endpoint(0, end) for end in ends]
    return [e.end for e in repeats.unseen(corpus, drawn, targets=targets, cache_dir=cache)]


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize(
    ("begin", "length", "kept"),
    [
        (300, 50, False),  # the run covers targets 300 ... 319
        (251, 50, False),  # its last token is the first target
        (319, 50, False),  # its first token is the last target
        (250, 50, True),  # it ends just before them
        (320, 50, True),  # it begins just after
        (290, 49, True),  # one token too short
        (0, 200, True),  # elsewhere
    ],
)
def test_an_endpoint_is_dropped_if_a_run_of_50_covers_a_target(
    begin: int, length: int, kept: bool, bos: bool, tmp_path: Path
) -> None:
    held_out = text(600)
    train = np.concatenate([text(700), held_out[begin : begin + length], text(700)])
    corpus = corpus_of(train, held_out)
    end = 320
    if not bos:  # target t is token t + 1 then
        corpus, end = replace(corpus, bos_id=None), 319
    assert unseen(corpus, tmp_path, end) == ([end] if kept else [])


def test_a_run_may_lie_across_the_chunks_in_which_training_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_out = text(600)
    train = np.concatenate([text(75), held_out[300:350], text(500)])
    monkeypatch.setattr(repeats, "CHUNK", 100)  # 25 of the run's tokens lie in the second chunk
    assert unseen(corpus_of(train, held_out), tmp_path, 320, 200) == [200]


def test_the_answer_is_kept_and_belongs_to_the_tokens(tmp_path: Path) -> None:
    held_out = text(600)
    corpus = corpus_of(np.concatenate([text(99), held_out]), held_out)
    assert unseen(corpus, tmp_path, 320) == []
    clean = replace(corpus, train=split_of(text(900)))
    assert unseen(clean, tmp_path, 320) == []  # by its fingerprint it is the same corpus
    assert unseen(replace(clean, fingerprint="1" * 64), tmp_path, 320) == [320]


def test_hashes_differ_where_runs_do() -> None:
    tokens = np.concatenate([np.zeros(120, dtype=int), text(5000, vocab=2), text(5000, vocab=3)])
    hashes = repeats.gram_hashes(tokens)
    runs = {tokens[i : i + 50].tobytes() for i in range(len(tokens) - 49)}
    assert len(hashes) == len(tokens) - 49
    assert len(set(hashes.tolist())) == len(runs)
    assert len(set(hashes[:71].tolist())) == 1


def plainly_far(tokens: list[int], end: int, *, targets: int, near: int, far: int) -> list[bool]:
    """Returns which targets copy far text, by looking at every earlier place in turn."""
    found: list[bool] = []
    for t in range(end - targets, end):
        distance = next(
            (
                d
                for d in range(1, far + 1)
                if t - d >= 1 and tokens[t - d - 1 : t - d + 1] == tokens[t - 1 : t + 1]
            ),
            None,
        )
        found.append(distance is not None and distance > near)
    return found


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize(("end", "far"), [(400, 300), (400, 390), (120, 100), (90, 88)])
def test_far_copies_are_those_that_a_search_finds(end: int, far: int, bos: bool) -> None:
    tokens = text(401, vocab=9)
    corpus = corpus_of(text(60), tokens)
    last = end
    if not bos:
        corpus, last = replace(corpus, bos_id=None), end - 1
    found = repeats.far_copies(corpus, 0, last, targets=40, near=50, far=far)
    want = plainly_far(tokens.tolist(), end, targets=40, near=50, far=far)
    assert found.tolist() == want
    assert 0 < sum(want) < 40
