"""Tokenised corpora: documents turned into token ids once, and loaded from the token cache."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from lengthgen.config import schema
from lengthgen.config.registry import code_of, errors_of
from lengthgen.data.sources import Source
from lengthgen.data.token_cache import SPLITS, Build, damage, id_type, one_line_errors
from lengthgen.data.tokenizer import find_bos, given_tokenizer, read_tokenizer, token_bytes
from lengthgen.errors import Say, UserError
from lengthgen.files import hash_of

FORMAT = 3  # of the cache; a change of what is written, or of how documents are split, raises it


@dataclass(frozen=True, kw_only=True)
class Split:
    """The documents of one split, one after another; a packed split is one single document."""

    tokens: NDArray[np.uint16] | NDArray[np.uint32]  # [n]
    offsets: NDArray[np.int64]  # [n_documents + 1]
    names: list[str]
    groups: list[str]  # of each document: its project or author, or else its own name
    examples: NDArray[np.int64] | None = None  # of a task: length, tokens of the prompt; [n, 2]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each document, [n_documents]."""
        return np.diff(self.offsets)

    def prompt_length(self, i: int) -> int:
        """Returns the number of tokens of document i that are a prompt: they are not predicted."""
        return 0 if self.examples is None else int(self.examples[i, 1])

    def document(self, i: int) -> NDArray[np.uint16] | NDArray[np.uint32]:
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

    def document_lengths(self, split: str) -> NDArray[np.int64]:
        """Returns the tokens of each document of a split, before packing, [n_documents]."""
        documents: Split = getattr(self, split)
        if not self.packed:
            return documents.lengths
        between = find_bos(read_tokenizer(self.tokenizer_path))
        breaks = np.flatnonzero(documents.tokens == between)
        return np.diff(breaks, prepend=-1, append=len(documents.tokens)) - 1


def load_tokenized(
    corpus: schema.Corpus,
    source: Source,
    *,
    cache_dir: Path,
    say: Say,
    fingerprint: str | None = None,
    with_training: bool = True,
) -> TokenizedCorpus:
    """Returns the tokenised corpus from the cache, which is built first if it is not there.

    With the fingerprint of a run, the cache that it names is used, whatever the text is now.
    Without its training split, which is not read then, it is another corpus.
    """
    metas = sorted(cache_dir.glob("[!.]*/meta.json")) if fingerprint else []
    with one_line_errors(cache_dir):
        named = [
            path.parent for path in metas if str(fingerprint) in path.read_text(errors="replace")
        ]
        damages = [damage(folder) for folder in named]
    if None in damages:
        folder = named[damages.index(None)]
    else:
        try:
            folder = _ensured(corpus, source, cache_dir, say, with_training=with_training)
        except UserError as error:
            raise UserError("; ".join([*map(str, damages), str(error)])) from None
        if damages and folder not in named:  # of another text
            say(str(damages[0]))
    with one_line_errors(folder):
        meta = json.loads((folder / "meta.json").read_text())
        tokenizer = read_tokenizer(folder / "tokenizer.json")
        n_bytes = token_bytes(tokenizer)
        train, validation = (_split(folder, name, len(n_bytes)) for name in SPLITS)
    return TokenizedCorpus(
        name=corpus.name,
        train=train,
        validation=validation,
        vocab_size=len(n_bytes),
        bos_id=find_bos(tokenizer) if corpus.bos else None,
        packed=corpus.packed,
        token_bytes=n_bytes,
        fingerprint=meta["fingerprint"],
        tokenizer_path=folder / "tokenizer.json",
        meta=meta,
    )


def _ensured(
    corpus: schema.Corpus, source: Source, cache_dir: Path, say: Say, *, with_training: bool
) -> Path:
    """Returns the folder named by all that decides the tokens, and builds it if need be."""
    tokenizer = given_tokenizer(corpus, source)
    with errors_of(type(source), where="corpus.source"):
        data = json.loads(json.dumps(source.data_key()))
    decides = {
        "format": FORMAT if with_training else f"{FORMAT}, validation alone",
        "corpus": corpus.model_dump(mode="json", exclude={"name", "bos"}),
        "code": code_of(type(source)),
        "data": data,
        "tokenizer": [tokenizers.__version__, tokenizer and tokenizer.to_str()],
    }
    key = hash_of(decides, 12)
    folder = cache_dir / f"{corpus.name}-{key}"
    Build(folder, corpus, source, tokenizer, say, with_training).ensure()
    return folder


def _split(folder: Path, name: str, vocab_size: int) -> Split:
    examples, path = folder / f"{name}.examples.json", folder / f"{name}.bin"
    dtype = id_type(vocab_size)
    return Split(
        tokens=np.memmap(path, dtype, mode="r") if path.stat().st_size else np.zeros(0, dtype),
        offsets=np.fromfile(folder / f"{name}.offsets.bin", dtype="<i8"),
        names=json.loads((folder / f"{name}.names.json").read_text()),
        groups=json.loads((folder / f"{name}.groups.json").read_text()),
        examples=np.array(json.loads(examples.read_text())) if examples.exists() else None,
    )
