"""Documents of files on disk: text, Markdown and Python, and rows of JSON, CSV, parquet and Arrow.

The loaders of `datasets` are not used: they lose the line numbers that documents are named by,
give None for a row without the column, and import in seconds.
"""

import csv
import glob
import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

from lengthgen.config.schema import Word
from lengthgen.data.sources import Document, Source, name_hash, no_text, text_of
from lengthgen.errors import UserError, shortened, suggestion
from lengthgen.files import open_regular, utf8

TEXT = (".txt", ".md", ".py")  # a document per file
ROWS = (".jsonl", ".ndjson", ".json", ".csv", ".parquet", ".arrow")  # a document per row
COLUMNS = (".parquet", ".arrow")
STATE = {"dataset_dict.json", "dataset_info.json", "state.json"}  # of save_to_disk
KINDS = f"{' '.join((*TEXT, *ROWS))}, also with .gz or .zst"
COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}  # by first bytes
DATA = {  # that holds text and is not read
    *(".bz2", ".docx", ".epub", ".feather", ".htm", ".html", ".pdf", ".rst"),
    *(".tar", ".tex", ".tgz", ".tsv", ".xml", ".xz", ".zip"),
}
UTF16 = "is UTF-16; convert it: iconv -f utf-16 -t utf-8 OLD > NEW"
LFS = "is a pointer of Git LFS; fetch the file with git lfs pull"
NO_MARK = "is UTF-16 without its mark; convert it: iconv -f utf-16le -t utf-8 OLD > NEW"
BINARY = "is binary whatever its name says; keep it out of the folder"
NO_TEXT = {  # by first bytes
    **{b"\xff\xfe\0\0": UTF16.replace("16", "32"), b"\xff\xfe": UTF16, b"\xfe\xff": UTF16},
    **{b"version https://git-lfs": LFS, b"%PDF": BINARY, b"PK\3\4": BINARY, b"BZh": BINARY},
}


def _each_once(paths: str | list[str]) -> str | list[str]:
    once = [paths] if isinstance(paths, str) else sorted({*paths})
    return once[0] if len(once) == 1 else once


Paths = Annotated[Word | list[Word], AfterValidator(_each_once)]  # in any order, the same documents


@dataclass(kw_only=True)
class Files(Source):
    """Splits as given, or by rule if the files are not split already.

    The rule: 1 in 20 by hash of the name, and always the second longest document (so that
    validation has a long one), never the longest. A single document is split by position: its
    last twentieth, from the beginning of a line, is validation.
    """

    path: Paths
    validation_path: Paths | None = None
    text_column: str = "text"

    @cached_property
    def split_paths(self) -> tuple[list[Path], list[Path]]:
        """The files of training and of validation; none in the latter if the rule must split."""
        path, held_out, key = self.path, self.validation_path, "corpus.validation_path"
        folder = os.path.expanduser(str(path))
        if held_out is None and os.path.isdir(f"{folder}/validation"):
            held_out, key = f"{folder}/validation", "corpus.path"
            path = f"{folder}/train" if os.path.isdir(f"{folder}/train") else path
        elif held_out is None and os.path.isdir(f"{folder}/train"):
            _refuse_other_splits(folder)
        validation = [] if held_out is None else expand(held_out, key)
        return sorted({*expand(path)} - {*validation}), validation

    def data_key(self) -> str:
        return states([*self.split_paths[0], *self.split_paths[1]])

    def description(self) -> str:
        """Names the files, and by kind what else their folder holds.

        Raises UserError for data in other formats that is more than what is read.
        """
        files = {*self.split_paths[0], *self.split_paths[1]}
        line = f"reading {len(files)} files of {self.path}"
        folder = Path(str(self.path)).expanduser()
        others = {*walk(folder)} - files if os.path.isdir(folder) else None
        if not others:
            return line
        kinds = Counter(sorted(file.suffix or file.name for file in others))
        not_read = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common(5))
        data = [file for file in others if file.suffix.lower() in DATA]
        if sum(map(_size, data)) > sum(map(_size, files)):
            raise UserError(
                f"corpus.path: {folder} holds more data that is not read ({not_read}) than files "
                f"of {KINDS}; convert it, or name what is to be read, for instance {folder}/*.txt"
            )
        return f"{line}; not read: {not_read}"

    def check(self) -> None:
        """Looks for the files, and for the text column in the first one that has rows."""
        train, validation = self.split_paths
        with_rows = [path for path in validation or train if _kind(path) in ROWS]
        next(self._documents(with_rows[:1]), None)

    def read(self, *, held_out: bool) -> Iterator[Document]:
        train, validation = self.split_paths
        if validation:
            yield from self._documents(validation if held_out else train)
            return
        longest, second = self._two_longest
        for document in self._documents(train):
            name = document.name
            chosen = name == second or (name != longest and name_hash(name) % 20 == 0)
            if second is not None and chosen == held_out:
                yield document
            elif second is None and name == longest:
                at = len(document.text) * 19 // 20
                at = document.text.rfind("\n", at * 18 // 19, at) + 1 or at  # not far before
                part, cut = ("tail", slice(at, None)) if held_out else ("head", slice(at))
                yield Document(name=f"{name}:{part}", text=document.text[cut])

    @cached_property
    def _two_longest(self) -> list[str | None]:
        """The names of the two longest documents that are not empty, None where there is none."""
        documents = self._documents(self.split_paths[0])
        sizes = [(len(d.text.encode(errors="surrogatepass")), d.name) for d in documents if d.text]
        return [*(name for _, name in sorted(sizes)[:-3:-1]), None, None][:2]

    def _documents(self, files: Sequence[Path]) -> Iterator[Document]:
        """Yields the documents of the files, named by their path below the common folder.

        Raises UserError after the last one for all files that cannot be read.
        """
        folder = os.path.commonpath([path.parent for path in files]) if files else ""
        problems: list[str] = []
        for path in files:
            name, row = utf8(path.relative_to(folder).as_posix()), 0
            is_text = _kind(path) in TEXT
            try:
                with open_regular(path) as file:
                    stream = _decompressed(file)
                    if _kind(path) not in COLUMNS and _is_wide(stream.peek(32)[:32]):
                        raise ValueError(NO_MARK)
                    if is_text:
                        yield Document(name=name, text=stream.read().decode("utf-8-sig"))
                        continue
                    texts = _texts(stream, _kind(path), self.text_column)
                    for row, text in enumerate(texts, start=1):
                        if text is not None:
                            yield Document(name=f"{name}:{row}", text=text)
            except (OSError, ValueError, RecursionError, csv.Error) as error:
                at = f" row {row + 1}" if _kind(path) == ".csv" else f":{row + 1}"
                where = path if is_text or isinstance(error, OSError) else f"{path}{at}"
                problems.append(f"{where} {_reason(error, _kind(path))}")
        if problems:
            more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
            raise UserError(
                f"corpus.path: {len(problems)} of {len(files)} files cannot be read: "
                f"{'; '.join(problems[:3])}{more}"
            )


def _refuse_other_splits(folder: str) -> None:
    """Raises UserError for a folder with documents beside those of its train: they may be a test's.

    Files that lie in the folder itself are not refused.
    """
    top = os.path.abspath(folder)
    parts = (file.relative_to(top).parts for file in expand(folder))
    names = sorted({first for first, *below in parts if below} - {"train"})
    if names:
        held = next((n for n in names if n.lower().startswith(("val", "dev"))), names[0])
        raise UserError(
            f"corpus.path: {folder} has train and {shortened(', '.join(names))}, but no validation"
            f"; rename {held} to validation, or give corpus.path={folder}/train "
            f"corpus.validation_path={folder}/{held}"
        )


def _decompressed(file: io.BufferedReader) -> io.BufferedReader:
    """Returns the content of a file. Raises ValueError where its first bytes are of no text."""
    first = file.peek(32)
    for begin, remedy in NO_TEXT.items():
        if first.startswith(begin):
            raise ValueError(remedy)
    for begin, compression in COMPRESSED.items():
        if first.startswith(begin):
            import pyarrow as pa

            stream: Any = pa.input_stream(file, compression=compression)
            return io.BufferedReader(stream)
    return file


def _is_wide(first: bytes) -> bool:
    """True if every other byte is 0, as of Latin letters in UTF-16."""
    return len(first) > 3 and not (any(first[::2]) and any(first[1::2]))


def _texts(stream: io.BufferedReader, kind: str, column: str) -> Iterator[str | None]:
    """Yields the text of each row of a file, None for a blank line."""
    match kind:
        case ".parquet" | ".arrow":
            kinds, batches = _batches(stream, kind, column)
            if column not in kinds:
                raise ValueError(no_text(column, kinds))
            for value in (v.as_py() for batch in batches for v in batch[column]):
                if not isinstance(value, str | None):
                    raise ValueError(no_text(column, kinds))
                yield value or ""
        case ".csv":
            csv.field_size_limit(2**31 - 1)
            rows = csv.DictReader((line.decode("utf-8-sig") for line in stream), strict=True)
            header = rows.fieldnames or [column]  # of an empty file
            if column not in header and len(header) == 1 and {*";\t"} & {*header[0]}:
                raise ValueError(
                    "has no comma in its header; separate fields by commas, not ; or tabs"
                )
            if column not in header:
                why = no_text(column, dict.fromkeys(header, "str"))
                raise ValueError(f"{why}; is its first line a header?")
            yield from (text_of(row, column) for row in rows)
        case ".json":
            yield from (text_of(row, column) for row in _json_rows(stream))
        case _:
            for line in stream:
                content = line.decode("utf-8-sig")
                yield text_of(json.loads(content), column) if content.strip() else None


def _json_rows(stream: io.BufferedReader) -> Iterator[Any]:
    """Yields the rows of a list or object over any number of lines, and of a row per line."""
    first = stream.readline()
    try:
        rows = json.loads(first)
    except json.JSONDecodeError:
        rows = json.loads(first + stream.read())
    yield from rows if isinstance(rows, list) else [rows]
    yield from (json.loads(line) for line in stream if line.strip())


def _size(path: Path) -> int:
    """Returns the bytes of a file, none of a link to nothing."""
    return path.stat().st_size if path.exists() else 0


def _batches(
    stream: io.BufferedReader, kind: str, column: str
) -> tuple[dict[str, str], Iterator[Any]]:
    """Returns the types of the columns by name, and the batches of a file of parquet or Arrow."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if kind == ".parquet":
        table: Any = pq.ParquetFile(stream)
        return _kinds(table.schema_arrow), table.iter_batches(64, columns=[column])
    if stream.peek(6).startswith(b"ARROW1"):  # a file of Arrow, not a stream as of save_to_disk
        reader: Any = pa.ipc.open_file(stream)
        batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
        return _kinds(reader.schema), batches
    reader = pa.ipc.open_stream(stream)
    return _kinds(reader.schema), iter(reader)


def _kinds(schema: Any) -> dict[str, str]:
    names = {"string": "str", "large_string": "str"}
    return {field.name: names.get(str(field.type), str(field.type)) for field in schema}


def _kind(path: Path) -> str:
    """Returns the suffix of a file in lower case, that before .gz and .zst."""
    name = Path(path.name.lower())
    return Path(name.stem).suffix if name.suffix in (".gz", ".zst") else name.suffix


def _reason(error: Exception, kind: str) -> str:
    """Returns what is wrong with a file or row, and a remedy."""
    match error:
        case UnicodeDecodeError() if kind in COLUMNS:
            return "is not UTF-8; leave this row out, or write it again as UTF-8"
        case UnicodeDecodeError():
            return (
                f"is not UTF-8 at byte {error.start}; convert it, for instance with "
                "iconv -f latin1 -t utf-8 OLD > NEW, or keep it out of the folder"
            )
        case json.JSONDecodeError() | RecursionError():
            return f"is not JSON: {error}"
        case OSError(strerror=str(reason)):
            return f"cannot be read: {reason}"
        case ValueError() if type(error) is ValueError:  # with its remedy
            return str(error)
        case _:
            reason = " ".join(str(error).split())[:300]
            return f"is damaged ({reason}); restore it, or keep it out of the folder"


def expand(given: str | Sequence[str], key: str = "corpus.path") -> list[Path]:
    """Returns the files that a path, glob or list of them names, sorted, each once."""
    files: set[Path] = set()
    for path in map(os.path.expanduser, [given] if isinstance(given, str) else given):
        names = [path] if os.path.lexists(path) else glob.glob(path, recursive=True)
        if not names:
            folder, name = os.path.split(os.path.abspath(path))
            near = os.listdir(folder) if os.path.isdir(folder) else []
            hint = suggestion(name, near, otherwise=f"nothing in {folder} has a similar name")
            raise UserError(f"{key}: {path} does not exist; {hint}")
        there = [f for name in names for f in (walk(name, key) if os.path.isdir(name) else [name])]
        paths = [Path(os.path.abspath(f)) for f in there]
        readable = [f for f in paths if _kind(f) in (*TEXT, *ROWS) and f.name not in STATE]
        if not readable:
            raise UserError(f"{key}: no documents in {path}; expected files of {KINDS}")
        files.update(readable)
    if not files:
        raise UserError(f"{key}: an empty list names no document; give a folder or a file")
    return sorted(files)


def walk(folder: str | Path, key: str = "corpus.path") -> list[Path]:
    """Returns all files under a folder but hidden ones, sorted."""

    def refuse(error: OSError) -> None:
        raise UserError(
            f"{key}: cannot read {error.filename}: {error.strerror}; check permissions"
        ) from error

    files: list[Path] = []
    for root, folders, names in os.walk(os.path.abspath(folder), onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(root, name) for name in names if not name.startswith(".")]
    return sorted(files)


def states(paths: Sequence[Path]) -> str:
    """Returns the hash of what changes when files do: paths, sizes, times of change."""
    stats = [(path, path.stat() if path.exists() else path.lstat()) for path in paths]
    lines = [f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}" for path, stat in stats]
    return hashlib.sha256("\0".join(lines).encode(errors="surrogateescape")).hexdigest()
