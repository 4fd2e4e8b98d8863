"""Tokenised corpora: the tokenizer, the token cache on disk, and what is loaded from it.

The cache holds a folder per corpus, CACHE_DIR/NAME-HASH, where HASH covers all that decides the
tokens: train.bin and validation.bin (token ids, little-endian uint16, or uint32 if the vocabulary
needs it), *.offsets.bin (int64, where documents begin), *.names.json, tokenizer.json, meta.json.
A folder is built beside its place, as .NAME-HASH.building under a lock, and renamed when complete.
"""

import errno
import hashlib
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import filelock
import numpy as np
import tokenizers
from numpy.typing import NDArray

from lengthgen import config, documents
from lengthgen.documents import Document, Say
from lengthgen.errors import UserError, suggestion

Tokens = NDArray[np.uint16] | NDArray[np.uint32]

FORMAT = 1  # of the cache; a change of what is written, or of how documents are split, raises it
BOS = "<|bos|>"
BOS_NAMES = (BOS, "<s>", "<|begin_of_text|>", "<|endoftext|>")
BATCH_BYTES = 1_000_000  # text that is encoded in one call
VERIFY_BYTES = 1_000_000_000  # a larger cache is checked by file sizes alone when it is loaded
SPLITS = ("train", "validation")


@dataclass(frozen=True, kw_only=True)
class Split:
    """The documents of one split, one after another; a packed split is one single document."""

    tokens: Tokens  # [n]
    offsets: NDArray[np.int64]  # [n_documents + 1]
    names: list[str]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each document, [n_documents]."""
        return np.diff(self.offsets)

    def document(self, i: int) -> Tokens:
        """Returns the tokens of document i."""
        return self.tokens[self.offsets[i] : self.offsets[i + 1]]


@dataclass(frozen=True, kw_only=True)
class TokenizedCorpus:
    """Both splits as token ids, and what is needed to feed, score and compare them."""

    name: str
    train: Split
    validation: Split
    vocab_size: int  # rows of the embedding: ids of the tokenizer, special ones included
    bos_id: int | None  # None if corpus.bos is false
    packed: bool  # documents of a split were joined into one, with the bos token between them
    token_bytes: NDArray[np.int64]  # [vocab_size], UTF-8 bytes a token stands for; special: 0
    fingerprint: str  # sha256 of tokens and offsets of both splits and of the vocabulary
    tokenizer_path: Path
    meta: dict[str, Any]


def load(corpus: config.Corpus, *, cache_dir: Path, say: Say) -> TokenizedCorpus:
    """Returns the tokenised corpus from the cache, which is built first if it is not there.

    One process builds, others wait for it. A damaged cache is named, removed and built again.
    """
    given = _given_tokenizer(corpus)
    folder = cache_dir / f"{corpus.name}-{_key(corpus)}"
    if not folder.is_dir() or damage(folder) is not None:
        with _room_errors(cache_dir):
            _make_cache_dir(cache_dir)
            _remove_leftovers(cache_dir)
            with _locked(folder, say):
                _build_if_needed(folder, corpus, given, say)
    return _open(folder, corpus)


def _key(corpus: config.Corpus) -> str:
    """Returns 12 hex digits over everything that decides the content of the cache folder."""
    match corpus.tokenizer:
        case "bytes":
            tokenizer = ["bytes"]
        case "bpe":
            tokenizer = ["bpe", corpus.vocab_size, tokenizers.__version__]
        case path:
            content = Path(path).expanduser().read_bytes()
            tokenizer = ["file", hashlib.sha256(content).hexdigest(), tokenizers.__version__]
    source = documents.source_key(corpus)
    if corpus.source == "stdlib":
        source["python"] = platform.python_version()
    made_of = {
        "format": FORMAT,
        "source": source,
        "tokenizer": tokenizer,
        "packed": corpus.packed,
    }
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:12]


# Tokenizers


def _given_tokenizer(corpus: config.Corpus) -> tokenizers.Tokenizer | None:
    """Returns the tokenizer that the configuration names, or None for one that is to be trained."""
    if corpus.tokenizer == "bpe":
        return None
    if corpus.tokenizer == "bytes":
        return byte_tokenizer()
    tokenizer = read_tokenizer(Path(corpus.tokenizer).expanduser())
    if _bos_id(tokenizer) is None and (corpus.bos or corpus.packed):
        key = "packed" if corpus.packed else "bos"
        raise UserError(
            f"corpus.tokenizer: {corpus.tokenizer} has none of {', '.join(BOS_NAMES)}, which "
            f"corpus.{key}=true needs; set corpus.{key}=false or add one"
        )
    return tokenizer


def read_tokenizer(path: Path) -> tokenizers.Tokenizer:
    """Reads a byte-level tokenizer.json; special tokens in a text are encoded as plain text."""
    words = ("bpe", "bytes")
    if not path.exists():
        hint = suggestion(str(path), words)
        raise UserError(f"corpus.tokenizer: {path} does not exist; give a tokenizer.json; {hint}")
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"corpus.tokenizer: cannot read {path}: {error}") from error
    try:
        tokenizer = tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the library raises nothing narrower
        raise UserError(
            f"corpus.tokenizer: {path} is not a tokenizer.json of the tokenizers library: {error}"
        ) from error
    if '"type":"ByteLevel"' not in tokenizer.to_str():
        raise UserError(
            f"corpus.tokenizer: {path} is not byte-level, so that bytes of text per token are not "
            "known; use a byte-level BPE (such as GPT-2's), bpe or bytes"
        )
    return _plain(tokenizer)


def _plain(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Makes a tokenizer encode all of a text and nothing but the text."""
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def byte_tokenizer() -> tokenizers.Tokenizer:
    """Returns the tokenizer whose ids 0-255 are bytes; 256 is the bos token."""
    vocab = {character: byte for byte, character in enumerate(_byte_alphabet())}
    tokenizer = _byte_level(tokenizers.models.BPE(vocab=vocab, merges=[]))
    tokenizer.add_special_tokens([BOS])
    return _plain(tokenizer)


def train_tokenizer(texts: Iterator[str], *, vocab_size: int) -> tokenizers.Tokenizer:
    """Trains a byte-level BPE of at most vocab_size ids, of which 0 is the bos token."""
    tokenizer = _byte_level(tokenizers.models.BPE())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS],
        initial_alphabet=_byte_alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return _plain(tokenizer)


def _byte_level(model: tokenizers.models.BPE) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer


def _byte_alphabet() -> list[str]:
    """Returns the character that stands for each byte in a byte-level vocabulary (as in GPT-2).

    Printable bytes of Latin-1 stand for themselves, the others are the characters from 256 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def token_bytes(tokenizer: tokenizers.Tokenizer) -> NDArray[np.int64]:
    """Returns how many bytes of UTF-8 text each id of a byte-level tokenizer stands for."""
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    added = tokenizer.get_added_tokens_decoder()
    n_bytes = np.zeros(max(vocab.values()) + 1, dtype=np.int64)
    for token, i in vocab.items():
        if i not in added:
            n_bytes[i] = len(token)  # one character of the byte-level alphabet per byte
        elif not added[i].special:
            n_bytes[i] = len(token.encode())
    return n_bytes


def _bos_id(tokenizer: tokenizers.Tokenizer) -> int | None:
    ids = (tokenizer.token_to_id(name) for name in BOS_NAMES)
    return next((i for i in ids if i is not None), None)


# The cache on disk


@contextmanager
def _locked(folder: Path, say: Say) -> Generator[None]:
    lock = _lock(folder.parent, folder.name)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        say(f"waiting for another process that builds {folder}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _lock(cache_dir: Path, name: str) -> filelock.BaseFileLock:
    return filelock.FileLock(cache_dir / f".{name}.lock")


def _building(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.building")


def _remove_leftovers(cache_dir: Path) -> None:
    """Removes what builders that died have left: those whose lock nobody holds."""
    for left in cache_dir.glob(".*.building"):
        lock = _lock(cache_dir, left.name.removeprefix(".").removesuffix(".building"))
        try:
            lock.acquire(blocking=False)
        except filelock.Timeout:
            continue
        try:
            shutil.rmtree(left)
        finally:
            lock.release()


@contextmanager
def _room_errors(cache_dir: Path) -> Generator[None]:
    """Turns a full disk (or quota, or file size limit) into one line."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise UserError(
            f"runtime.cache: no room left while writing {cache_dir} ({error.strerror}); make room, "
            "or set runtime.cache=FOLDER on another disk"
        ) from error


def _make_cache_dir(cache_dir: Path) -> None:
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache_dir):
            pass
    except OSError as error:
        raise UserError(
            f"runtime.cache: cannot write {cache_dir} ({error.strerror}); "
            "set runtime.cache=FOLDER to another place"
        ) from error


def _check_room(folder: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise UserError(
            f"runtime.cache: {folder} has {free_bytes:,} bytes free, but tokenising needs about "
            f"{needed_bytes:,}; make room, or set runtime.cache=FOLDER on another disk"
        )


def damage(folder: Path) -> str | None:
    """Returns what is wrong with a cache folder, or None if it is as it was built."""
    try:
        meta = json.loads((folder / "meta.json").read_bytes())
        sizes: dict[str, int] = meta["files"]
        for name, n_bytes in sizes.items():
            found = (folder / name).stat().st_size
            if found != n_bytes:
                return f"{name} has {found:,} bytes instead of {n_bytes:,}"
        if sum(sizes.values()) < VERIFY_BYTES and fingerprint(folder) != meta["fingerprint"]:
            return "the tokens differ from their fingerprint"
    except (OSError, ValueError, KeyError, UserError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def fingerprint(folder: Path) -> str:
    """Returns the sha256 of tokens and offsets of both splits and of the vocabulary."""
    digest = hashlib.sha256()
    for split in SPLITS:
        for name in (f"{split}.bin", f"{split}.offsets.bin"):
            with (folder / name).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    vocab = read_tokenizer(folder / "tokenizer.json").get_vocab(with_added_tokens=True)
    digest.update(json.dumps(vocab, sort_keys=True).encode())
    return digest.hexdigest()


def _open(folder: Path, corpus: config.Corpus) -> TokenizedCorpus:
    meta = json.loads((folder / "meta.json").read_bytes())
    tokenizer = read_tokenizer(folder / "tokenizer.json")
    n_bytes = token_bytes(tokenizer)

    def split(name: str) -> Split:
        offsets = np.fromfile(folder / f"{name}.offsets.bin", dtype="<i8")
        tokens = np.memmap(folder / f"{name}.bin", dtype=_dtype(len(n_bytes)), mode="r")
        names = json.loads((folder / f"{name}.names.json").read_bytes())
        return Split(tokens=tokens, offsets=offsets, names=names)

    return TokenizedCorpus(
        name=corpus.name,
        train=split("train"),
        validation=split("validation"),
        vocab_size=len(n_bytes),
        bos_id=_bos_id(tokenizer) if corpus.bos else None,
        packed=corpus.packed,
        token_bytes=n_bytes,
        fingerprint=meta["fingerprint"],
        tokenizer_path=folder / "tokenizer.json",
        meta=meta,
    )


def _dtype(vocab_size: int) -> np.dtype[Any]:
    return np.dtype("<u2" if vocab_size <= 65_536 else "<u4")


# Building


def _build_if_needed(
    folder: Path, corpus: config.Corpus, given: tokenizers.Tokenizer | None, say: Say
) -> None:
    """Builds the folder under its lock, unless another process has done so meanwhile."""
    if folder.is_dir():
        reason = damage(folder)
        if reason is None:
            return
        say(f"removing the damaged token cache {folder} ({reason}); it is built again")
        shutil.rmtree(folder)
    building = _building(folder)
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir()
    try:
        _build(building, corpus, given, say)
        os.rename(building, folder)
        _sync(folder.parent)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


def _build(
    folder: Path, corpus: config.Corpus, given: tokenizers.Tokenizer | None, say: Say
) -> None:
    """Writes the documents as plain text, trains the tokenizer on it, writes the tokens."""
    source = documents.read(corpus, say=say)
    vocab_size = corpus.vocab_size if given is None else len(token_bytes(given))
    tokens_per_byte = 1 if corpus.tokenizer == "bytes" else 0.5
    bytes_per_byte = tokens_per_byte * _dtype(vocab_size).itemsize
    if source.n_bytes is not None:
        _check_room(folder.parent, int(source.n_bytes * (1 + bytes_per_byte)))
    texts = {
        "train": _write_texts(folder, "train", source.train, say),
        "validation": _write_texts(folder, "validation", source.validation, say),
    }
    for split, text in texts.items():
        if not text.names:
            raise UserError(
                f"corpus={corpus.name}: the {split} split has no documents; give more documents"
            )
    n_bytes = sum(text.n_bytes for text in texts.values())
    _check_room(folder.parent, int(n_bytes * bytes_per_byte))

    tokenizer = given
    if tokenizer is None:
        train = texts["train"]
        say(f"training a BPE of {corpus.vocab_size} tokens on {train.n_bytes / 1e6:.1f} MB")
        words = (raw.decode() for raw in train.read())
        tokenizer = train_tokenizer(words, vocab_size=corpus.vocab_size)
    _write(folder / "tokenizer.json", tokenizer.to_str(pretty=True).encode())
    progress = Progress(say, f"tokenising {corpus.name}", total_bytes=n_bytes)
    splits = {
        split: _write_tokens(folder, split, text, corpus, tokenizer, progress)
        for split, text in texts.items()
    }
    for text in texts.values():
        text.path.unlink()
    meta = {
        "corpus": corpus.name,
        "format": FORMAT,
        "python": platform.python_version(),
        "tokenizers": tokenizers.__version__,
        **splits,
        "files": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
        "fingerprint": fingerprint(folder),
    }
    _write(folder / "meta.json", json.dumps(meta, indent=1).encode())
    _sync(folder)
    said = (
        f"{split} {n['tokens']:,} in {n['documents']:,} documents" for split, n in splits.items()
    )
    say(f"tokens of {corpus.name}: {', '.join(said)}")


class Progress:
    """Says how far a long task is, every few seconds."""

    def __init__(self, say: Say, task: str, *, total_bytes: int | None) -> None:
        self.say, self.task, self.total_bytes = say, task, total_bytes
        self.done_bytes = 0
        self.said = time.monotonic()

    def advance(self, n_bytes: int) -> None:
        """Counts n_bytes more as done."""
        self.done_bytes += n_bytes
        if time.monotonic() - self.said < 3:
            return
        self.said = time.monotonic()
        done = f"{self.done_bytes / 1e6:.1f}"
        total = "" if self.total_bytes is None else f" of {self.total_bytes / 1e6:.1f}"
        self.say(f"{self.task}: {done}{total} MB")


@dataclass(frozen=True, kw_only=True)
class Texts:
    """The documents of a split on disk, so that a source is read once and never held in memory."""

    path: Path
    names: list[str]
    sizes: list[int]  # UTF-8 bytes of each

    @property
    def n_bytes(self) -> int:
        return sum(self.sizes)

    def read(self) -> Iterator[bytes]:
        """Yields the UTF-8 text of each document."""
        with self.path.open("rb") as file:
            for size in self.sizes:
                yield file.read(size)


def _write_texts(folder: Path, split: str, source: Iterator[Document], say: Say) -> Texts:
    texts = Texts(path=folder / f"{split}.text", names=[], sizes=[])
    progress = Progress(say, f"reading {split} documents", total_bytes=None)
    with texts.path.open("wb") as file:
        for document in source:
            raw = document.text.encode()
            file.write(raw)
            texts.names.append(document.name)
            texts.sizes.append(len(raw))
            progress.advance(len(raw))
    return texts


def _write_tokens(
    folder: Path,
    split: str,
    texts: Texts,
    corpus: config.Corpus,
    tokenizer: tokenizers.Tokenizer,
    progress: Progress,
) -> dict[str, int]:
    """Writes tokens, offsets and names of a split; returns its counts.

    If packed, the bos token stands between two documents and the whole is one document.
    """
    n_bytes_of = token_bytes(tokenizer)
    dtype, bos_id = _dtype(len(n_bytes_of)), _bos_id(tokenizer)
    lengths: list[int] = []
    with (folder / f"{split}.bin").open("wb") as file:
        for raws in _batches(texts.read()):
            for raw, ids in zip(raws, _encode(raws, corpus, tokenizer), strict=True):
                found = int(n_bytes_of[ids].sum())
                if found != len(raw):
                    raise UserError(
                        f"corpus.tokenizer: {corpus.tokenizer} changes the text of "
                        f"{texts.names[len(lengths)]} ({len(raw)} bytes become {found}); use one "
                        "without normalizer and prefix space, or bpe, or bytes"
                    )
                if corpus.packed and lengths:
                    file.write(np.array([bos_id], dtype=dtype).tobytes())
                file.write(ids.astype(dtype).tobytes())
                lengths.append(len(ids))
            progress.advance(sum(len(raw) for raw in raws))
        _flush(file)
    n_tokens = sum(lengths) + (len(lengths) - 1 if corpus.packed else 0)
    names = [f"{len(lengths)} documents, packed"] if corpus.packed else texts.names
    offsets = np.cumsum([0, n_tokens] if corpus.packed else [0, *lengths], dtype="<i8")
    _write(folder / f"{split}.offsets.bin", offsets.tobytes())
    _write(folder / f"{split}.names.json", json.dumps(names).encode())
    longest = n_tokens if corpus.packed else max(lengths)
    return {
        "documents": len(lengths),
        "tokens": n_tokens,
        "bytes": texts.n_bytes,
        "longest": longest,
    }


def _batches(raws: Iterator[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    n_bytes = 0
    for raw in raws:
        batch.append(raw)
        n_bytes += len(raw)
        if n_bytes >= BATCH_BYTES:
            yield batch
            batch, n_bytes = [], 0
    if batch:
        yield batch


def _encode(
    raws: Sequence[bytes], corpus: config.Corpus, tokenizer: tokenizers.Tokenizer
) -> list[NDArray[Any]]:
    if corpus.tokenizer == "bytes":  # what byte_tokenizer() would give, without its lists
        return [np.frombuffer(raw, dtype=np.uint8) for raw in raws]
    texts = [raw.decode() for raw in raws]
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        _flush(file)


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Makes the names in a folder durable, where the system can (not on Windows)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
