"""Tokenised corpora: exact tokens, the same everywhere, and a cache of which nothing is half."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pytest
from commands import files_limited_to, here, run
from small import refusal
from small_corpora import TEXTS, files, given, load, load_tokens, shipped, synthetic, write

from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.sources import Document
from lengthgen.data.sources.files import Files
from lengthgen.data.token_cache import id_type
from lengthgen.data.tokenizer import pieces, read_tokenizer
from lengthgen.errors import UserError

CLIENT = """
import os, sys
from pathlib import Path
from small_corpora import files, load_tokens

def say(message):
    if "tokens of files" in message:
        os.kill(os.getpid(), 9)

folder, cache_dir = map(Path, sys.argv[1:])
load_tokens(files(folder), cache_dir=cache_dir, say=say)
"""


def folders(cache_dir: Path) -> list[Path]:
    return [path for path in cache_dir.iterdir() if path.is_dir()]


@pytest.mark.parametrize("tokenizer", ["bpe", "bytes"])
def test_tokens_are_the_text_exactly(folder: Path, cache_dir: Path, tokenizer: str) -> None:
    loaded = load(files(folder, tokenizer=tokenizer), cache_dir).corpus
    saved = read_tokenizer(loaded.tokenizer_path)
    texts: dict[str, str] = {}
    for split in (loaded.train, loaded.validation):
        for i, name in enumerate(split.names):
            ids = split.document(i)
            texts[name] = saved.decode(ids.tolist())
            assert int(loaded.token_bytes[ids].sum()) == len(TEXTS[name].encode())
            assert loaded.bos_id not in ids
            assert ids.tolist() == saved.encode(TEXTS[name], add_special_tokens=False).ids
        about = loaded.meta["train" if split is loaded.train else "validation"]
        n_bytes = sum(len(texts[name].encode()) for name in split.names)
        counts = {"documents": len(split.names), "tokens": len(split.tokens), "bytes": n_bytes}
        assert about == {**counts, "longest": split.lengths.max()}
    assert texts == TEXTS
    if tokenizer == "bytes":
        assert (loaded.bos_id, loaded.vocab_size) == (256, 257)
        assert load(files(folder, tokenizer="bytes", bos=False), cache_dir).corpus.bos_id is None
    assert len(folders(cache_dir)) == 1


def test_packed_documents_are_one_with_bos_tokens_between(folder: Path, cache_dir: Path) -> None:
    apart = load(files(folder), cache_dir).corpus.train
    packed = load(files(folder, packed=True), cache_dir).corpus
    assert packed.packed
    assert packed.train.lengths.tolist() == [len(packed.train.tokens)]
    at = np.flatnonzero(packed.train.tokens == packed.bos_id)
    first, *others = np.split(packed.train.tokens, at)
    documents = [first.tolist(), *(part[1:].tolist() for part in others)]
    assert documents == [apart.document(i).tolist() for i in range(len(apart.names))]


@pytest.mark.parametrize("size", [290, 50_000])
def test_a_trained_vocabulary_has_the_size_asked_for_or_what_the_text_gives(
    folder: Path, cache_dir: Path, size: int
) -> None:
    loaded = load(files(folder, vocab_size=size), cache_dir).corpus
    assert loaded.vocab_size == read_tokenizer(loaded.tokenizer_path).get_vocab_size()
    assert loaded.vocab_size == size if size == 290 else loaded.vocab_size < 2_000


LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS: dict[str, list[dict[str, Any]]] = {  # before the bytes: how words are found
    "GPT-2": [],
    "digits": [{"type": "Digits", "individual_digits": True}],
    "Llama 3": [{"type": "Split", "pattern": {"Regex": LLAMA_3}, "behavior": "Isolated"}],
}


@pytest.mark.parametrize("words", [None, *SPLITS])
def test_a_long_document_has_the_same_tokens_in_pieces(
    folder: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, words: str | None
) -> None:
    def changed(plain: dict[str, Any]) -> None:
        before = [{**split, "invert": False} for split in SPLITS[str(words)]]
        bytes_of = {**plain["pre_tokenizer"], "use_regex": words != "Llama 3"}
        plain["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*before, bytes_of]}

    monkeypatch.setattr("lengthgen.data.tokenizer.PIECE", 40)
    accents, special = TEXTS["accents.txt"], TEXTS["special.txt"]
    mixed = "".join(f"{accents[i % 99 :]}\n\n   {special}{i}" for i in range(9))
    lines = ['{"id": "a-1"},\n', '"a",""\n', "\u3000\u4f60\u597d\u3002\n", "\u4e16\u754c 12\n\n"]
    text = "un_broken" * 20 + mixed + "".join(line * 99 for line in lines)
    assert "".join(pieces(text)) == text
    assert max(max(map(len, pieces(line * 99))) for line in lines) < 60
    (folder / "long.txt").write_text(text, newline="")
    path = load(files(folder), cache_dir).corpus.tokenizer_path
    path = given(path, changed) if words else path
    whole = read_tokenizer(path).encode(text).ids
    corpus = load(files(folder, tokenizer=str(path) if words else "bpe"), cache_dir).corpus
    assert corpus.train.document(corpus.train.names.index("long.txt")).tolist() == whole


@pytest.mark.parametrize("letters", ["acgt", "\u4e16\u754c", "e\u0301", "x1-"])
def test_a_text_without_blanks_is_cut_too(
    folder: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, letters: str
) -> None:
    monkeypatch.setattr("lengthgen.data.tokenizer.PIECE", 40)
    monkeypatch.setattr("lengthgen.data.tokenizer.UNBROKEN", 110)
    text = letters * 5_000
    assert max(map(len, pieces(text))) <= 110
    (folder / "long.txt").write_text(text)
    corpus = load(files(folder), cache_dir).corpus
    tokens = corpus.train.document(corpus.train.names.index("long.txt"))
    tokenizer = read_tokenizer(corpus.tokenizer_path)
    assert tokenizer.decode(tokens.tolist()) == text
    cut = [i for part in pieces(text) for i in tokenizer.encode(part).ids]
    assert tokens.tolist() == cut


def test_datasets_and_tokenizers_of_the_hub_go_by_their_names_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt").mkdir()  # a path that exists comes before a name
    read = {"gpt": f"{tmp_path}/gpt", "a.json": f"{tmp_path}/a.json", "o/gpt@v1": "o/gpt@v1"}
    for name, want in read.items():
        assert shipped("corpus=o/Some-1", f"corpus.tokenizer={name}").tokenizer == want
    short, long = shipped("corpus=o/Some-1"), shipped("corpus=hub", "corpus.repo=o/Some-1")
    assert (short.name, short.source) == ("Some_1", "hub")
    assert short == long


def test_ids_beyond_16_bits_are_kept(folder: Path, cache_dir: Path) -> None:
    def enlarge(plain: dict[str, Any]) -> None:
        vocab = plain["model"]["vocab"]
        vocab |= {f"<{i}>": i for i in range(257, 70_000)} | {"a": 70_000}

    trained = load(files(folder, tokenizer="bytes"), cache_dir).corpus
    large = given(trained.tokenizer_path, enlarge)
    loaded = load(files(folder, tokenizer=str(large)), cache_dir).corpus
    assert loaded.train.tokens.dtype == np.uint32
    assert [id_type(n) for n in (257, 65_536, 65_537)] == ["<u2", "<u2", "<u4"]
    assert 70_000 in loaded.train.tokens


SYNTHETIC = "1ca5e9ed1ffe86dc"  # of the first version of the cache; runs compare by it


def test_the_fingerprint_of_a_made_corpus_is_the_one_that_runs_have(cache_dir: Path) -> None:
    corpus = synthetic(document_words=100, alphabet=20, copy_words=5, copies=2)
    loaded = load(corpus, cache_dir).corpus
    assert loaded.train.lengths.tolist() == [200] * 20
    assert loaded.validation.lengths.tolist() == [200] * 2
    assert loaded.fingerprint[:16] == SYNTHETIC


def test_a_corpus_is_built_once_and_again_for_other_tokens(folder: Path, cache_dir: Path) -> None:
    first, second = load(files(folder), cache_dir), load(files(folder), cache_dir)
    assert first.said
    assert not second.said
    assert first.corpus.fingerprint == second.corpus.fingerprint
    known = {first.corpus.fingerprint}
    changes: list[dict[str, Any]] = [{"vocab_size": 301}, {"tokenizer": "bytes"}, {"packed": True}]
    for change in changes:
        known.add(load(files(folder, **change), cache_dir).corpus.fingerprint)
    (folder / "plain.txt").write_text(TEXTS["plain.txt"].replace("cat", "rat", 1))
    known.add(load(files(folder), cache_dir).corpus.fingerprint)
    assert len(known) == len(folders(cache_dir)) == 5


def test_a_file_of_the_same_size_and_time_is_read_again_and_one_that_changes_meanwhile_is_refused(
    folder: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = folder / "plain.txt", TEXTS["plain.txt"].replace("cat", "rat")
    begun, time = load(files(folder), cache_dir).corpus.fingerprint, path.stat().st_mtime_ns
    path.write_text(other)
    os.utime(path, ns=(time, time))
    assert load(files(folder), cache_dir).corpus.fingerprint != begun
    (folder / "one").mkdir()
    (folder / "one/a.txt").write_text("A line.\n" * 99)
    os.utime(folder / "one/a.txt", ns=(time, time))
    shutil.copytree(folder / "one", folder / "two")  # of the same size and time
    (folder / "two/a.txt").write_text("B line.\n" * 99)
    os.utime(folder / "two/a.txt", ns=(time, time))
    linked, known = cache_dir / "linked", set[str]()
    for to in ("one", "two"):
        linked.unlink(missing_ok=True)
        linked.symlink_to(folder / to)
        known.add(load(files(linked), cache_dir).corpus.fingerprint)
    assert len(known) == 2
    read = Files.read

    def grown(self: Files, *, held_out: bool) -> Iterator[Document]:
        path.write_text(path.read_text() + "more")
        return read(self, held_out=held_out)

    monkeypatch.setattr(Files, "read", grown)
    before = folders(cache_dir)
    assert "it changed while it was read; rerun" in refusal(load, files(folder), cache_dir)
    assert folders(cache_dir) == before


def test_corpora_are_kept_for_all_runs_of_an_account_listed_and_removed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    words = ["data", "files", f"corpus.path={folder}", "corpus.tokenizer=bytes"]
    first, second = (here(*words, f"runtime.root={tmp_path}/{root}") for root in "ab")
    assert first.out == second.out
    assert "tokens of files" in first.err
    assert "tokens of files" not in second.err
    (kept,) = (tmp_path / "own/lengthgen/corpora").glob("[!.]*")
    head, row, where = here("data", "--list").out.splitlines()
    assert (row.split("\t")[0], where) == (kept.name, f"in {kept.parent}")
    assert head.split("\t")[0] == "kept"
    for name in ("none*", "", "..", "*/..", "/"):
        assert "nothing of that name" in here("data", "--remove", name).error
    assert kept.name in here("data", "--remove", "files-*").out
    assert not kept.exists()
    assert "tokens of files" in here(*words).err


def test_a_run_reads_the_tokens_of_its_fingerprint(folder: Path, cache_dir: Path) -> None:
    begun = load(files(folder), cache_dir).corpus
    (folder / "plain.txt").write_text("another text\n" * 99)
    said: list[str] = []

    def read_again() -> TokenizedCorpus:
        wanted = begun.fingerprint
        return load_tokens(files(folder), cache_dir=cache_dir, say=said.append, fingerprint=wanted)

    again = read_again()
    assert (again.train.tokens.tolist(), said) == (begun.train.tokens.tolist(), [])
    shutil.rmtree(folders(cache_dir)[0])
    now = read_again()
    assert now.fingerprint == load(files(folder), cache_dir).corpus.fingerprint
    assert now.fingerprint != begun.fingerprint


@pytest.mark.parametrize("packed", ["false", "true"])
def test_data_shows_how_long_documents_are_and_what_they_reach(tmp_path: Path, packed: str) -> None:
    write(tmp_path, {f"train/{i}.txt": "x" * 40 for i in range(6)})
    write(tmp_path, {"train/a.txt": "x" * 130, "validation/b.txt": "x" * 70, "c.log": "no"})
    words = [f"corpus.path={tmp_path}", f"runtime.root={tmp_path / 'runs'}", "train.length=32"]
    ran = here("data", "files", *words, "corpus.tokenizer=bytes", f"corpus.packed={packed}")
    sizes, bins, reached, end = (part.splitlines() for part in ran.out.split("\n\n"))
    assert sizes[1:] == ["train\t7\t370\t40\t130\t1.00", "validation\t1\t70\t70\t70\t1.00"]
    assert bins[1:] == [
        f"32 to 63\t6\t0\t{'#' * 30}",
        f"64 to 127\t0\t1\t{'#' * 5}",
        f"128 to 255\t1\t0\t{'#' * 5}",
    ]
    assert reached[1:5] == ["T\t32\t7\t1", "2T\t64\t1\t1", "4T\t128\t1\t0", "8T\t256\t0\t0"]
    assert end[0].startswith("packed: ") == (packed == "true")


@pytest.mark.slow
def test_a_killed_build_leaves_no_cache(folder: Path, cache_dir: Path, tmp_path: Path) -> None:
    assert run("-c", CLIENT, folder, cache_dir).code == -signal.SIGKILL
    (left,) = folders(cache_dir)
    assert left.name.startswith(".files-")
    again, other = (load(files(folder), cache) for cache in (cache_dir, tmp_path / "other"))
    assert again.corpus.fingerprint == other.corpus.fingerprint
    assert not list(cache_dir.glob(".files-*[0-9]/"))


def test_the_second_of_two_processes_waits_and_says_so(folder: Path, cache_dir: Path) -> None:
    built = load(files(folder), cache_dir).corpus.tokenizer_path.parent
    shutil.rmtree(built)
    other = filelock.FileLock(cache_dir / f".{built.name}.lock")
    other.acquire()
    said: list[str] = []

    def say(message: str) -> None:
        said.append(message)
        other.release()
        if len(said) > 1:
            with pytest.raises(filelock.Timeout):
                other.acquire(blocking=False)

    load_tokens(files(folder), cache_dir=cache_dir, say=say)
    assert said[0].startswith(f"waiting for another process that builds {built}; if there is none")


@pytest.mark.parametrize("harm", ["flipped", "cut", "gone", "swapped", "emptied"])
def test_a_damaged_cache_is_named_and_built_again(folder: Path, cache_dir: Path, harm: str) -> None:
    """Every file that holds what is read, whether a run asks for its tokens or a new one does."""
    whole = load(files(folder), cache_dir).corpus
    kept, contents = whole.tokenizer_path.parent, contents_of(whole.tokenizer_path.parent)
    for i, (name, content) in enumerate(contents.items()):
        load(files(folder), cache_dir)  # which remembers that all are sound
        other = contents[{"train.bin": "validation.bin"}.get(name, "train.bin")]
        changed = bytearray(other if harm == "swapped" else content)
        changed[len(changed) // 2] ^= 1 if harm == "flipped" else 0
        changed = b"{}" if harm == "emptied" else changed
        (kept / name).unlink()
        if harm != "gone":
            (kept / name).write_bytes(changed[:-1] if harm == "cut" else changed)
        said, asked = list[str](), whole.fingerprint if i % 2 else None
        again = load_tokens(files(folder), cache_dir=cache_dir, say=said.append, fingerprint=asked)
        assert said[0].startswith(f"the token cache {kept} is damaged (")
        assert name in said[0] or name == "sha256.json"  # which names another then
        assert contents_of(again.tokenizer_path.parent) == contents


def contents_of(cache: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(cache.glob("[!.]*"))}


def test_a_damaged_cache_without_its_text_is_left_alone(folder: Path, cache_dir: Path) -> None:
    begun = load(files(folder), cache_dir).corpus
    path = begun.tokenizer_path.with_name("train.bin")
    path.write_bytes(path.read_bytes()[::-1])
    folder.rename(folder.with_name("gone"))
    with pytest.raises(UserError, match=r"is damaged \(train.bin .*; corpus.path: .*exist"):
        load_tokens(files(folder), cache_dir=cache_dir, say=print, fingerprint=begun.fingerprint)
    assert path.exists()


def test_a_sound_cache_is_hashed_once(
    folder: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(files(folder), cache_dir)
    load(files(folder), cache_dir)
    hashed = list[Path]()
    monkeypatch.setattr("lengthgen.data.token_cache.sha256_of", hashed.append)
    load(files(folder), cache_dir)
    assert hashed == []


def test_a_disk_that_fills_up_is_one_line_and_leaves_nothing(folder: Path, cache_dir: Path) -> None:
    said = rf"runtime.cache: cannot use {cache_dir} \(\[Errno 27\] File too"
    with files_limited_to(6000), pytest.raises(UserError, match=said):
        load(files(folder), cache_dir)
    assert folders(cache_dir) == []
