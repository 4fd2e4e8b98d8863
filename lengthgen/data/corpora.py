"""Tokenised corpora: documents turned into token ids once, and loaded from the token cache."""

import hashlib
import json
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
from lengthgen.data.sources import Document, Say, Source
from lengthgen.data.token_cache import SPLITS
from lengthgen.data.tokenizer import (
    encode,
    find_bos,
    given_tokenizer,
    pieces,
    read_tokenizer,
    token_bytes,
    tokenizer_key,
    train_tokenizer,
)
from lengthgen.errors import UserError

Tokens = NDArray[np.uint16] | NDArray[np.uint32]

FORMAT = 1  # of the cache; a change of what is written, or of how documents are split, raises it
BATCH = 1_000_000  # characters that are encoded in one call


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


def load(
    corpus: schema.Corpus, *, cache_dir: Path, say: Say, fingerprint: str | None = None
) -> TokenizedCorpus:
    """Returns the tokenised corpus from the cache, which is built first if it is not there.

    With the fingerprint of a run, the cache that it names is used, whatever the text is now.
    """
    folder = token_cache.find(cache_dir, fingerprint) if fingerprint else None
    if folder is None:
        source = sources.source_of(corpus)
        folder = cache_dir / f"{corpus.name}-{_cache_key(corpus, source)}"
        token_cache.ensure(folder, lambda aside: _build(aside, corpus, source, say), say=say)
    return _open(folder, corpus)


def _cache_key(corpus: schema.Corpus, source: Source) -> str:
    """Returns 12 hex digits over everything that decides the content of the cache folder."""
    made_of = {
        "format": FORMAT,
        "source": sources.source_key(corpus, source),
        "tokenizer": tokenizer_key(corpus, source),
        "packed": corpus.packed,
    }
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:12]


def _open(folder: Path, corpus: schema.Corpus) -> TokenizedCorpus:
    meta = token_cache.read_meta(folder)
    tokenizer = read_tokenizer(folder / "tokenizer.json")
    n_bytes = token_bytes(tokenizer)

    def split(name: str) -> Split:
        path = folder / f"{name}.examples.json"
        return Split(
            tokens=np.memmap(folder / f"{name}.bin", dtype=_dtype(len(n_bytes)), mode="r"),
            offsets=np.fromfile(folder / f"{name}.offsets.bin", dtype="<i8"),
            names=json.loads((folder / f"{name}.names.json").read_text()),
            examples=np.array(json.loads(path.read_text())) if path.exists() else None,
        )

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


def _build(folder: Path, corpus: schema.Corpus, source: Source, say: Say) -> dict[str, Any]:
    """Writes the documents as plain text, trains the tokenizer on it, writes the tokens."""
    tokenizer = given_tokenizer(corpus, source)
    say(source.description())
    train, validation = (_write_texts(folder, corpus, source, split, say) for split in SPLITS)
    if tokenizer is None:
        every = source.tokenizer_every
        n_bytes = sum(train.sizes[::every])
        say(f"training a BPE of {corpus.vocab_size} tokens on {n_bytes / 1e6:.1f} MB")
        parts = (part for text in islice(train.read(), 0, None, every) for part in pieces(text))
        tokenizer = train_tokenizer(parts, vocab_size=corpus.vocab_size, say=say)
    token_cache.write(folder / "tokenizer.json", tokenizer.to_str(pretty=True).encode())
    counts = {
        split: _write_tokens(folder, split, texts, corpus, tokenizer, say)
        for split, texts in zip(SPLITS, (train, validation), strict=True)
    }
    each = (
        f"{split} {n['tokens']:,} in {n['documents']:,} documents" for split, n in counts.items()
    )
    say(f"tokens of {corpus.name}: {', '.join(each)}")
    return {
        "corpus": corpus.name,
        "format": FORMAT,
        "source": source.data_key(),
        "tokenizers": tokenizers.__version__,
        **counts,
    }


@dataclass(frozen=True, kw_only=True)
class Texts:
    """The documents of a split on disk, so that a source is read once and never held in memory."""

    path: Path
    names: list[str]
    sizes: list[int]  # UTF-8 bytes of each
    examples: list[tuple[int, int]]  # length and prompt bytes of each

    def read(self) -> Iterator[str]:
        """Yields the text of each document."""
        with self.path.open("rb") as file:
            for size in self.sizes:
                yield file.read(size).decode()

    def batches(self, *, cut: bool) -> Iterator[list[tuple[int, str]]]:
        """Yields lists of about BATCH characters: numbers of documents and their text, in parts."""
        batch, n = list[tuple[int, str]](), 0
        for number, text in enumerate(self.read()):
            for part in pieces(text) if cut else [text]:
                batch.append((number, part))
                n += len(part)
                if n >= BATCH:
                    yield batch
                    batch, n = [], 0
        if batch:
            yield batch


class ByteProgress:
    """Says every few seconds how much text of a long task is done."""

    def __init__(self, say: Say, task: str) -> None:
        self.say, self.task = say, task
        self.done_bytes = 0
        self.last_report = time.monotonic()

    def advance(self, n_bytes: int) -> None:
        """Counts n_bytes more as done."""
        self.done_bytes += n_bytes
        if time.monotonic() - self.last_report >= 3:
            self.last_report = time.monotonic()
            self.say(f"{self.task}: {self.done_bytes / 1e6:.1f} MB")


def _write_texts(
    folder: Path, corpus: schema.Corpus, source: Source, split: str, say: Say
) -> Texts:
    """Writes the documents of a split that are not empty, one after another."""
    texts = Texts(path=folder / f"{split}.text", names=[], sizes=[], examples=[])
    progress, n_empty = ByteProgress(say, f"reading {split} documents"), 0
    with texts.path.open("wb") as file:
        for document in sources.read(corpus, source, held_out=split == "validation"):
            raw = _utf8(document, corpus)
            n_empty += not raw
            if raw:
                file.write(raw)
                texts.names.append(document.name)
                texts.sizes.append(len(raw))
                texts.examples.append((document.length, document.prompt_bytes))
                progress.advance(len(raw))
    if n_empty:
        say(f"{n_empty:,} {split} documents are empty, and left out")
    if not texts.names:
        raise UserError(
            f"corpus={corpus.name}: the {split} split has no documents; give more documents"
        )
    return texts


def _utf8(document: Document, corpus: schema.Corpus) -> bytes:
    try:
        return document.text.encode()
    except (UnicodeEncodeError, AttributeError):
        raise UserError(
            f"corpus={corpus.name}: document {document.name} is no text that UTF-8 can hold, but "
            f"{ascii(document.text)[:40]}; leave it out"
        ) from None


def _write_tokens(
    folder: Path,
    split: str,
    texts: Texts,
    corpus: schema.Corpus,
    tokenizer: tokenizers.Tokenizer,
    say: Say,
) -> dict[str, int]:
    """Writes tokens, offsets and names of a split, removes its text; returns its counts.

    If packed, the bos token stands between two documents and all of them are one document.
    """
    n_bytes_of = token_bytes(tokenizer)
    dtype, bos_id = _dtype(len(n_bytes_of)), find_bos(tokenizer)
    progress = ByteProgress(say, f"tokenising {split} documents")
    lengths = [0] * len(texts.names)
    with (folder / f"{split}.bin").open("wb") as file:
        for batch in texts.batches(cut=corpus.tokenizer in ("bpe", "bytes")):
            encoded = encode([text for _, text in batch], corpus, tokenizer)
            for (number, text), ids in zip(batch, encoded, strict=True):
                n_bytes, n_encoded = len(text.encode()), int(n_bytes_of[ids].sum())
                if n_encoded != n_bytes:
                    raise UserError(
                        f"corpus.tokenizer: {corpus.tokenizer} changes the text of "
                        f"{texts.names[number]} ({n_bytes} bytes become {n_encoded}); use "
                        "one without normalizer and prefix space, or bpe, or bytes"
                    )
                if corpus.packed and number and not lengths[number]:
                    file.write(np.array([bos_id], dtype=dtype).tobytes())
                file.write(ids.astype(dtype).tobytes())
                lengths[number] += len(ids)
                progress.advance(n_bytes)
        token_cache.flush(file)
    texts.path.unlink()
    n_tokens = sum(lengths) + (len(lengths) - 1 if corpus.packed else 0)
    names = [f"{len(lengths)} documents, packed"] if corpus.packed else texts.names
    offsets = np.cumsum([0, n_tokens] if corpus.packed else [0, *lengths], dtype="<i8")
    token_cache.write(folder / f"{split}.offsets.bin", offsets.tobytes())
    token_cache.write(folder / f"{split}.names.json", json.dumps(names).encode())
    if isinstance(corpus, schema.TaskCorpus):  # whose tokens are bytes
        token_cache.write(folder / f"{split}.examples.json", json.dumps(texts.examples).encode())
    return {
        "documents": len(lengths),
        "tokens": n_tokens,
        "bytes": sum(texts.sizes),
        "longest": n_tokens if corpus.packed else max(lengths),
    }
