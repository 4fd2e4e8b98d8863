"""The token cache on disk: folders built once by one process, never half there.

A folder per corpus, CACHE_DIR/NAME-HASH, where HASH covers all that decides the tokens:
train.bin and validation.bin (token ids, little-endian uint16, or uint32 if the vocabulary needs
it), *.offsets.bin (int64, where documents begin), *.names.json, *.groups.json, tokenizer.json,
meta.json, and sha256.json of them all. It is built next to its place under a lock, as
.NAME-HASH.PID, and renamed when complete.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import numpy as np
import tokenizers
from numpy.typing import NDArray

from lengthgen.config import schema
from lengthgen.config.registry import errors_of
from lengthgen.data import sources
from lengthgen.data.sources import Source
from lengthgen.data.tokenizer import (
    OWN_PIECE,
    PIECE,
    UNBROKEN,
    altered,
    find_bos,
    is_sentencepiece,
    normalised,
    pieces,
    prepends_blank,
    token_texts,
    train_tokenizer,
)
from lengthgen.errors import Say, UserError
from lengthgen.files import new_folder, replace_file, sha256_of, utf8

SPLITS = ("train", "validation")
SUMS = "sha256.json"
BATCH = 1_000_000  # characters that are encoded in one call
TextBatch = list[tuple[int, int, str]]  # numbers of documents and of a part of each, and its text


@contextmanager
def one_line_errors(cache_dir: Path) -> Generator[None]:
    """Turns a full disk, a folder that cannot be used or has no locks into one line."""
    try:
        yield
    except (OSError, NotImplementedError) as error:  # the latter of filelock
        reason = str(error) or "it has no locks"
        raise UserError(
            f"runtime.cache: cannot use {cache_dir} ({reason}); make room, or set "
            "runtime.cache=FOLDER to another place on a local disk"
        ) from error


class StoredText(NamedTuple):
    """A document whose text is on disk, so that a source is read once and never in memory."""

    name: str
    group: str
    n_bytes: int
    example: tuple[int, int]  # length and prompt bytes, for a task


@dataclass
class Build:
    """The making of a folder: documents as plain text, the tokenizer, the tokens."""

    folder: Path
    corpus: schema.Corpus
    source: Source
    tokenizer: tokenizers.Tokenizer | None  # None: is to be trained
    say: Say
    with_training: bool  # False: the training split is not read, and has no documents

    def ensure(self) -> None:
        """Builds the folder unless it is there, sound. One process builds, others wait for it."""
        if self.folder.is_dir() and not damage(self.folder):
            return
        with one_line_errors(self.folder.parent), ExitStack() as stack:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(self.folder.with_name(f".{self.folder.name}.lock"))
            try:
                stack.enter_context(lock.acquire(blocking=False))
            except filelock.Timeout:
                self.say(
                    f"waiting for another process that builds {self.folder}; if there is none, "
                    f"remove {lock.lock_file}"
                )
                stack.enter_context(lock)
            if self.folder.is_dir():
                if not (damaged := damage(self.folder)):  # another process has built it meanwhile
                    return
                self.say(f"{damaged}; it is built again")
            for left in self.folder.parent.glob(f".{self.folder.name}.[0-9]*"):
                shutil.rmtree(left)  # of a process that was killed
            with new_folder(self.folder) as aside, one_line_errors(self.folder.parent):
                self.write(aside)
                shutil.rmtree(self.folder, ignore_errors=True)  # a damaged one

    def write(self, folder: Path) -> None:
        """Writes all files. Raises UserError for text that is none, or that is not there."""
        with errors_of(type(self.source), where="corpus.source"):
            self.say(self.source.description())
            before = self.source.data_key()
        texts = {split: self.write_texts(folder, split) for split in SPLITS}
        if self.source.data_key() != before:
            raise UserError(f"corpus={self.corpus.name}: it changed while it was read; rerun")
        if self.tokenizer is None:
            every, size = self.source.tokenizer_every, self.corpus.vocab_size
            n_bytes = sum(text.n_bytes for text in texts["train"][::every])
            self.say(f"training a BPE of {size} tokens on {n_bytes / 1e6:.1f} MB")
            chosen = islice(_read(folder / "train.text", texts["train"]), 0, None, every)
            self.tokenizer = train_tokenizer(chosen, vocab_size=size, say=self.say)
        text = self.tokenizer.to_str(pretty=True)
        (folder / "tokenizer.json").write_text(text, encoding="utf-8")
        counts = {s: self.write_tokens(folder, s, texts[s], self.tokenizer) for s in SPLITS}
        each = (f"{s} {n['tokens']:,} in {n['documents']:,} documents" for s, n in counts.items())
        self.say(f"tokens of {self.corpus.name}: {', '.join(each)}")
        about: dict[str, Any] = {"corpus": self.corpus.name, "source": before}
        sums = {path.name: sha256_of(path) for path in folder.iterdir()}
        about |= {"tokenizers": tokenizers.__version__}
        about |= {"fingerprint": fingerprint(sums, self.tokenizer), **counts}
        (folder / "meta.json").write_text(json.dumps(about, indent=1))
        sums["meta.json"] = sha256_of(folder / "meta.json")
        (folder / SUMS).write_text(json.dumps(sums))

    def write_texts(self, folder: Path, split: str) -> list[StoredText]:
        """Writes the documents of a split that are not empty, one after another."""
        name, texts, n_empty, names = self.corpus.name, list[StoredText](), 0, set[str]()
        held_out, documents = split == "validation", iter(())
        if held_out or self.with_training:
            documents = sources.documents(self.corpus, self.source, held_out=held_out)
        progress = ByteProgress(f"reading {split} documents", self.say)
        with (folder / f"{split}.text").open("wb") as file:
            for d in documents:
                try:
                    (d.name + d.group).encode()  # kept beside it, as UTF-8 too
                    raw = normalised(d.text, self.tokenizer).encode()
                except (UnicodeEncodeError, AttributeError, TypeError):
                    which, text = getattr(d, "name", None), getattr(d, "text", d)
                    raise UserError(
                        f"corpus={name}: document {utf8(str(which))} is no text that UTF-8 can "
                        f"hold, or has no such name: {ascii(text)[:40]}; leave it out"
                    ) from None
                if not raw:
                    n_empty += 1
                    continue
                if d.name in names:
                    raise UserError(
                        f"corpus={name}: several {split} documents are called {d.name}; give each "
                        "a name of its own"
                    )
                names.add(d.name)
                file.write(raw)
                about = (d.name, d.group or d.name, len(raw))
                texts.append(StoredText(*about, (d.length, d.prompt_bytes)))
                progress.advance(len(raw))
        if n_empty:
            self.say(f"{n_empty:,} {split} documents are empty, and left out")
        if not texts and (held_out or self.with_training):
            is_tuning = self.corpus.held_out == "tuning"
            why = "; rates are tuned on two training documents or more" * is_tuning
            raise UserError(
                f"corpus={name}: the {split} split has no documents with text{why}; give more, or "
                "longer ones"
            )
        return texts

    def write_tokens(
        self, folder: Path, split: str, texts: list[StoredText], tokenizer: tokenizers.Tokenizer
    ) -> dict[str, int]:
        """Writes tokens, offsets and names of a split, removes its text; returns its counts.

        If packed, the bos token stands between two documents and all of them are one document.
        """
        corpus, token_text, bos_id = self.corpus, token_texts(tokenizer), find_bos(tokenizer)
        sentencepiece, blank = is_sentencepiece(tokenizer), prepends_blank(tokenizer)
        dtype, lengths = id_type(len(token_text)), [0] * len(texts)
        progress = ByteProgress(f"tokenising {split} documents", self.say)
        with (folder / f"{split}.bin").open("wb") as file:
            read = _read(folder / f"{split}.text", texts)
            size = OWN_PIECE if corpus.tokenizer == "bpe" else PIECE
            batches = _batches(read, sentencepiece=sentencepiece, size=size)
            for batch, of_batch in self.encoded(batches, tokenizer, texts):
                for (i, _, part), ids in zip(batch, of_batch, strict=True):
                    same = corpus.tokenizer == "bytes"
                    if not same and (wrong := altered(part, ids.tolist(), token_text, blank=blank)):
                        remedy = (
                            "use one that keeps every byte: without prefix space or normalizer but "
                            "NFC; or bpe, or bytes, or leave this document out"
                            if corpus.tokenizer != "characters"
                            else "add each of its characters to the alphabet of the task"
                        )
                        raise UserError(
                            f"corpus.tokenizer: {corpus.tokenizer} changes the text of "
                            f"{texts[i].name} ({wrong}); {remedy}"
                        )
                    if corpus.packed and i and not lengths[i]:
                        file.write(np.array([bos_id], dtype=dtype).tobytes())
                    file.write(ids.astype(dtype).tobytes())
                    lengths[i] += len(ids)
                    progress.advance(len(part.encode()))
        (folder / f"{split}.text").unlink()
        names, groups = [text.name for text in texts], [text.group for text in texts]
        if corpus.packed and texts:
            names = groups = [f"{len(texts)} documents, packed"]
            lengths = [sum(lengths) + len(lengths) - 1]
        np.cumsum([0, *lengths], dtype="<i8").tofile(folder / f"{split}.offsets.bin")
        (folder / f"{split}.names.json").write_text(json.dumps(names))
        (folder / f"{split}.groups.json").write_text(json.dumps(groups))
        if isinstance(corpus, schema.TaskCorpus):  # whose tokens are bytes
            examples = json.dumps([text.example for text in texts])
            (folder / f"{split}.examples.json").write_text(examples)
        n_bytes = sum(text.n_bytes for text in texts)
        counts = {"documents": len(texts), "tokens": sum(lengths), "bytes": n_bytes}
        return {**counts, "longest": max(lengths, default=0)}

    def encoded(
        self, batches: Iterable[TextBatch], tokenizer: tokenizers.Tokenizer, texts: list[StoredText]
    ) -> Iterator[tuple[TextBatch, list[NDArray[Any]]]]:
        """Yields batches with the ids of their parts; a thread encodes the next one meanwhile."""
        blank = prepends_blank(tokenizer)

        def ids_of(batch: TextBatch) -> list[NDArray[Any]]:
            if long := [texts[i].name for i, _, part in batch if len(part) > 10 * UNBROKEN]:
                raise UserError(
                    f"corpus.tokenizer: {long[0]} has {10 * UNBROKEN:,} characters without a "
                    "blank, too many for SentencePiece; use bpe, or bytes, or divide it"
                )
            # A blank between two words is the one that the tokenizer puts before a text.
            words = [part[1:] if blank and n else part for _, n, part in batch]
            if self.corpus.tokenizer == "bytes":  # what the tokenizer would give, without its lists
                return [np.frombuffer(part.encode(), dtype=np.uint8) for part in words]
            encodings = tokenizer.encode_batch_fast(words, add_special_tokens=False)
            return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

        with ThreadPoolExecutor(1) as thread:
            begun = ((batch, thread.submit(ids_of, batch)) for batch in batches)
            batch, ids = next(begun)
            for later, ids_later in begun:
                yield batch, ids.result()
                batch, ids = later, ids_later
            yield batch, ids.result()


def fingerprint(sums: Mapping[str, str], tokenizer: tokenizers.Tokenizer) -> str:
    """Returns the sha256 of vocabulary, and tokens and offsets of both splits by those of files."""
    digest = hashlib.sha256()
    for split in SPLITS:
        for kind in ("bin", "offsets.bin", "examples.json"):
            digest.update(bytes.fromhex(sums.get(f"{split}.{kind}", "")))  # examples: of tasks only
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    digest.update(json.dumps(vocab, sort_keys=True).encode())
    return digest.hexdigest()


def cached_corpora(cache_dir: Path) -> list[list[str]]:
    """Returns name, tokens of both splits and bytes of each folder of a cache."""
    found: list[list[str]] = []
    for folder in sorted(path.parent for path in cache_dir.glob("[!.]*/meta.json")):
        meta = dict[str, Any]()
        with suppress(OSError, ValueError):
            meta = json.loads((folder / "meta.json").read_bytes())
        tokens = (f"{n:,}" if (n := meta.get(s, {}).get("tokens")) else "" for s in SPLITS)
        found.append([folder.name, *tokens, f"{_n_bytes(folder):,}"])
    return found


def remove(cache_dir: Path, pattern: str) -> Iterator[tuple[str, int]]:
    """Removes the folders of a name or glob; yields name and bytes of each.

    What is open stays readable until it is closed; a run builds what it lacks again. Raises
    UserError if there is no such folder, or another process builds it.
    """
    kept = (path.parent for path in cache_dir.glob("[!.]*/meta.json"))
    if not (folders := [folder for folder in kept if fnmatch(folder.name, pattern)]):
        raise UserError(f"--remove {pattern}: nothing of that name is kept in {cache_dir}")
    with one_line_errors(cache_dir):
        for left in cache_dir.glob(".overlap-*.bin"):  # made again in seconds
            left.unlink()
        for folder in folders:
            lock = filelock.FileLock(folder.with_name(f".{folder.name}.lock"))
            try:
                with lock.acquire(blocking=False):
                    size = _n_bytes(folder)
                    shutil.rmtree(folder)
            except filelock.Timeout:
                raise UserError(f"{folder}: another process builds it; wait for it") from None
            yield folder.name, size


def _n_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def damage(folder: Path) -> str | None:
    """Says which file of a folder is not as it was built, None if all are.

    A file is hashed once for its size, times and inode, which .hashed.json remembers.
    """
    known, now, name = dict[str, Any](), dict[str, Any](), SUMS
    with suppress(OSError, ValueError):
        known = json.loads((folder / ".hashed.json").read_bytes())
    try:
        sums = json.loads((folder / SUMS).read_bytes())
        if {path.name for path in folder.glob("[!.]*")} - {SUMS, *sums}:
            raise ValueError
        for name, digest in sums.items():
            stat = (folder / name).stat()
            now[name] = [digest, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
            if known.get(name) != now[name] and sha256_of(folder / name) != digest:
                raise ValueError
    except (ValueError, AttributeError, FileNotFoundError):
        return f"the token cache {folder} is damaged ({name} is not as it was written)"
    if now != known:
        with suppress(UserError):  # of one that can only be read
            replace_file(folder / ".hashed.json", json.dumps(now).encode())
    return None


def id_type(vocab_size: int) -> np.dtype[Any]:
    """Returns the type of token ids on disk."""
    return np.dtype("<u2" if vocab_size <= 65_536 else "<u4")


class ByteProgress:
    """Says every few seconds how much text of a long task is done."""

    def __init__(self, task: str, say: Say) -> None:
        self.task, self.say, self.n_bytes, self.said = task, say, 0, time.monotonic()

    def advance(self, n_bytes: int) -> None:
        """Counts n_bytes more as done."""
        self.n_bytes += n_bytes
        if time.monotonic() - self.said >= 3:
            self.said = time.monotonic()
            self.say(f"{self.task}: {self.n_bytes / 1e6:.1f} MB")


def _read(path: Path, texts: Iterable[StoredText]) -> Iterator[str]:
    with path.open("rb") as file:
        for text in texts:
            yield file.read(text.n_bytes).decode()


def _batches(texts: Iterable[str], *, sentencepiece: bool, size: int) -> Iterator[TextBatch]:
    """Yields batches of about BATCH characters, at least one."""
    batch, n_letters = TextBatch(), 0
    for i, text in enumerate(texts):
        for n, part in enumerate(pieces(text, sentencepiece=sentencepiece, size=size)):
            batch.append((i, n, part))
            n_letters += len(part)
            if n_letters >= BATCH:
                yield batch
                batch, n_letters = [], 0
    yield batch
