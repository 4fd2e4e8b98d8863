"""Documents of a dataset on the Hugging Face Hub, or of a local folder laid out as one."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from lengthgen.config.schema import Positive
from lengthgen.data.sources import Document, Source, files, text_of
from lengthgen.errors import UserError, first_line


@dataclass(kw_only=True)
class Hub(Source):
    """Splits of a dataset; without a validation split, the first training documents validate.

    A revision of None means whatever was newest when it was first read.
    """

    repo: str
    subset: str | None = None
    revision: str | None = None
    train_split: str = "train"
    validation_split: str | None = "validation"
    text_column: str = "text"
    rows: Literal["documents", "wikitext_lines"] = "documents"
    streaming: bool = False
    documents: Positive | None = None
    validation_documents: Positive | None = None

    def __post_init__(self) -> None:
        if self.validation_split is None and self.validation_documents is None:
            raise ValueError(
                "validation_documents: a number is required if validation_split is null: "
                "the first so many documents of the training split are validation"
            )

    def data_key(self) -> str:
        """Returns the state of a local folder; the Hub is identified by its names alone."""
        folder = Path(self.repo)
        return files.states(files.walk(folder, "corpus.repo")) if folder.is_dir() else ""

    def description(self) -> str:
        if Path(self.repo).is_dir():
            return f"reading {self.repo}, a local folder laid out as a repository of the Hub"
        return (
            f"downloading {self.repo} from the Hugging Face Hub; without a network this takes "
            "about 25 s to fail; set HF_HUB_OFFLINE=1 to fail at once, or to use what is cached"
        )

    def read(self, *, held_out: bool) -> Iterator[Document]:
        n_validation = self.validation_documents
        if held_out:
            return islice(self._documents(self.validation_split or self.train_split), n_validation)
        first = 0 if self.validation_split else n_validation or 0
        last = None if self.documents is None else first + self.documents
        return islice(self._documents(self.train_split), first, last)

    def _documents(self, split: str) -> Iterator[Document]:
        """Yields the documents of a split, named by row (or article) counted from 1."""
        texts = self._texts(split)
        named = articles(texts) if self.rows == "wikitext_lines" else (("", text) for text in texts)
        for number, (title, text) in enumerate(named, start=1):
            if text:
                yield Document(name=f"{split}:{number} {title}".rstrip(), text=text)

    def _texts(self, split: str) -> Iterator[str]:
        import datasets

        about: dict[str, Any] = {"split": split, "revision": self.revision}
        try:
            rows: Any = datasets.load_dataset(
                self.repo, self.subset, streaming=self.streaming, **about
            )
            for row in rows:
                yield text_of(row, self.text_column)
        except Exception as error:  # which HTTP library raises depends on versions
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            raise UserError(
                f"corpus.repo: cannot read {self.repo} (corpus.subset={self.subset}, split "
                f"{split}, revision {self.revision or 'newest'}): {first_line(cause)[:300]}; check "
                "the names and the network, run `hf auth login` if it needs one, or use "
                "corpus=stdlib"
            ) from error


def articles(rows: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Rebuilds (title, text) of WikiText articles from its rows, each a line of the original.

    An article begins at a level-one title, ` = Title = ` after a blank line; ` = = Section = = `
    belongs to the article before it.
    """
    title, text, after_blank = "", "", True
    for row in rows:
        line = row.rstrip("\n")
        match = re.fullmatch(r" = (?!= )(.+) = ?", line) if after_blank else None
        if match:
            if text.strip():
                yield title, text
            title, text = match[1], ""
        text += line + "\n"
        after_blank = not line.strip()
    if text.strip():
        yield title, text
