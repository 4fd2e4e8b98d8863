"""Documents of files on disk: text, Markdown, Python, JSON lines and parquet.

The loaders of `datasets` are not used: they lose the line numbers that are in names of documents
and in errors, give None for a row without the column, and import in seconds.
"""

import heapq
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from lengthgen.data.sources import paths
from lengthgen.data.sources.source import Document, Source, known_columns, name_hash
from lengthgen.errors import UserError
from lengthgen.files import open_regular, utf8

KEY = "corpus.path"


class Files(Source):
    """Splits as given, or by rule if the files are not split already.

    The rule: 1 in 20 by hash of the name, and always the second longest document (so that
    validation has a long one), never the longest. A single document is split by position: its
    last twentieth, from the beginning of a line, is validation.
    """

    def __init__(
        self,
        *,
        path: str | list[str],
        validation_path: str | list[str] | None = None,
        text_column: str = "text",
    ) -> None:
        self.path, self.validation_path, self.column = path, validation_path, text_column

    @cached_property
    def split_paths(self) -> tuple[list[Path], list[Path]]:
        """The files of training and of validation; none in the latter if the rule must split."""
        if self.validation_path is not None:
            validation = paths.expand(self.validation_path, "corpus.validation_path")
            held_out = {path.resolve() for path in validation}
            files = paths.expand(self.path, KEY)
            train = [path for path in files if path.resolve() not in held_out]
            if not train:
                raise UserError(
                    f"corpus.validation_path: {self.validation_path} holds every file of "
                    f"{KEY}={self.path}; nothing is left to train on"
                )
            return train, validation
        if isinstance(self.path, str):
            folders = [Path(self.path).expanduser() / name for name in ("train", "validation")]
            if all(map(os.path.isdir, folders)):
                train, validation = (paths.expand(str(folder), KEY) for folder in folders)
                return train, validation
        return paths.expand(self.path, KEY), []

    def data_key(self) -> str:
        return paths.states([*self.split_paths[0], *self.split_paths[1]], KEY)

    def description(self) -> str:
        """Names the files, and what else their folder holds, by kind."""
        files = {*self.split_paths[0], *self.split_paths[1]}
        line = f"reading {len(files)} files of {self.path}"
        folder = Path(self.path).expanduser() if isinstance(self.path, str) else None
        if folder is None or not os.path.isdir(folder):
            return line
        kinds = Counter(
            file.suffix or file.name for file in paths.walk(folder, KEY) if file not in files
        )
        others = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common(5))
        return f"{line}; not read: {others}" if kinds else line

    def documents(self, *, held_out: bool) -> Iterator[Document]:
        train, validation = self.split_paths
        if validation:
            yield from self._documents(validation if held_out else train)
            return
        longest = self._two_longest
        if len(longest) == 1:
            (document,) = (d for d in self._documents(train) if d.name == longest[0])
            yield _by_position(document, held_out=held_out)
            return
        for document in self._documents(train):
            name = document.name
            chosen = name == longest[1] or (name != longest[0] and name_hash(name) % 20 == 0)
            if chosen == held_out:
                yield document

    @cached_property
    def _two_longest(self) -> list[str]:
        documents = self._documents(self.split_paths[0])
        sizes = ((len(d.text.encode(errors="surrogatepass")), d.name) for d in documents)
        longest = [name for size, name in heapq.nlargest(2, sizes) if size]
        if not longest:
            raise UserError(
                f"{KEY}: no documents in {self.path}; every file or row is empty, or there is none"
            )
        return longest

    def _documents(self, files: Sequence[Path]) -> Iterator[Document]:
        """Yields the documents of the files, named by their path below the common folder."""
        folder = os.path.commonpath([path.absolute().parent for path in files])
        for path in files:
            name = utf8(Path(os.path.relpath(path.absolute(), folder)).as_posix())
            with paths.readable(path, KEY):
                match path.suffix.lower():
                    case ".jsonl":
                        yield from self._jsonl(path, name)
                    case ".parquet":
                        yield from self._parquet(path, name)
                    case _:
                        with open_regular(path) as file:
                            yield Document(name=name, text=_decode(file.read(), path))

    def _jsonl(self, path: Path, name: str) -> Iterator[Document]:
        """Yields a document per line that is not blank; lines are counted from 1."""
        with open_regular(path) as file:
            for number, line in enumerate(file, start=1):
                where = f"{path}:{number}"
                content = _decode(line, where).lstrip("\ufeff")
                if not content.strip():
                    continue
                try:
                    row = json.loads(content)
                except (ValueError, RecursionError) as error:
                    raise UserError(f"{KEY}: {where} is not JSON: {error}") from None
                if not isinstance(row, dict):
                    raise UserError(f"{KEY}: {where} is not a JSON object with a text column")
                yield Document(name=f"{name}:{number}", text=self._text(row, where))

    def _parquet(self, path: Path, name: str) -> Iterator[Document]:
        """Yields a document per row; rows are counted from 1."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        open_regular(path).close()  # not of a pipe, which might never end
        number = 0
        try:
            with pq.ParquetFile(path) as file:
                names = file.schema_arrow.names
                self._check_column(names, str(path))
                for batch in file.iter_batches(batch_size=64, columns=[self.column]):
                    for text in batch.column(self.column).to_pylist():
                        number += 1
                        row = dict.fromkeys(names) | {self.column: text}
                        text = self._text(row, f"{path}:{number}")
                        yield Document(name=f"{name}:{number}", text=text)
        except pa.ArrowInvalid:
            raise UserError(f"{KEY}: {path} is not a parquet file, or damaged") from None
        except UnicodeDecodeError:
            where = f"{path}, after row {number}"
            raise UserError(f"{KEY}: {where}: column {self.column!r} is not UTF-8") from None

    def _check_column(self, names: Sequence[str], where: str) -> None:
        if self.column not in names:
            raise UserError(f"{KEY}: {where} has no column {self.column!r}; {known_columns(names)}")

    def _text(self, row: Mapping[str, Any], where: str) -> str:
        """Returns the text of a row, empty for null."""
        self._check_column([*row], where)
        text = row[self.column]
        if text is not None and not isinstance(text, str):
            others = [name for name in row if name != self.column]
            raise UserError(
                f"{KEY}: {where}: column {self.column!r} is not text but {str(text)[:20]!r}; "
                f"{known_columns(others)}"
            )
        return text or ""


def _decode(content: bytes, where: Path | str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{KEY}: {where} is not UTF-8 at byte {error.start}; convert it, for instance with "
            "iconv -f latin1 -t utf-8, or keep it out of the folder"
        ) from None


def _by_position(document: Document, *, held_out: bool) -> Document:
    """Returns the head of a single document, or its tail: the last twentieth."""
    text = document.text
    at = len(text) * 19 // 20
    at = text.rfind("\n", 0, at) + 1 or at
    if not 0 < at < len(text):
        raise UserError(
            f"{KEY}: {document.name} is the only document, and too short to take validation "
            "text from; add documents, or set corpus.validation_path"
        )
    if held_out:
        return Document(name=f"{document.name}:tail", text=text[at:])
    return Document(name=f"{document.name}:head", text=text[:at])
