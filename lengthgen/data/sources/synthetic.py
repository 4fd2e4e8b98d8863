"""Seeded random documents, in which spans of words are repeated far from their source."""

import itertools
import string
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from lengthgen.config.schema import NonNegative, Positive
from lengthgen.data.sources.source import Document, Source


class Copy(NamedTuple):
    """A span of n_words words at `target` that repeats the one at `source`; both count words."""

    source: int
    target: int
    n_words: int


class Synthetic(Source):
    """Uniform random words; a tenth as many documents as in training, at least one, validate."""

    def __init__(
        self,
        *,
        documents: Positive,
        document_tokens: Positive,
        alphabet: Annotated[int, Field(ge=2, le=4096)],
        copy_tokens: Positive,
        copies: NonNegative,
        seed: NonNegative,
    ) -> None:
        longest = min(document_tokens // 2 // max(1, copies), document_tokens // 4)
        if copies and copy_tokens > longest:
            raise ValueError(
                f"copy_tokens={copy_tokens} is too long for copies={copies} in "
                f"document_tokens={document_tokens}; at most {longest} fit"
            )
        self.n_documents, self.n_words, self.n_copies = documents, document_tokens, copies
        self.span, self.seed = copy_tokens, seed
        letters, width = string.ascii_lowercase, 1
        while len(letters) ** width < alphabet:
            width += 1
        spelled = itertools.islice(itertools.product(letters, repeat=width), alphabet)
        self.words = ["".join(word) + " " for word in spelled]  # all of one length

    def documents(self, *, held_out: bool) -> Iterator[Document]:
        split = "validation" if held_out else "train"
        for index in range(max(1, self.n_documents // 10) if held_out else self.n_documents):
            words, _ = self.planted(index, held_out=held_out)
            text = "".join(self.words[word] for word in words)
            yield Document(name=f"{split}:{index}", text=text)

    def planted(self, index: int, *, held_out: bool) -> tuple[NDArray[np.int64], list[Copy]]:
        """Returns the words of document `index` of a split, as numbers, and its copies.

        Sources lie in the first quarter of the document, targets in the second half, one in each of
        `copies` equal slots: at least a quarter lies between.
        """
        key = np.array([self.seed, index], dtype=np.uint64)
        counter = np.array([0, 0, 0, int(held_out)], dtype=np.uint64)
        generator = np.random.Generator(np.random.Philox(key=key, counter=counter))
        words = generator.integers(len(self.words), size=self.n_words)
        slot = self.n_words // 2 // max(1, self.n_copies)
        copies: list[Copy] = []
        for i in range(self.n_copies):
            source = int(generator.integers(self.n_words // 4 - self.span + 1))
            target = self.n_words - (i + 1) * slot + int(generator.integers(slot - self.span + 1))
            words[target : target + self.span] = words[source : source + self.span]
            copies.append(Copy(source, target, self.span))
        return words, copies
