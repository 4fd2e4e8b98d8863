"""Documents of a dataset on the Hugging Face Hub, or of a local folder laid out as one."""

import errno
import itertools
import re
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lengthgen.config import schema
from lengthgen.data.sources.document import Document, Documents, Say, known_columns
from lengthgen.errors import UserError


def read(corpus: schema.HubCorpus, *, say: Say) -> Documents:
    """Opens both splits; without a validation split, the first training documents validate."""
    n_validation = corpus.validation_documents
    if corpus.validation_split is not None:
        first, held_out = 0, _documents(corpus, corpus.validation_split)
    elif n_validation is not None:
        first, held_out = n_validation, _documents(corpus, corpus.train_split)
    else:
        raise UserError(
            "corpus.validation_documents: a number is required if corpus.validation_split is null: "
            "the first so many documents of the training split are validation"
        )
    if Path(corpus.repo).is_dir():
        say(f"reading {corpus.repo}, a local folder laid out as a repository of the Hub")
    else:
        say(
            f"downloading {corpus.repo} from the Hugging Face Hub; without a network this takes "
            "about 25 s to fail; set HF_HUB_OFFLINE=1 to fail at once, or to use what is cached"
        )
    last = None if corpus.documents is None else first + corpus.documents
    return Documents(
        train=itertools.islice(_documents(corpus, corpus.train_split), first, last),
        validation=itertools.islice(held_out, n_validation),
        n_bytes=None,
    )


def _documents(corpus: schema.HubCorpus, split: str) -> Iterator[Document]:
    """Yields the documents of a split, named by row (or article) counted from 1."""
    texts = _texts(corpus, split)
    named = articles(texts) if corpus.rows == "wikitext_lines" else (("", text) for text in texts)
    for number, (title, text) in enumerate(named, start=1):
        if text:
            yield Document(name=f"{split}:{number} {title}".rstrip(), text=text)


def _texts(corpus: schema.HubCorpus, split: str) -> Iterator[str]:
    import datasets

    column = corpus.text_column
    with _one_line_errors(corpus, split):
        rows: Any = datasets.load_dataset(
            corpus.repo,
            corpus.subset,
            split=split,
            revision=corpus.revision,
            streaming=corpus.streaming,
        )
        for row in rows:
            if column not in row:
                raise UserError(
                    f"corpus.text_column: {corpus.repo} has no column {column!r}; "
                    f"{known_columns(row)}"
                )
            if not isinstance(row[column], str):
                raise UserError(
                    f"corpus.text_column: column {column!r} of {corpus.repo} is not text but "
                    f"{str(row[column])[:20]!r}; {known_columns(row)}"
                )
            yield row[column]


@contextmanager
def _one_line_errors(corpus: schema.HubCorpus, split: str) -> Generator[None]:
    """Turns what `datasets` and the network libraries below it raise into one line."""
    import datasets.exceptions

    revision = corpus.revision or "newest"
    try:
        yield
    except UserError:
        raise
    except (datasets.exceptions.DatasetNotFoundError, FileNotFoundError) as error:
        raise UserError(
            f"corpus.repo: {corpus.repo} (revision {revision}) was not found on the Hugging Face "
            "Hub, or needs a login; check the name, or run `hf auth login`"
        ) from error
    except ConnectionError as error:
        raise UserError(
            f"corpus.repo: {corpus.repo} is not reachable ({_first_line(error)}); check the "
            "network, or use corpus=stdlib or corpus=files"
        ) from error
    except Exception as error:  # which HTTP library raises depends on versions; full disk: ours
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"corpus.repo: cannot read {corpus.repo} (corpus.subset={corpus.subset}, split "
            f"{split}, revision {revision}): {_first_line(error)}"
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
