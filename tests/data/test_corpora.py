"""Tokenised corpora: exact token bytes, the same tokens everywhere."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from small_corpora import TEXTS, files, load, load_elsewhere, plain_files, stdlib, synthetic

from lengthgen.data import corpora

# Tokens


@pytest.mark.parametrize("tokenizer", ["bpe", "bytes"])
def test_tokens_are_the_text_exactly_and_never_the_bos_token(
    folder: Path, cache_dir: Path, tokenizer: str
) -> None:
    loaded = load(files(folder, tokenizer=tokenizer), cache_dir).corpus
    saved = tokenizers.Tokenizer.from_file(str(loaded.tokenizer_path))
    documents = {
        name: split.document(i)
        for split in (loaded.train, loaded.validation)
        for i, name in enumerate(split.names)
    }
    assert {name: saved.decode(ids.tolist()) for name, ids in documents.items()} == TEXTS
    for name, ids in documents.items():
        assert int(loaded.token_bytes[ids].sum()) == len(TEXTS[name].encode())
        assert loaded.bos_id not in ids


def test_ids_of_the_byte_tokenizer_are_bytes(folder: Path, cache_dir: Path) -> None:
    loaded = load(files(folder, tokenizer="bytes"), cache_dir).corpus
    i = loaded.train.names.index("longest.txt")
    assert loaded.train.document(i).tolist() == list(TEXTS["longest.txt"].encode())
    assert (loaded.bos_id, loaded.vocab_size) == (256, 257)


def test_no_bos_id_is_given_if_the_corpus_wants_none(folder: Path, cache_dir: Path) -> None:
    assert load(files(folder, bos=False), cache_dir).corpus.bos_id is None


def test_packed_documents_are_one_with_the_bos_token_between_them(
    folder: Path, cache_dir: Path
) -> None:
    apart = load(files(folder), cache_dir).corpus.train
    packed = load(files(folder, packed=True), cache_dir).corpus
    assert packed.packed
    assert packed.train.lengths.tolist() == [len(packed.train.tokens)]
    at = np.flatnonzero(packed.train.tokens == packed.bos_id)
    pieces = np.split(packed.train.tokens, at)
    found = [pieces[0].tolist(), *(piece[1:].tolist() for piece in pieces[1:])]
    assert found == [apart.document(i).tolist() for i in range(len(apart.names))]


def test_meta_counts_documents_tokens_and_bytes(folder: Path, cache_dir: Path) -> None:
    loaded = load(files(folder), cache_dir).corpus
    for split, name in ((loaded.train, "train"), (loaded.validation, "validation")):
        assert loaded.meta[name] == {
            "documents": len(split.names),
            "tokens": len(split.tokens),
            "bytes": sum(len(TEXTS[one].encode()) for one in split.names),
            "longest": split.lengths.max(),
        }


def test_random_documents_are_tokenised_by_bytes(cache_dir: Path) -> None:
    corpus = synthetic(document_tokens=100, alphabet=20, copy_tokens=5, copies=2)
    loaded = load(corpus, cache_dir).corpus
    assert loaded.train.lengths.tolist() == [200] * 20
    assert loaded.validation.lengths.tolist() == [200] * 2


@pytest.mark.slow
def test_the_standard_library_has_a_dozen_validation_documents_beyond_16k_tokens(
    cache_dir: Path,
) -> None:
    loaded = load(stdlib(vocab_size=4096), cache_dir).corpus
    assert np.count_nonzero(loaded.validation.lengths >= 16_385) >= 12


# The same tokens everywhere


def test_two_builds_have_the_same_fingerprint(folder: Path, tmp_path: Path) -> None:
    here = load(files(folder), tmp_path / "one").corpus.fingerprint
    assert load_elsewhere(plain_files(folder), tmp_path / "two").stdout == here


def test_a_change_of_one_character_changes_the_fingerprint(folder: Path, cache_dir: Path) -> None:
    before = load(files(folder, tokenizer="bytes"), cache_dir).corpus.fingerprint
    (folder / "plain.txt").write_text(TEXTS["plain.txt"].replace("cat", "rat", 1))
    assert load(files(folder, tokenizer="bytes"), cache_dir).corpus.fingerprint != before


def test_a_corpus_is_built_once(folder: Path, cache_dir: Path) -> None:
    first = load(files(folder), cache_dir)
    second = load(files(folder), cache_dir)
    assert first.said
    assert not second.said
    assert first.corpus.fingerprint == second.corpus.fingerprint


@pytest.mark.parametrize("changes", [{"vocab_size": 301}, {"tokenizer": "bytes"}, {"packed": True}])
def test_what_changes_the_tokens_has_a_folder_of_its_own(
    folder: Path, cache_dir: Path, changes: dict[str, Any]
) -> None:
    load(files(folder), cache_dir)
    load(files(folder, **changes), cache_dir)
    assert len([path for path in cache_dir.iterdir() if path.is_dir()]) == 2


# Progress


def test_progress_is_said_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(corpora.time, "monotonic", lambda: now[0])
    said: list[str] = []
    progress = corpora.ByteProgress(said.append, "tokenising", total_bytes=100_000_000)
    for _ in range(10):
        progress.advance(1_000_000)
        now[0] += 1
    assert said == [f"tokenising: {done}.0 of 100.0 MB" for done in (4, 7, 10)]
