"""Places in a corpus: the end of scored targets, and a window of text."""

from typing import NamedTuple


class Endpoint(NamedTuple):
    """Where a scored span ends: `end` targets of the document lie before it."""

    document: int
    end: int


class Span(NamedTuple):
    """A window of `length` targets that ends at `end`; its last `scored` targets count.

    A document of -1 - b is block b of the stream: the validation documents one after another.
    """

    document: int
    end: int
    length: int
    scored: int

    @property
    def start(self) -> int:
        return self.end - self.length
