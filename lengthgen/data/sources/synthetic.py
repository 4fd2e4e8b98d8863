"""Seeded random documents, in which spans of words are repeated far from their source."""

import itertools
import string
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lengthgen.config import schema
from lengthgen.data.sources.document import Document, Documents
from lengthgen.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A span of n_words words at `target` that repeats the one at `source`; both count words."""

    source: int
    target: int
    n_words: int


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A random document and where its copies are."""

    document: Document
    copies: tuple[Copy, ...]


def planted(corpus: schema.SyntheticCorpus, *, index: int, held_out: bool) -> Planted:
    """Returns document `index` of a split: a function of corpus, index and split alone.

    Words are uniform over the alphabet. Sources lie in the first quarter of the document, targets
    in the second half, one in each of `copies` equal slots: at least a quarter lies between.
    """
    n_words, span = corpus.document_tokens, corpus.copy_tokens
    slot = n_words // 2 // max(1, corpus.copies)
    if corpus.copies and span > min(slot, n_words // 4):
        raise UserError(
            f"corpus.copy_tokens={span} is too long for corpus.copies={corpus.copies} in "
            f"corpus.document_tokens={n_words}; at most {min(slot, n_words // 4)} fit"
        )
    key = np.array([corpus.seed, index], dtype=np.uint64)
    counter = np.array([0, 0, 0, int(held_out)], dtype=np.uint64)
    generator = np.random.Generator(np.random.Philox(key=key, counter=counter))
    words = generator.integers(corpus.alphabet, size=n_words)
    copies: list[Copy] = []
    for i in range(corpus.copies):
        source = int(generator.integers(n_words // 4 - span + 1))
        target = n_words - (i + 1) * slot + int(generator.integers(slot - span + 1))
        words[target : target + span] = words[source : source + span]
        copies.append(Copy(source=source, target=target, n_words=span))
    name = f"{'validation' if held_out else 'train'}:{index}"
    text = _as_text(words, corpus.alphabet)
    return Planted(document=Document(name=name, text=text), copies=tuple(copies))


def _as_text(words: NDArray[np.int64], alphabet: int) -> str:
    """Writes word numbers in letters, all of one length, each followed by a space."""
    letters, width = string.ascii_lowercase, 1
    while len(letters) ** width < alphabet:
        width += 1
    words_by_number = ["".join(word) + " " for word in itertools.product(letters, repeat=width)]
    return "".join(words_by_number[word] for word in words)


def read(corpus: schema.SyntheticCorpus) -> Documents:
    """Opens the documents; a tenth as many as in training, at least one, validate."""
    n_validation = max(1, corpus.documents // 10)
    first = planted(corpus, index=0, held_out=False).document

    def documents(n: int, held_out: bool) -> Iterator[Document]:
        for index in range(n):
            yield planted(corpus, index=index, held_out=held_out).document

    return Documents(
        train=documents(corpus.documents, False),
        validation=documents(n_validation, True),
        n_bytes=len(first.text) * (corpus.documents + n_validation),
    )
