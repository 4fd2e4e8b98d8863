"""Files on disk: regular files to read, JSONL rows to append, and files replaced in one step.

Every row ends with a key "crc32", the CRC-32 of the text before it as eight hexadecimal digits, so
that a flipped bit or an edit is found. A row without it is read as it stands.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import zlib
from collections.abc import Generator, Iterable, Mapping
from glob import escape
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

from lengthgen.errors import UserError, first_line, out_of_memory

Row = Mapping[str, Any]
POINTER = b"version https://git-lfs"
LFS = "is a pointer of Git LFS; fetch the file with git lfs pull"


class Unreadable(UserError):
    """A file or folder that is there, and cannot be read, perhaps for a moment."""

    def __init__(self, path: Path, error: OSError) -> None:
        remedy = "fix its permissions or its disk, then rerun"
        super().__init__(f"{path}: cannot be read ({error.strerror}); {remedy}")


def at_once(name: str, flags: int) -> int:
    """Opens a file without waiting for the other end of a pipe: the `opener` of open()."""
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0), 0o666)


def open_regular(path: Path) -> BufferedReader:
    """Opens a regular file for reading, or a link to one; a pipe or a device might never end."""
    file = open(path, "rb", opener=at_once)  # noqa: SIM115
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def not_fetched(path: Path) -> str | None:
    """Says that a file is a pointer of Git LFS; None if it is not."""
    with contextlib.suppress(OSError), open_regular(path) as file:
        return LFS if file.read(len(POINTER)) == POINTER else None
    return None


def read_bytes(path: Path) -> bytes:
    """Returns the content of a regular file."""
    with open_regular(path) as file:
        return file.read()


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a regular file, in hexadecimal digits."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_of(content: object, n_digits: int = 64) -> str:
    """Returns the first hexadecimal digits of the SHA-256 of bytes, text or plain values."""
    if not isinstance(content, bytes):
        text = content if isinstance(content, str) else json.dumps(content, sort_keys=True)
        content = text.encode()
    return hashlib.sha256(content).hexdigest()[:n_digits]


@contextlib.contextmanager
def reading(folder: Path) -> Generator[None]:
    """Raises UserError, which names the folder, in place of any error that its files cause."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        raise Unreadable(Path(error.filename or folder), error) from None
    except Exception as error:
        if out_of_memory(error):
            raise
        why = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"{folder}: its files are damaged ({why}); restore them") from error


def names_in(folder: Path) -> list[str]:
    """Returns the sorted names in a folder, none if it is not there.

    Raises UserError for one that cannot be read, which Path.glob takes for empty.
    """
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise Unreadable(folder, error) from None


def is_there(path: Path) -> bool:
    """True unless the path does not exist: one that cannot be looked at is there."""
    try:
        return bool(path.stat())
    except OSError as error:
        return not isinstance(error, FileNotFoundError | NotADirectoryError)


def utf8(name: str) -> str:
    """Returns the name of a file, or a word of the command; a byte that is not UTF-8 as \\xff.

    Python has half a surrogate pair there, which no file that is read again may hold.
    """
    return os.fsencode(name).decode(errors="backslashreplace")


def encode_row(row: Row) -> bytes:
    """Returns a row as a line of JSON that ends with its checksum."""
    body = json.dumps(row).encode()[:-1]
    comma = b", " if row else b""
    return b'%s%s"crc32": "%08x"}\n' % (body, comma, zlib.crc32(body))


def parse_row(line: bytes) -> dict[str, Any]:
    """Returns the row of a line. Raises ValueError for one that is damaged or no JSON object."""
    from pydantic_core import from_json  # takes half the time of json

    body, mark, end = line.rpartition(b'"crc32": "')
    if mark:
        body = body.removesuffix(b", ")
        if end != b'%08x"}' % zlib.crc32(body):
            raise ValueError("the text differs from its checksum")
        line = body + b"}"
    row = from_json(line)
    if not isinstance(row, dict):
        raise ValueError("no JSON object")
    return cast("dict[str, Any]", row)


def read_rows(path: Path, *, run: str | None = None) -> list[dict[str, Any]]:
    """Returns the rows of a JSONL file; none where there is no file.

    Text after the last newline is what a killed writer left and is dropped. Raises UserError with
    file and line of any other line that is damaged, and of a row that is not of the given run.
    """
    try:
        content = read_bytes(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Unreadable(path, error) from None
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            row = parse_row(line)
        except ValueError:
            raise UserError(
                f"{path}:{number}: damaged row {line[:40]!r}; delete this line or restore the file"
            ) from None
        if run is not None and row.get("run") != run:
            raise UserError(
                f"{path}:{number}: a row of run {row.get('run')}, but config.yaml here is of run "
                f"{run}; restore the file, or move it away"
            )
        rows.append(row)
    return rows


def append_rows(path: Path, rows: Iterable[Row]) -> None:
    """Appends rows as lines of JSON, all or none, and waits until they are on disk.

    The torn tail that a killed writer left is cut first. Raises UserError where the disk is full
    or the file cannot be written; the good lines before are untouched then.
    """
    lines = memoryview(b"".join(map(encode_row, rows)))
    with writing(path), path.open("a+b", buffering=0) as file:
        file.seek(0)
        content = file.read()
        if not content:
            sync(path.parent)
        end = content.rfind(b"\n") + 1
        try:
            file.truncate(end)
            while lines:
                lines = lines[file.write(lines) :]
            os.fsync(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):  # the first error is the one to report
                file.truncate(end)
            raise


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Writes a JSONL file, in place of another if there is one."""
    replace_file(path, b"".join(map(encode_row, rows)))


def replace_file(path: Path, content: bytes) -> None:
    """Puts a file in place of another in one step: written aside, flushed to disk, renamed.

    Makes its folders if they are missing. The last of several processes that write at once wins.
    """
    aside = _aside(path, ".tmp")
    with writing(path):
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            sync(path.parent.parent)
        try:
            with aside.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
            sync(path.parent)
        except OSError:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)
            raise


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on disk."""
    if os.name == "nt" and path.is_dir():  # which it does not open
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def new_folder(path: Path, *, aside: Path | None = None) -> Generator[Path]:
    """Yields a folder aside, which becomes the new one on disk in one step, or goes at an error.

    `aside`: its place, where no other process writes. Raises UserError for what cannot be written.
    """
    aside = aside or _aside(path)
    try:
        with writing(path):
            shutil.rmtree(aside, ignore_errors=True)  # of a killed process
            aside.mkdir(parents=True)
            yield aside
            for file in (*aside.rglob("*"), aside):
                sync(file)
            aside.rename(path)
            sync(path.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _aside(path: Path, end: str = "") -> Path:
    """Returns where this process writes a path aside; removes what killed ones left there."""
    for left in path.parent.glob(f".{escape(path.name)}.*{end}"):
        number = left.name.removeprefix(f".{path.name}.").removesuffix(end)
        if number.isdecimal() and _has_ended(int(number)):
            shutil.rmtree(left, ignore_errors=True)
            with contextlib.suppress(OSError):  # a file
                left.unlink(missing_ok=True)
    return path.with_name(f".{path.name}.{os.getpid()}{end}")


def _has_ended(pid: int) -> bool:
    """True if no process of this machine has the number, or if it is one's own."""
    if os.name == "nt":  # where os.kill would end it
        return pid == os.getpid()
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return pid == os.getpid()


@contextlib.contextmanager
def writing(path: Path) -> Generator[None]:
    """Raises UserError in place of the OSError of a file that cannot be written."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror}); "
            "free disk space or fix its permissions, then rerun"
        ) from error
