"""Documents of a dataset on the Hugging Face Hub, or of a local folder laid out as one."""

import errno
import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from lengthgen.config.schema import Positive
from lengthgen.data.sources import files
from lengthgen.data.sources.source import Document, Source, known_columns
from lengthgen.errors import UserError


class Hub(Source):
    """Splits of a dataset; without a validation split, the first training documents validate.

    A revision of None means whatever was newest when it was first read.
    """

    def __init__(
        self,
        *,
        repo: str,
        subset: str | None = None,
        revision: str | None = None,
        train_split: str = "train",
        validation_split: str | None = "validation",
        text_column: str = "text",
        rows: Literal["documents", "wikitext_lines"] = "documents",
        streaming: bool = False,
        documents: Positive | None = None,
        validation_documents: Positive | None = None,
    ) -> None:
        self.repo, self.subset, self.revision, self.streaming = repo, subset, revision, streaming
        self.train_split, self.validation_split = train_split, validation_split
        self.column, self.rows = text_column, rows
        self.n_train, self.n_validation = documents, validation_documents

    def data_key(self) -> str:
        """Returns the state of a local folder; the Hub is identified by its names alone."""
        folder = Path(self.repo)
        if not folder.is_dir():
            return ""
        return files.states(files.walk(folder, "corpus.repo"))

    def description(self) -> str:
        if Path(self.repo).is_dir():
            return f"reading {self.repo}, a local folder laid out as a repository of the Hub"
        return (
            f"downloading {self.repo} from the Hugging Face Hub; without a network this takes "
            "about 25 s to fail; set HF_HUB_OFFLINE=1 to fail at once, or to use what is cached"
        )

    def documents(self, *, held_out: bool) -> Iterator[Document]:
        if self.validation_split is None and self.n_validation is None:
            raise UserError(
                "corpus.validation_documents: a number is required if corpus.validation_split is "
                "null: the first so many documents of the training split are validation"
            )
        if held_out:
            split = self.validation_split or self.train_split
            return itertools.islice(self._documents(split), self.n_validation)
        first = 0 if self.validation_split else self.n_validation or 0
        last = None if self.n_train is None else first + self.n_train
        return itertools.islice(self._documents(self.train_split), first, last)

    def _documents(self, split: str) -> Iterator[Document]:
        """Yields the documents of a split, named by row (or article) counted from 1."""
        texts = self._texts(split)
        named = articles(texts) if self.rows == "wikitext_lines" else (("", text) for text in texts)
        for number, (title, text) in enumerate(named, start=1):
            if text:
                yield Document(name=f"{split}:{number} {title}".rstrip(), text=text)

    def _texts(self, split: str) -> Iterator[str]:
        import datasets

        try:
            rows: Any = datasets.load_dataset(
                self.repo,
                self.subset,
                split=split,
                revision=self.revision,
                streaming=self.streaming,
            )
            for row in rows:
                text = row.get(self.column)
                if self.column not in row or not isinstance(text, str | None):
                    others = [name for name in row if name != self.column]
                    raise UserError(
                        f"corpus.text_column: column {self.column!r} of {self.repo} is not there "
                        f"or not text; {known_columns(others)}"
                    )
                yield text or ""
        except UserError:
            raise
        except Exception as error:  # which HTTP library raises depends on versions
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise UserError(
                f"corpus.repo: cannot read {self.repo} (corpus.subset={self.subset}, split "
                f"{split}, revision {self.revision or 'newest'}): {_first_line(error)}; check the "
                "names and the network, run `hf auth login` if it needs one, or use corpus=stdlib"
            ) from error


def _first_line(error: BaseException) -> str:
    """Returns the first line of the innermost cause of an error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def articles(rows: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Rebuilds (title, text) of WikiText articles from its rows, each a line of the original.

    An article begins at a level-one title, ` = Title = ` after a blank line; ` = = Section = = `
    belongs to the article before it.
    """
    title, lines, after_blank = "", list[str](), True
    for row in rows:
        line = row.rstrip("\n")
        match = re.fullmatch(r" = (?!= )(.+) = ?", line) if after_blank else None
        if match:
            if "".join(lines).strip():
                yield title, "".join(lines)
            title, lines = match[1], []
        lines.append(line + "\n")
        after_blank = not line.strip()
    if "".join(lines).strip():
        yield title, "".join(lines)
