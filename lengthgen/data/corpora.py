"""Tokenised corpora: documents turned into token ids once, and loaded from the token cache."""

import hashlib
import json
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from lengthgen.config import schema
from lengthgen.data import sources, token_cache
from lengthgen.data.sources import Document, Say
from lengthgen.data.tokenizer import (
    encode,
    find_bos,
    given_tokenizer,
    read_tokenizer,
    token_bytes,
    tokenizer_key,
    train_tokenizer,
)
from lengthgen.errors import UserError
from lengthgen.files import read_bytes

Tokens = NDArray[np.uint16] | NDArray[np.uint32]

FORMAT = 1  # of the cache; a change of what is written, or of how documents are split, raises it
BATCH_BYTES = 1_000_000  # text that is encoded in one call


@dataclass(frozen=True, kw_only=True)
class Split:
    """The documents of one split, one after another; a packed split is one single document."""

    tokens: Tokens  # [n]
    offsets: NDArray[np.int64]  # [n_documents + 1]
    names: list[str]
    examples: NDArray[np.int64] | None = None  # of a task: length, tokens of the prompt; [n, 2]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each document, [n_documents]."""
        return np.diff(self.offsets)

    def prompt_length(self, i: int) -> int:
        """Returns the number of tokens of document i that are a prompt: they are not predicted."""
        return 0 if self.examples is None else int(self.examples[i, 1])

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

    @property
    def beginning(self) -> list[int]:
        """The tokens before every text: bos, or none."""
        return [] if self.bos_id is None else [self.bos_id]

    @property
    def first_target(self) -> int:
        """The token of a document that is its first target: without bos, the second one."""
        return int(self.bos_id is None)


def load(corpus: schema.Corpus, *, cache_dir: Path, say: Say) -> TokenizedCorpus:
    """Returns the tokenised corpus from the cache, which is built first if it is not there."""
    given = given_tokenizer(corpus)
    folder = cache_dir / f"{corpus.name}-{_cache_key(corpus)}"
    token_cache.ensure(folder, lambda building: _build(building, corpus, given, say), say=say)
    return _open(folder, corpus)


def _cache_key(corpus: schema.Corpus) -> str:
    """Returns 12 hex digits over everything that decides the content of the cache folder."""
    source = sources.source_key(corpus)
    if corpus.source == "stdlib":
        source["python"] = platform.python_version()
    made_of = {
        "format": FORMAT,
        "source": source,
        "tokenizer": tokenizer_key(corpus),
        "packed": corpus.packed,
    }
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:12]


def _open(folder: Path, corpus: schema.Corpus) -> TokenizedCorpus:
    meta = json.loads(read_bytes(folder / "meta.json"))
    tokenizer = read_tokenizer(folder / "tokenizer.json")
    n_bytes = token_bytes(tokenizer)

    def split(name: str) -> Split:
        offsets = np.fromfile(folder / f"{name}.offsets.bin", dtype="<i8")
        tokens = np.memmap(folder / f"{name}.bin", dtype=_dtype(len(n_bytes)), mode="r")
        names = json.loads(read_bytes(folder / f"{name}.names.json"))
        path = folder / f"{name}.examples.json"
        examples = np.array(json.loads(read_bytes(path))) if path.exists() else None
        return Split(tokens=tokens, offsets=offsets, names=names, examples=examples)

    return TokenizedCorpus(
        name=corpus.name,
        train=split("train"),
        validation=split("validation"),
        vocab_size=len(n_bytes),
        bos_id=find_bos(tokenizer) if corpus.bos else None,
        packed=corpus.packed,
        token_bytes=n_bytes,
        fingerprint=meta["fingerprint"],
        tokenizer_path=folder / "tokenizer.json",
        meta=meta,
    )


def _dtype(vocab_size: int) -> np.dtype[Any]:
    return np.dtype("<u2" if vocab_size <= 65_536 else "<u4")


def _build(
    folder: Path, corpus: schema.Corpus, given: tokenizers.Tokenizer | None, say: Say
) -> dict[str, Any]:
    """Writes the documents as plain text, trains the tokenizer on it, writes the tokens."""
    source = sources.read(corpus, say=say)
    vocab_size = corpus.vocab_size if given is None else len(token_bytes(given))
    tokens_per_byte = 1 if corpus.tokenizer in ("bytes", "characters") else 0.5
    bytes_per_byte = tokens_per_byte * _dtype(vocab_size).itemsize
    if source.n_bytes is not None:
        token_cache.check_room(folder.parent, int(source.n_bytes * (1 + bytes_per_byte)))
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
    token_cache.check_room(folder.parent, int(n_bytes * bytes_per_byte))

    tokenizer = given
    if tokenizer is None:
        train = texts["train"]
        every = source.tokenizer_every
        n_read = sum(train.sizes[::every])
        say(f"training a BPE of {corpus.vocab_size} tokens on {n_read / 1e6:.1f} MB")
        words = (raw.decode() for raw in islice(train.read(), 0, None, every))
        tokenizer = train_tokenizer(words, vocab_size=corpus.vocab_size)
    token_cache.write(folder / "tokenizer.json", tokenizer.to_str(pretty=True).encode())
    progress = ByteProgress(say, f"tokenising {corpus.name}", total_bytes=n_bytes)
    splits = {
        split: _write_tokens(folder, split, text, corpus, tokenizer, progress)
        for split, text in texts.items()
    }
    for text in texts.values():
        text.path.unlink()
    counts = (
        f"{split} {n['tokens']:,} in {n['documents']:,} documents" for split, n in splits.items()
    )
    say(f"tokens of {corpus.name}: {', '.join(counts)}")
    return {
        "corpus": corpus.name,
        "format": FORMAT,
        "python": platform.python_version(),
        "tokenizers": tokenizers.__version__,
        **source.about,
        **splits,
    }


class ByteProgress:
    """Says every few seconds how much text of a long task is done."""

    def __init__(self, say: Say, task: str, *, total_bytes: int | None) -> None:
        self.say, self.task, self.total_bytes = say, task, total_bytes
        self.done_bytes = 0
        self.last_report = time.monotonic()

    def advance(self, n_bytes: int) -> None:
        """Counts n_bytes more as done."""
        self.done_bytes += n_bytes
        if time.monotonic() - self.last_report < 3:
            return
        self.last_report = time.monotonic()
        done = f"{self.done_bytes / 1e6:.1f}"
        total = "" if self.total_bytes is None else f" of {self.total_bytes / 1e6:.1f}"
        self.say(f"{self.task}: {done}{total} MB")


@dataclass(frozen=True, kw_only=True)
class Texts:
    """The documents of a split on disk, so that a source is read once and never held in memory."""

    path: Path
    names: list[str]
    sizes: list[int]  # UTF-8 bytes of each
    examples: list[tuple[int, int]]  # length and given bytes of each

    @property
    def n_bytes(self) -> int:
        return sum(self.sizes)

    def read(self) -> Iterator[bytes]:
        """Yields the UTF-8 text of each document."""
        with self.path.open("rb") as file:
            for size in self.sizes:
                yield file.read(size)


def _write_texts(folder: Path, split: str, source: Iterator[Document], say: Say) -> Texts:
    texts = Texts(path=folder / f"{split}.text", names=[], sizes=[], examples=[])
    progress = ByteProgress(say, f"reading {split} documents", total_bytes=None)
    with texts.path.open("wb") as file:
        for document in source:
            raw = document.text.encode()
            file.write(raw)
            texts.names.append(document.name)
            texts.sizes.append(len(raw))
            texts.examples.append((document.length, document.prompt_bytes))
            progress.advance(len(raw))
    return texts


def _write_tokens(
    folder: Path,
    split: str,
    texts: Texts,
    corpus: schema.Corpus,
    tokenizer: tokenizers.Tokenizer,
    progress: ByteProgress,
) -> dict[str, int]:
    """Writes tokens, offsets and names of a split; returns its counts.

    If packed, the bos token stands between two documents and the whole is one document.
    """
    n_bytes_of = token_bytes(tokenizer)
    dtype, bos_id = _dtype(len(n_bytes_of)), find_bos(tokenizer)
    lengths: list[int] = []
    with (folder / f"{split}.bin").open("wb") as file:
        for raws in _batches(texts.read()):
            for raw, ids in zip(raws, encode(raws, corpus, tokenizer), strict=True):
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
        token_cache.flush(file)
    n_tokens = sum(lengths) + (len(lengths) - 1 if corpus.packed else 0)
    names = [f"{len(lengths)} documents, packed"] if corpus.packed else texts.names
    offsets = np.cumsum([0, n_tokens] if corpus.packed else [0, *lengths], dtype="<i8")
    token_cache.write(folder / f"{split}.offsets.bin", offsets.tobytes())
    token_cache.write(folder / f"{split}.names.json", json.dumps(names).encode())
    if isinstance(corpus, schema.TaskCorpus):  # whose tokens are bytes
        token_cache.write(folder / f"{split}.examples.json", json.dumps(texts.examples).encode())
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
