"""Documents of files on disk: text, Markdown and Python, and rows of JSON, CSV and parquet.

The loaders of `datasets` are not used: they lose the line numbers that are in names of documents
and in errors, give None for a row without the column, and import in seconds.
"""

import csv
import glob
import hashlib
import heapq
import io
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from lengthgen.data.sources.source import Document, Source, known_columns, name_hash
from lengthgen.errors import UserError, suggestion
from lengthgen.files import open_regular, utf8

KEY = "corpus.path"
TEXT = (".txt", ".md", ".py")  # a document per file
ROWS = (".jsonl", ".json", ".csv", ".parquet")  # a document per row
COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
KINDS = f"{' '.join((*TEXT, *ROWS))}, also with {' or '.join(COMPRESSED)}"
DATA = {  # that holds text and is not read
    *(".arrow", ".bz2", ".docx", ".epub", ".feather", ".htm", ".html", ".pdf", ".rst"),
    *(".tar", ".tex", ".tgz", ".tsv", ".xml", ".xz", ".zip"),
}
FIRST_BYTES = {  # of what is no text: its name and a remedy
    b"version https://git-lfs": "is a pointer of Git LFS; fetch the file with git lfs pull",
    b"\x1f\x8b": "is compressed by gzip; end its name in .gz",
    b"\x28\xb5\x2f\xfd": "is compressed by zstd; end its name in .zst",
    b"\xff\xfe": "is UTF-16; convert it: iconv -f utf-16 -t utf-8 OLD > NEW",
    b"\xfe\xff": "is UTF-16; convert it: iconv -f utf-16 -t utf-8 OLD > NEW",
}


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
            validation = expand(self.validation_path, "corpus.validation_path")
            held_out = {path.resolve() for path in validation}
            train = [path for path in expand(self.path) if path.resolve() not in held_out]
            if not train:
                raise UserError(
                    f"corpus.validation_path: {self.validation_path} holds every file of "
                    f"{KEY}={self.path}; nothing is left to train on"
                )
            return train, validation
        if isinstance(self.path, str):
            folders = [Path(self.path).expanduser() / name for name in ("train", "validation")]
            if all(map(os.path.isdir, folders)):
                return expand(str(folders[0])), expand(str(folders[1]))
        return expand(self.path), []

    def data_key(self) -> str:
        return states([*self.split_paths[0], *self.split_paths[1]])

    def description(self) -> str:
        """Names the files, and by kind what else their folder holds.

        Raises UserError for data in other formats that is more than what is read.
        """
        files = {*self.split_paths[0], *self.split_paths[1]}
        line = f"reading {len(files)} files of {self.path}"
        folder = Path(self.path).expanduser() if isinstance(self.path, str) else None
        if folder is None or not os.path.isdir(folder):
            return line
        others = [file for file in walk(folder) if file not in files]
        kinds = Counter(file.suffix or file.name for file in others)
        not_read = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common(5))
        data = [file for file in others if file.suffix.lower() in DATA]
        if sum(map(os.path.getsize, data)) > sum(map(os.path.getsize, files)):
            raise UserError(
                f"{KEY}: {folder} holds more data that is not read ({not_read}) than files of "
                f"{KINDS}; convert it, or name what is to be read, for instance {folder}/*.txt"
            )
        return f"{line}; not read: {not_read}" if others else line

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
        """Yields the documents of the files, named by their path below the common folder.

        Raises UserError after the last one for all files that cannot be read.
        """
        folder = os.path.commonpath([path.absolute().parent for path in files])
        problems: list[str] = []
        for path in files:
            name, row = utf8(Path(os.path.relpath(path.absolute(), folder)).as_posix()), -1
            try:
                for row, text in _texts(path, self.column):
                    if text is not None:
                        yield Document(name=f"{name}:{row}" if row else name, text=text)
            except (OSError, ValueError, RecursionError, csv.Error) as error:
                where = path if row < 0 else f"{path}:{row + 1}"
                problems.append(f"{where} {_reason(error)}")
        if problems:
            more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
            raise UserError(
                f"{KEY}: {len(problems)} of {len(files)} files cannot be read: "
                f"{'; '.join(problems[:3])}{more}"
            )


def _texts(path: Path, column: str) -> Iterator[tuple[int, str | None]]:
    """Yields the number of each row from 1, or 0 for a whole file, and its text.

    Nothing that is a document has the text None. Raises OSError, ValueError and csv.Error.
    """
    with open_regular(path) as file:
        first = file.peek(32)
        for begin, remedy in FIRST_BYTES.items():
            if first.startswith(begin) and path.suffix.lower() not in COMPRESSED:
                raise ValueError(remedy)
        stream = _decompressed(file, path)
        if _kind(path) in TEXT:
            yield 0, stream.read().decode()
            return
        yield 0, None  # what is raised from here on is said of the row after it
        for number, row in enumerate(_rows(stream, _kind(path), column), start=1):
            yield number, None if row is None else _text(row, column)


def _rows(stream: Any, kind: str, column: str) -> Iterator[Any]:
    """Yields the rows of a file, None for a blank line."""
    match kind:
        case ".parquet":
            import pyarrow.parquet as pq

            table = pq.ParquetFile(stream)
            names = table.schema_arrow.names
            for batch in table.iter_batches(64, columns=[column] if column in names else None):
                for i in range(len(batch)):
                    known = {column: batch[column][i].as_py()} if column in names else {}
                    yield dict.fromkeys(names) | known
        case ".csv":
            csv.field_size_limit(2**31 - 1)
            yield from csv.DictReader(line.decode("utf-8-sig") for line in stream)
        case ".json" if stream.peek(1).lstrip()[:1] == b"[":
            yield from json.load(stream)
        case _:
            for line in stream:
                content = line.decode("utf-8-sig")
                yield json.loads(content) if content.strip() else None


def _decompressed(file: io.BufferedReader, path: Path) -> io.BufferedReader:
    if path.suffix.lower() not in COMPRESSED:
        return file
    import pyarrow as pa

    stream: Any = pa.input_stream(file, compression=COMPRESSED[path.suffix.lower()])
    return io.BufferedReader(stream)


def _kind(path: Path) -> str:
    """Returns the suffix of a file in lower case, that before .gz and .zst."""
    name = Path(path.name.lower())
    return Path(name.stem).suffix if name.suffix in COMPRESSED else name.suffix


def _text(row: Any, column: str) -> str:
    """Returns the text of a row, empty for null."""
    if not isinstance(row, dict):
        raise ValueError("is not a JSON object with a text column")
    if column not in row:
        raise ValueError(f"has no column {column!r}; {known_columns(row)}")
    text = row[column]
    if text is not None and not isinstance(text, str):
        others = [name for name in row if name != column]
        raise ValueError(
            f"has no text but {str(text)[:20]!r} in column {column!r}; {known_columns(others)}"
        )
    return text or ""


def _reason(error: Exception) -> str:
    """Returns what is wrong with a file or row, and a remedy."""
    match error:
        case UnicodeDecodeError():
            return (
                f"is not UTF-8 at byte {error.start}; convert it, for instance with "
                "iconv -f latin1 -t utf-8 OLD > NEW, or keep it out of the folder"
            )
        case json.JSONDecodeError() | RecursionError():
            return f"is not JSON: {error}"
        case OSError(strerror=str(reason)):
            return f"cannot be read: {reason}"
        case _:
            return " ".join(str(error).split())[:300]


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


def expand(path: str | Sequence[str], key: str = KEY) -> list[Path]:
    """Returns the files that a path, glob or list of them names, sorted, each once."""
    given = [path] if isinstance(path, str) else path
    files = {file for each in given for file in _expand(Path(each).expanduser(), key)}
    if not files:
        raise UserError(f"{key}: an empty list names no document; give a folder or a file")
    return sorted(files)


def _expand(path: Path, key: str) -> list[Path]:
    if os.path.isdir(path):
        files = [file for file in walk(path, key) if _kind(file) in (*TEXT, *ROWS)]
        if not files:
            raise UserError(f"{key}: no documents in {path}; expected files of {KINDS}")
        return files
    names = [str(path)] if os.path.lexists(path) else glob.glob(str(path), recursive=True)
    files = [Path(name) for name in names if not os.path.isdir(name)]
    if not files and glob.has_magic(str(path)):
        raise UserError(f"{key}: {path} matches no file; quote the glob and check the folder")
    if not files:
        folder = path.absolute().parent
        near = os.listdir(folder) if os.path.isdir(folder) else []
        hint = suggestion(path.name, near, otherwise=f"nothing in {folder} has a similar name")
        raise UserError(f"{key}: {path} does not exist; {hint}")
    for file in files:
        if _kind(file) not in (*TEXT, *ROWS):
            raise UserError(f"{key}: {file} has an unsupported suffix; supported: {KINDS}")
    return files


def walk(folder: Path, key: str = KEY) -> list[Path]:
    """Returns all files under a folder but hidden ones, sorted."""

    def refuse(error: OSError) -> None:
        raise UserError(
            f"{key}: cannot read {error.filename}: {error.strerror}; check permissions"
        ) from error

    files: list[Path] = []
    for root, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(root, name) for name in names if not name.startswith(".")]
    return sorted(files)


def states(paths: Sequence[Path]) -> str:
    """Returns the hash of what changes when files do: absolute paths, sizes, times of change."""
    digest = hashlib.sha256()
    for path in paths:
        status = path.stat()
        state = f"{path.absolute()}\0{status.st_size}\0{status.st_mtime_ns}\0"
        digest.update(state.encode(errors="surrogateescape"))
    return digest.hexdigest()
