"""Documents of files on disk: text, Markdown, Python, JSON lines and parquet.

The loaders of `datasets` are not used: they lose the line numbers that are in names of documents
and in errors, give None for a row without the column, and import in seconds.
"""

import heapq
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lengthgen.config import schema
from lengthgen.data.sources.document import Document, Documents, Say, known_columns, name_hash
from lengthgen.data.sources.paths import expand, readable, state
from lengthgen.errors import UserError
from lengthgen.files import open_regular, utf8


def read(corpus: schema.FilesCorpus, *, say: Say) -> Documents:
    """Splits as given, or by rule if the files are not split already.

    The rule: 1 in 20 by hash of the name, and always the second longest document (so that
    validation has a long one), never the longest. A single document is split by position: its
    last twentieth, from the beginning of a line, is validation.
    """
    train, validation = split_paths(corpus)
    paths = train + validation
    n_bytes = sum(_text_bytes(path, corpus) for path in paths)
    say(f"reading {len(paths)} files ({n_bytes / 1e6:.1f} MB) of {corpus.path}")
    if validation:
        return Documents(
            train=_documents(train, corpus),
            validation=_documents(validation, corpus),
            n_bytes=n_bytes,
        )
    sizes = ((len(document.text.encode()), document.name) for document in _documents(train, corpus))
    two_longest = [name for _, name in heapq.nlargest(2, sizes)]
    if not two_longest:
        raise UserError(
            f"corpus.path: no documents in {corpus.path}; every row is empty, or there is none"
        )
    if len(two_longest) == 1:
        head, tail = _by_position(next(_documents(train, corpus)))
        say(f"corpus.path holds a single document: the last {len(tail.text)} characters validate")
        return Documents(train=iter([head]), validation=iter([tail]), n_bytes=n_bytes)

    longest, second = two_longest

    def documents(held_out: bool) -> Iterator[Document]:
        for document in _documents(train, corpus):
            name = document.name
            chosen = name == second or (name != longest and name_hash(name) % 20 == 0)
            if chosen == held_out:
                yield document

    return Documents(train=documents(False), validation=documents(True), n_bytes=n_bytes)


def _by_position(document: Document) -> tuple[Document, Document]:
    text = document.text
    at = len(text) * 19 // 20
    at = text.rfind("\n", 0, at) + 1 or at
    if not 0 < at < len(text):
        raise UserError(
            f"corpus.path: {document.name} is the only document, and too short to take validation "
            "text from; add documents, or set corpus.validation_path"
        )
    return (
        Document(name=f"{document.name}:head", text=text[:at]),
        Document(name=f"{document.name}:tail", text=text[at:]),
    )


def split_paths(corpus: schema.FilesCorpus) -> tuple[list[Path], list[Path]]:
    """Returns the files of training and of validation; none in the latter if rules must split."""
    if corpus.validation_path is not None:
        validation = expand(corpus.validation_path, "corpus.validation_path")
        held_out = {path.resolve() for path in validation}
        found = expand(corpus.path, "corpus.path")
        train = [path for path in found if path.resolve() not in held_out]
        if not train:
            raise UserError(
                f"corpus.validation_path: {corpus.validation_path} holds every file of "
                f"corpus.path={corpus.path}; nothing is left to train on"
            )
        return train, validation
    if isinstance(corpus.path, str):
        folders = [Path(corpus.path).expanduser() / name for name in ("train", "validation")]
        if all(os.path.isdir(folder) for folder in folders):
            train, validation = (expand(str(folder), "corpus.path") for folder in folders)
            return train, validation
    return expand(corpus.path, "corpus.path"), []


def _text_bytes(path: Path, corpus: schema.FilesCorpus) -> int:
    """Returns about how many bytes of text a file holds; parquet is compressed."""
    if path.suffix.lower() != ".parquet":
        return state(path, "corpus.path")[1]
    metadata = _open_parquet(path, corpus).metadata
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    columns = [group.column(j) for group in groups for j in range(group.num_columns)]
    name = corpus.text_column
    return sum(c.total_uncompressed_size for c in columns if c.path_in_schema == name)


def _documents(paths: Sequence[Path], corpus: schema.FilesCorpus) -> Iterator[Document]:
    """Yields the documents of the files, named by their path below the common folder."""
    folder = os.path.commonpath([path.absolute().parent for path in paths])
    for path in paths:
        name = utf8(Path(os.path.relpath(path.absolute(), folder)).as_posix())
        with readable(path, "corpus.path"):
            match path.suffix.lower():
                case ".jsonl":
                    yield from _jsonl(path, name, corpus)
                case ".parquet":
                    yield from _parquet(path, name, corpus)
                case _:
                    yield from _whole(path, name)


def _whole(path: Path, name: str) -> Iterator[Document]:
    with open_regular(path) as file:
        content = file.read()
    if not content:
        if path.name == "__init__.py":  # empty by convention in most packages
            return
        raise UserError(f"corpus.path: {path} is empty; remove it or fill it")
    yield Document(name=name, text=_decode(content, path, offset=0))


def _decode(content: bytes, path: Path, *, offset: int) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"corpus.path: {path} is not UTF-8 at byte {offset + error.start}; "
            "convert it, for instance with iconv -t utf-8"
        ) from None


def _jsonl(path: Path, name: str, corpus: schema.FilesCorpus) -> Iterator[Document]:
    """Yields a document per line; lines are counted from 1, blank ones and empty texts skipped."""
    column, offset, empty = corpus.text_column, 0, True
    with open_regular(path) as file:
        for number, line in enumerate(file, start=1):
            content = _decode(line, path, offset=offset).lstrip("\ufeff")
            offset += len(line)
            if not content.strip():
                continue
            empty = False
            where = f"{path}:{number}"
            try:
                row = json.loads(content)
            except json.JSONDecodeError as error:
                raise UserError(
                    f"corpus.path: {where} is not JSON: {error.msg} at column {error.colno}"
                ) from None
            except ValueError as error:
                raise UserError(f"corpus.path: {where} is not readable as JSON: {error}") from None
            if not isinstance(row, dict):
                raise UserError(f"corpus.path: {where} is not a JSON object with a text column")
            yield from _row(row, column, where, f"{name}:{number}")
    if empty:
        raise UserError(f"corpus.path: {path} is empty; remove it or fill it")


def _row(row: dict[str, Any], column: str, where: str, name: str) -> Iterator[Document]:
    if column not in row:
        raise UserError(f"corpus.path: {where} has no column {column!r}; {known_columns(row)}")
    text = row[column]
    if not isinstance(text, str) or _has_surrogates(text):
        raise UserError(
            f"corpus.path: {where}: column {column!r} is not text but {str(text)[:20]!r}; "
            f"{known_columns(row)}"
        )
    if text:
        yield Document(name=name, text=text)


def _has_surrogates(text: str) -> bool:
    """True for halves of UTF-16 pairs, which JSON can escape and UTF-8 cannot hold."""
    return re.search("[\ud800-\udfff]", text) is not None


def _open_parquet(path: Path, corpus: schema.FilesCorpus) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with readable(path, "corpus.path"):
            open_regular(path).close()
            file = pq.ParquetFile(path)
    except pa.ArrowInvalid:
        raise UserError(f"corpus.path: {path} is not a parquet file, or damaged") from None
    if corpus.text_column not in file.schema_arrow.names:
        raise UserError(
            f"corpus.path: {path} has no column {corpus.text_column!r}; "
            f"{known_columns(file.schema_arrow.names)}"
        )
    return file


def _parquet(path: Path, name: str, corpus: schema.FilesCorpus) -> Iterator[Document]:
    """Yields a document per row; rows are counted from 1, empty texts skipped."""
    column = corpus.text_column
    with _open_parquet(path, corpus) as file:
        names = file.schema_arrow.names
        batches = file.iter_batches(batch_size=64, columns=[column])
        texts = (text for batch in batches for text in batch.column(column).to_pylist())
        for number, text in enumerate(texts, start=1):
            row = dict.fromkeys(names) | {column: text}
            yield from _row(row, column, f"{path}:{number}", f"{name}:{number}")
