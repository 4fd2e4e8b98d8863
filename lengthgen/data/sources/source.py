"""The interface of a source: documents in two splits, named alike on every machine."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from lengthgen.config import schema
from lengthgen.config.registry import construct
from lengthgen.config.sections import arguments

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Document:
    """A text and its name, which is unique in its split and the same on every machine."""

    name: str
    text: str
    prompt_bytes: int = 0  # of an example: leading bytes that are not predicted
    length: int = 0  # of an example, in the unit of its task


class Source(ABC):
    """Documents by rule. The keyword-only arguments are the keys of its corpus in YAML.

    A value that it cannot honour raises ValueError.
    """

    tokenizer_every = 1  # a BPE is trained on one in so many training documents
    alphabet: str | None = (
        None  # the ASCII characters of all texts, for corpus.tokenizer=characters
    )

    @classmethod
    def of(cls, corpus: schema.Corpus) -> Self:
        """Builds the source of a corpus. Raises UserError for arguments that do not fit."""
        return construct(cls, corpus.arguments, where="corpus")

    @classmethod
    def typed(cls, corpus: schema.Corpus) -> schema.Corpus:
        """Returns the corpus with its arguments in their types, and with their defaults."""
        return corpus.model_copy(update=arguments(cls, corpus.arguments, where="corpus"))

    @abstractmethod
    def documents(self, *, held_out: bool) -> Iterator[Document]:
        """Yields the documents of validation if held_out, else those of training."""

    def data_key(self) -> Any:
        """Returns what identifies the data of the documents, in addition to code and arguments."""
        return ""

    def description(self) -> str:
        """Returns what is said before the documents are read."""
        return "reading documents"


def name_hash(name: str) -> int:
    """Returns a number that decides a document's split, the same on every machine."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16)


def known_columns(names: Iterable[str]) -> str:
    """Returns the remedy for a column that is missing or holds no text."""
    return f"set corpus.text_column to one of: {', '.join(names)}"
