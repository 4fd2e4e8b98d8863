"""Tokenised corpora: exact tokens, the same everywhere, and a cache of which nothing is half."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pytest
import tokenizers
from repository import ROOT
from small_corpora import (
    CLIENT,
    TEXTS,
    files,
    load,
    load_elsewhere,
    plain_files,
    synthetic,
)

from lengthgen.data import corpora
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.tokenizer import PIECE, pieces, read_tokenizer
from lengthgen.errors import UserError

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
        if tokenizer == "bytes":
            encoded = read_tokenizer(loaded.tokenizer_path).encode(TEXTS[name]).ids
            assert ids.tolist() == list(TEXTS[name].encode()) == encoded


def test_the_byte_vocabulary_ends_with_bos_unless_the_corpus_wants_none(
    folder: Path, cache_dir: Path
) -> None:
    loaded = load(files(folder, tokenizer="bytes"), cache_dir).corpus
    assert (loaded.bos_id, loaded.vocab_size) == (256, 257)
    assert load(files(folder, tokenizer="bytes", bos=False), cache_dir).corpus.bos_id is None


def test_packed_documents_are_one_with_the_bos_token_between_them(
    folder: Path, cache_dir: Path
) -> None:
    apart = load(files(folder), cache_dir).corpus.train
    packed = load(files(folder, packed=True), cache_dir).corpus
    assert packed.packed
    assert packed.train.lengths.tolist() == [len(packed.train.tokens)]
    at = np.flatnonzero(packed.train.tokens == packed.bos_id)
    pieces = np.split(packed.train.tokens, at)
    documents = [pieces[0].tolist(), *(piece[1:].tolist() for piece in pieces[1:])]
    assert documents == [apart.document(i).tolist() for i in range(len(apart.names))]


def test_meta_counts_documents_tokens_and_bytes(folder: Path, cache_dir: Path) -> None:
    loaded = load(files(folder), cache_dir).corpus
    for split, name in ((loaded.train, "train"), (loaded.validation, "validation")):
        assert loaded.meta[name] == {
            "documents": len(split.names),
            "tokens": len(split.tokens),
            "bytes": sum(len(TEXTS[document].encode()) for document in split.names),
            "longest": split.lengths.max(),
        }


@pytest.mark.parametrize("size", [290, 50_000])
def test_a_trained_vocabulary_has_the_size_asked_for_or_what_the_text_gives(
    folder: Path, cache_dir: Path, size: int
) -> None:
    loaded = load(files(folder, vocab_size=size), cache_dir).corpus
    saved = tokenizers.Tokenizer.from_file(str(loaded.tokenizer_path))
    assert loaded.vocab_size == saved.get_vocab_size() == len(loaded.token_bytes)
    assert loaded.vocab_size == size if size == 290 else loaded.vocab_size < 2_000


def test_a_given_tokenizer_encodes_as_the_one_it_was_saved_from(
    folder: Path, cache_dir: Path
) -> None:
    trained = load(files(folder), cache_dir).corpus
    given = load(files(folder, tokenizer=str(trained.tokenizer_path)), cache_dir).corpus
    assert given.fingerprint == trained.fingerprint


def test_a_long_document_has_the_same_tokens_in_pieces_as_in_one(
    folder: Path, cache_dir: Path
) -> None:
    mixed = "".join(
        f"{TEXTS['accents.txt'][i % 99 :]}\n\n   {TEXTS['special.txt']}" for i in range(99)
    )
    text = "un_broken" * PIECE + mixed * (3 * PIECE // len(mixed) + 1)
    (folder / "long.txt").write_text(text, newline="")
    assert len([*pieces(text)]) > 2
    assert "".join(pieces(text)) == text
    loaded = load(files(folder), cache_dir).corpus
    tokens = loaded.train.document(loaded.train.names.index("long.txt"))
    assert tokens.tolist() == read_tokenizer(loaded.tokenizer_path).encode(text).ids


@pytest.mark.slow
def test_a_signal_ends_the_training_of_a_tokenizer(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    text = rng.integers(97, 123, size=20_000_000, dtype=np.uint8)
    text[rng.integers(len(text), size=len(text) // 10)] = ord(" ")
    (tmp_path / "words.txt").write_bytes(text.tobytes())
    corpus = json.dumps(plain_files(tmp_path / "words.txt", vocab_size=50_000))
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT, corpus, str(tmp_path / "cache"), ""],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    cache = tmp_path / "cache"
    while not [*cache.glob("*/validation.text")]:
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    sent = time.monotonic()
    assert "KeyboardInterrupt" in process.communicate(timeout=60)[1]
    assert time.monotonic() - sent < 10  # of minutes, on a busy machine
    assert not [path for path in cache.iterdir() if path.is_dir()]


@pytest.mark.slow
def test_ids_beyond_16_bits_are_kept(folder: Path, cache_dir: Path, tmp_path: Path) -> None:
    trained = load(files(folder, tokenizer="bytes"), cache_dir).corpus
    tokenizer = tokenizers.Tokenizer.from_file(str(trained.tokenizer_path))
    tokenizer.add_tokens([f"<{i}>" for i in range(70_000)])
    (folder / "rare.txt").write_text("<69999> " * 500)
    tokenizer.save(str(tmp_path / "large.json"))
    loaded = load(files(folder, tokenizer=str(tmp_path / "large.json")), cache_dir).corpus
    assert loaded.train.tokens.dtype == np.uint32
    assert 257 + 69_999 in loaded.train.tokens


# The same tokens everywhere


def tokens_of(corpus: TokenizedCorpus) -> list[list[int]]:
    return [split.tokens.tolist() for split in (corpus.train, corpus.validation)]


def test_two_builds_have_the_same_fingerprint(folder: Path, tmp_path: Path) -> None:
    here = load(files(folder), tmp_path / "one").corpus.fingerprint
    assert load_elsewhere(plain_files(folder), tmp_path / "two").stdout == here


# Token ids, offsets and vocabulary of the first version of the cache. Runs compare by it.
SYNTHETIC = "1ca5e9ed1ffe86dc"


def test_the_fingerprint_of_a_made_corpus_is_the_one_that_runs_have(cache_dir: Path) -> None:
    corpus = synthetic(document_tokens=100, alphabet=20, copy_tokens=5, copies=2)
    loaded = load(corpus, cache_dir).corpus
    assert loaded.train.lengths.tolist() == [200] * 20
    assert loaded.validation.lengths.tolist() == [200] * 2
    assert loaded.fingerprint[:16] == SYNTHETIC


def test_a_change_of_one_character_changes_the_fingerprint(folder: Path, cache_dir: Path) -> None:
    before = load(files(folder, tokenizer="bytes"), cache_dir).corpus.fingerprint
    (folder / "plain.txt").write_text(TEXTS["plain.txt"].replace("cat", "rat", 1))
    assert load(files(folder, tokenizer="bytes"), cache_dir).corpus.fingerprint != before


def test_a_corpus_is_built_once(folder: Path, cache_dir: Path) -> None:
    first, second = load(files(folder), cache_dir), load(files(folder), cache_dir)
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


def test_a_run_reads_the_tokens_of_its_fingerprint_whatever_the_text_is_now(
    folder: Path, cache_dir: Path
) -> None:
    begun = load(files(folder), cache_dir).corpus
    (folder / "plain.txt").write_text("another text\n" * 99)
    said: list[str] = []
    again = corpora.load(
        files(folder), cache_dir=cache_dir, say=said.append, fingerprint=begun.fingerprint
    )
    assert (tokens_of(again), said) == (tokens_of(begun), [])
    shutil.rmtree(cache_folder(cache_dir))
    now = corpora.load(
        files(folder), cache_dir=cache_dir, say=said.append, fingerprint=begun.fingerprint
    )
    assert now.fingerprint == load(files(folder), cache_dir).corpus.fingerprint
    assert now.fingerprint != begun.fingerprint


# The cache


def cache_folder(cache_dir: Path) -> Path:
    (folder,) = (path for path in cache_dir.iterdir() if path.is_dir())
    return folder


@pytest.mark.parametrize("moment", ["reading", "tokens of files"])
def test_a_build_that_was_killed_leaves_nothing_that_is_trusted(
    folder: Path, cache_dir: Path, tmp_path: Path, moment: str
) -> None:
    killed = load_elsewhere(plain_files(folder), cache_dir, deadly=moment)
    assert killed.returncode == -signal.SIGKILL
    (left,) = (path.name for path in cache_dir.iterdir() if path.is_dir())
    assert left.endswith(".building")
    again = load(files(folder), cache_dir).corpus
    assert again.fingerprint == load(files(folder), tmp_path / "other").corpus.fingerprint
    assert not list(cache_dir.glob("*.building"))


def test_the_second_of_two_processes_waits_and_says_so(folder: Path, cache_dir: Path) -> None:
    load(files(folder), cache_dir)
    built = cache_folder(cache_dir)
    shutil.rmtree(built)
    other = filelock.FileLock(cache_dir / f".{built.name}.lock")
    other.acquire()
    said: list[str] = []

    def say(message: str) -> None:
        said.append(message)
        other.release()

    corpora.load(files(folder), cache_dir=cache_dir, say=say)
    assert said[0] == f"waiting for another process that builds {built}"


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 2)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "harm", "message"),
    [
        ("train.bin", truncate, "is damaged; delete this folder"),
        ("validation.offsets.bin", flip, "is damaged; delete this folder"),
        ("train.names.json", Path.unlink, ".*No such file"),
    ],
)
def test_a_damaged_cache_is_named_and_left_alone(
    folder: Path, cache_dir: Path, name: str, harm: Any, message: str
) -> None:
    cache = load(files(folder), cache_dir).corpus.tokenizer_path.parent
    harm(cache / name)
    with pytest.raises(UserError, match=rf"{cache} {message}"):
        load(files(folder), cache_dir)
    assert cache.is_dir()


@pytest.mark.skipif(os.name != "posix", reason="file size limits of POSIX")
def test_a_disk_that_fills_up_is_one_line_and_leaves_nothing(folder: Path, cache_dir: Path) -> None:
    stopped = load_elsewhere(plain_files(folder), cache_dir, file_bytes=6_000)
    assert stopped.returncode == 1
    assert stopped.stderr.startswith(
        f"UserError: runtime.cache: cannot use {cache_dir} ([Errno 27] File too large); "
    )
    assert not [path for path in cache_dir.iterdir() if path.is_dir()]
