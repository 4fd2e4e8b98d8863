"""Seeded random documents, in which spans of words are repeated far from their source."""

import itertools
import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from lengthgen.config.schema import NonNegative, Positive
from lengthgen.data.sources import Document, Source


@dataclass(kw_only=True)
class Synthetic(Source):
    """Uniform random words; a tenth as many documents as in training, at least one, validate."""

    documents: Positive
    document_words: Positive
    alphabet: Annotated[int, Field(ge=2, le=4096)]
    copy_words: Positive
    copies: NonNegative
    seed: NonNegative

    def __post_init__(self) -> None:
        n_words, copies = self.document_words, self.copies
        longest = min(n_words // 2 // max(1, copies), n_words // 4)
        if copies and self.copy_words > longest:
            raise ValueError(
                f"copy_words={self.copy_words} is too long for copies={copies} in "
                f"document_words={n_words}; at most {longest} fit"
            )
        width = next(w for w in itertools.count(1) if 26**w >= self.alphabet)
        spelled = itertools.product(string.ascii_lowercase, repeat=width)
        self.words = ["".join(word) + " " for word in itertools.islice(spelled, self.alphabet)]

    def read(self, *, held_out: bool) -> Iterator[Document]:
        split = "validation" if held_out else "train"
        for index in range(max(1, self.documents // 10) if held_out else self.documents):
            words, _ = self.planted(index, held_out=held_out)
            text = "".join(self.words[word] for word in words)
            yield Document(name=f"{split}:{index}", text=text)

    def planted(
        self, index: int, *, held_out: bool
    ) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
        """Returns the words of a document, as numbers, and source and target of each copy.

        Sources lie in the first quarter of the document, targets in the second half, one in each of
        `copies` equal slots: at least a quarter lies between.
        """
        n, span = self.document_words, self.copy_words
        key = np.array([self.seed, index], dtype=np.uint64)
        counter = np.array([0, 0, 0, int(held_out)], dtype=np.uint64)
        generator = np.random.Generator(np.random.Philox(key=key, counter=counter))
        words = generator.integers(len(self.words), size=n)
        slot = n // 2 // max(1, self.copies)
        copies: list[tuple[int, int]] = []
        for i in range(self.copies):
            source = int(generator.integers(n // 4 - span + 1))
            target = n - (i + 1) * slot + int(generator.integers(slot - span + 1))
            words[target : target + span] = words[source : source + span]
            copies.append((source, target))
        return words, copies
