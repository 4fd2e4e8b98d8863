"""Documents in two splits, with names that do not depend on the machine."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Document:
    """A text and its name, which is unique in its split and the same on every machine."""

    name: str
    text: str
    prompt_bytes: int = 0  # of an example: leading bytes that are not predicted
    length: int = 0  # of an example, in the unit of its task


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Both splits, each to be read once and in order; n_bytes is their UTF-8 size, if known.

    A tokenizer is trained on one in `tokenizer_every` training documents.
    """

    train: Iterator[Document]
    validation: Iterator[Document]
    n_bytes: int | None
    tokenizer_every: int = 1
    about: dict[str, Any] = field(default_factory=dict[str, Any])  # enters meta.json


class Source(ABC):
    """Documents by rule. The keyword-only arguments are the schema of `corpus.arguments`.

    A value that it cannot honour raises ValueError.
    """

    @abstractmethod
    def documents(self, *, held_out: bool) -> Iterator[Document]:
        """Yields the documents of validation if held_out, else those of training."""

    def data_key(self) -> str:
        """Returns what identifies the data of the documents, in addition to code and arguments."""
        return ""


def name_hash(name: str) -> int:
    """Returns a number that decides a document's split, the same on every machine."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16)


def known_columns(names: Iterable[str]) -> str:
    """Returns the remedy for a column that is missing or holds no text."""
    return f"set corpus.text_column to one of: {', '.join(names)}"
