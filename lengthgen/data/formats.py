"""What files hold: a text, or rows of JSON, CSV, parquet or Arrow with a column of text.

The loaders of `datasets` and pandas are not used: they lose the line numbers that documents are
named by, give None for a row without the column, take one of two columns of one name in silence
(pandas renames the other), and import in seconds.
"""

import csv
import gzip
import io
import json
import lzma
import re
import shlex
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from lengthgen.config.overrides import overrides_of
from lengthgen.errors import shortened
from lengthgen.files import LFS, POINTER, open_regular

PER_FILE = (".txt", ".md", ".py")  # a document per file
PER_ROW = (".jsonl", ".ndjson", ".json", ".csv", ".parquet", ".arrow")  # a document per row
COLUMNAR = (".parquet", ".arrow")
PACKED = (  # behind the names of others
    *(".gz", ".gzip", ".zst", ".zstd"),
    *(".xz", ".lzma", ".bz2", ".lz4"),
)
READABLE = f"{' '.join((*PER_FILE, *PER_ROW))}, also with one of {' '.join(PACKED)}"
UTF16 = "is UTF-16; convert it: iconv -f utf-16 -t utf-8 OLD > NEW"
NO_MARK = "is UTF-16 without its mark; convert it: iconv -f utf-16le -t utf-8 OLD > NEW"
BINARY = "is binary whatever its name says; keep it out of the folder"
ARCHIVE = "is an archive of {}; unpack it, or keep it out of the folder"
NO_TEXT = {  # by first bytes
    **{b"\xff\xfe\0\0": UTF16.replace("16", "32"), b"\xff\xfe": UTF16, b"\xfe\xff": UTF16},
    **{b"%PDF": BINARY, b"\x89PNG": BINARY, b"PK\3\4": ARCHIVE.format("zip")},
    **{b"Rar!": ARCHIVE.format("RAR"), b"7z\xbc\xaf": ARCHIVE.format("7-Zip")},
    **{b"\x1f\x9d": ARCHIVE.format("compress"), b"\x02!L\x18": ARCHIVE.format("old lz4")},
    POINTER: LFS,
}
WINDOW = (
    "is zstd with a window above 128 MB, which is not read; write it again: "
    "zstd -dc --long=31 OLD | zstd -o NEW"
)
DAMAGE = (OSError, ValueError, RecursionError, EOFError, csv.Error, zlib.error, lzma.LZMAError)


def _arrow(compression: str) -> Callable[[Any], Any]:
    def opened(file: Any) -> Any:
        import pyarrow as pa

        return pa.input_stream(file, compression=compression)

    return opened


def _xz(file: Any) -> Any:
    opened: Any = lzma.LZMAFile(file)  # noqa: SIM115
    # It passes over a second stream that is damaged where it begins, and takes this for its end.
    opened._buffer.raw._trailing_error = ()
    return opened


# What decompresses a file, by its first bytes; pzstd begins with a frame that is skipped.
COMPRESSED: dict[bytes, Callable[[Any], Any]] = {
    rb"\x1f\x8b\x08": gzip.open,
    rb"\xfd7zXZ\0|\x5d\0\0": _xz,
    rb"BZh[1-9](1AY&SY|\x17rE8P\x90)": _arrow("bz2"),
    rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18": _arrow("zstd"),
    rb"\x04\x22\x4d\x18": _arrow("lz4"),
}


def texts(path: Path, column: str, group: str | None) -> Iterator[tuple[str, str, str]]:
    """Yields the documents of a file: text, what follows the file's name in theirs, and group.

    Raises ValueError with the place of what cannot be read and a remedy.
    """
    row, kind = 0, suffix_of(path)
    try:
        with open_regular(path) as file:
            stream = _decompressed(file)
            if kind in COLUMNAR and stream is not file:  # read from its end
                stream = io.BufferedReader(cast(Any, io.BytesIO(stream.read())))
            if not stream.peek(1):
                yield "", "", ""
                return
            if kind not in COLUMNAR and _is_wide(stream.peek(32)[:32]):
                raise ValueError(NO_MARK)
            if kind in PER_FILE:
                yield stream.read().decode("utf-8-sig"), "", ""
                return
            for row, fields in enumerate(_rows(stream, kind, column, group), start=1):
                if fields is not None:
                    yield fields[0], f":{row}", fields[1]
    except DAMAGE as error:
        at = f" row {row + 1}" if kind == ".csv" else f":{row + 1}"
        where = path if kind in PER_FILE or isinstance(error, OSError) else f"{path}{at}"
        raise ValueError(f"{where} {_reason(error, kind)}") from error


def _decompressed(file: io.BufferedReader) -> io.BufferedReader:
    """Returns the content of a file. Raises ValueError where its first bytes are of no text."""
    stream = file
    for _ in range(3):  # gz in gz, as of a server that compresses what is compressed
        for begin, opened in COMPRESSED.items():
            if re.match(begin, stream.peek(16)):
                stream = io.BufferedReader(opened(stream))
                break
    first = stream.peek(512)
    for begin, remedy in NO_TEXT.items():
        if first.startswith(begin):
            raise ValueError(remedy)
    if first[257:262] == b"ustar":
        raise ValueError(ARCHIVE.format("tar"))
    return stream


def _is_wide(first: bytes) -> bool:
    """True if every other byte is 0, as of Latin letters in UTF-16."""
    return len(first) > 3 and not (any(first[::2]) and any(first[1::2]))


def _rows(
    stream: io.BufferedReader, kind: str, column: str, group: str | None
) -> Iterator[tuple[str, str] | None]:
    """Yields text and group of each row of a file, None for a blank line."""

    def read(row: Any) -> tuple[str, str]:
        if kind != ".csv" and isinstance(row, dict):
            _refuse_twice(cast("dict[Any, Any]", row).pop(None, ()), column, group)
        return column_text(row, column), group_of(row, group)

    match kind:
        case ".parquet" | ".arrow":
            columns = [column] if group is None else [column, group]
            kinds, batches = _batches(stream, kind, columns)
            if column not in kinds:
                raise ValueError(no_text(column, kinds))
            group_of(kinds, group)
            for values in (v for b in batches for v in zip(*map(b.column, columns), strict=True)):
                row = {name: value.as_py() for name, value in zip(columns, values, strict=True)}
                if not isinstance(row[column], str | None):
                    raise ValueError(no_text(column, kinds))
                yield read(row)
        case ".csv":
            csv.field_size_limit(2**31 - 1)
            ends = re.compile(r"(?<=\r)(?!\n)")  # of lines on old Macintoshes too
            lines = (part for line in stream for part in ends.split(line.decode("utf-8-sig")))
            given = next(csv.reader(lines, strict=True), [column])
            header = [name.strip() for name in given]
            is_spaced = any(name != name.lstrip() for name in given[1:])  # a, "b, c"
            rows = csv.DictReader(lines, header, strict=True, skipinitialspace=is_spaced)
            _refuse_twice(header, column, group)
            if column not in header and len(header) == 1 and {*";\t"} & {*header[0]}:
                raise ValueError(
                    "has no comma in its header; separate fields by commas, not ; or tabs"
                )
            if column not in header:
                why = no_text(column, dict.fromkeys(header, "str"))
                raise ValueError(f"{why}; is its first line a header?")
            yield from map(read, rows)
        case ".json":
            yield from map(read, _json_rows(stream))
        case _:
            for line in stream:
                content = line.decode("utf-8-sig")
                yield read(_json(content)) if content.strip() else None


def _json(text: str | bytes) -> Any:
    """Returns a value of JSON: objects that have a name twice with all their names, under None."""

    def pairs(fields: list[tuple[str, Any]]) -> dict[Any, Any]:
        row = dict(fields)
        return row if len(row) == len(fields) else {**row, None: [name for name, _ in fields]}

    def whole(digits: str) -> int | Decimal:  # Python reads no int of 5,000
        return int(digits) if len(digits) < 4_000 else Decimal(digits)

    return json.loads(text, object_pairs_hook=pairs, parse_int=whole)


def _refuse_twice(names: Sequence[str], *columns: str | None) -> None:
    for column in columns:
        if column is not None and names.count(column) > 1:
            raise ValueError(f"has two columns called {column!r}; remove or rename one")


def _json_rows(stream: io.BufferedReader) -> Iterator[Any]:
    """Yields the rows of a list or object over any number of lines, and of a row per line."""
    first = next((line for line in stream if line.strip()), b"[]")
    try:
        rows = _json(first)
    except json.JSONDecodeError:
        rows = _json(first + stream.read())
    yield from rows if isinstance(rows, list) else [rows]
    yield from (_json(line) for line in stream if line.strip())


def _batches(
    stream: io.BufferedReader, kind: str, columns: list[str]
) -> tuple[dict[str, str], Iterator[Any]]:
    """Returns the types of the columns by name, and the batches of a file of parquet or Arrow."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if kind == ".parquet":
        table: Any = pq.ParquetFile(stream, page_checksum_verification=True)
        return _kinds(table.schema_arrow, *columns), table.iter_batches(64, columns=columns)
    if stream.peek(6).startswith(b"ARROW1"):  # a file of Arrow, not a stream as of save_to_disk
        reader: Any = pa.ipc.open_file(stream)
        batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
        return _kinds(reader.schema, *columns), batches
    reader = pa.ipc.open_stream(stream)
    return _kinds(reader.schema, *columns), iter(reader)


def _kinds(schema: Any, *columns: str) -> dict[str, str]:
    _refuse_twice(schema.names, *columns)
    names = {"string": "str", "large_string": "str"}
    return {field.name: names.get(str(field.type), str(field.type)) for field in schema}


def parts_of(metadata: Path) -> set[str]:
    """Returns the files that _metadata of a folder of parquet lists."""
    import pyarrow.parquet as pq

    read: Any = pq.read_metadata(metadata)
    return {read.row_group(i).column(0).file_path for i in range(read.num_row_groups)}


def suffix_of(path: Path) -> str:
    """Returns the suffix of a file in lower case, that before those of PACKED."""
    name = Path(path.name.lower())
    while name.suffix in PACKED:
        name = Path(name.stem)
    return name.suffix


def _reason(error: Exception, kind: str) -> str:
    """Returns what is wrong with a file or row, and a remedy."""
    match error:
        case UnicodeDecodeError() if kind in COLUMNAR:
            return "is not UTF-8; leave this row out, or write it again as UTF-8"
        case UnicodeDecodeError() if b"\0" in error.object[:1000]:
            return BINARY
        case UnicodeDecodeError():
            return (
                f"is not UTF-8 at byte {error.start}; convert it, for instance with "
                "iconv -f latin1 -t utf-8 OLD > NEW, or keep it out of the folder"
            )
        case json.JSONDecodeError() | RecursionError():
            return f"is not JSON: {error}"
        case OSError() if "too much memory" in str(error):
            return WINDOW
        case OSError(strerror=str(reason)):
            return f"cannot be read: {reason}"
        case ValueError() if type(error) is ValueError:  # with its remedy
            return str(error)
        case _:
            reason = " ".join(str(error).split())[:300]
            return f"is damaged ({reason}); restore it, or keep it out of the folder"


def column_text(row: Any, column: str) -> str:
    """Returns the text of a row, empty for null. Raises ValueError with a remedy."""
    if not isinstance(row, dict):
        raise ValueError("is not a JSON object with a text column")
    if any(row.pop(None, ())):  # as csv.DictReader calls them
        raise ValueError("has more fields than the header; quote commas")
    fields = cast("dict[str, Any]", row)
    text = fields.get(column, 0)
    if isinstance(text, str | None):
        return text or ""
    raise ValueError(
        no_text(column, {name: type(value).__name__ for name, value in fields.items()})
    )


def group_of(row: Mapping[str, Any], column: str | None) -> str:
    """Returns what a row is part of, empty if it is not said. Raises ValueError with a remedy."""
    if column is not None and column not in row:
        listed = shortened(_names(row))
        raise ValueError(f"has no column {column!r}; set corpus.group_column to one of: {listed}")
    value = None if column is None else row[column]
    return "" if value is None else str(value)


def _names(columns: Iterable[str]) -> str:
    """Lists columns as a shell takes their names in an override."""
    words = [overrides_of({"": name})[0].removeprefix("=") for name in columns]
    return ", ".join(map(shlex.quote, words))


def no_text(column: str, kinds: Mapping[str, str]) -> str:
    """Says that a column has no text, and what else there is, by the types of all columns."""
    held = f", which holds {shortened(kinds[column])}" if column in kinds else ""
    others = {name: kind for name, kind in kinds.items() if name != column}
    text = [name for name, kind in others.items() if kind == "str"]
    remedy = f"set corpus.text_column to one of: {shortened(_names(text))}"
    if not text:
        listed = shortened(", ".join(f"{name} ({kind})" for name, kind in others.items()))
        remedy = f"nor in {listed}; give each row a text" if others else "it has no other"
    return f"has no text in column {column!r}{held}; {remedy}"
