"""Rows on disk: JSONL files that survive a kill and a full disk, and files replaced in one step.

Every JSON object carries a checksum, a last key "crc32": the CRC-32, as eight hexadecimal digits,
of the text before it, so that no flipped bit is read as a number. Text without it is older, but
not in a run whose env.json has a format: all its rows have a checksum and name the run.
"""

import contextlib
import json
import os
import re
import time
import zlib
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from lengthgen.errors import UserError
from lengthgen.reading import parse_row, read_bytes

Row = Mapping[str, Any]
ABANDONED = 3600.0  # seconds after which no process still writes its file aside
_VERSIONED = b'{\n "format": '  # so begins an object over several lines that has a checksum
_CHECKSUM = re.compile(rb',?\s*"crc32": "([0-9a-f]{8})"\s*\}\Z')
_CHECKSUM_BYTES = 64  # at most, with what surrounds it: a search of whole rows takes far longer
_END = b', "crc32": "%08x"}'  # of a row
_END_BYTES = len(_END % 0)


def append_rows(path: Path, rows: Iterable[Row]) -> None:
    """Appends rows as lines of JSON, all or none, and waits until they are on disk.

    The torn tail that a killed writer left is cut first. Raises UserError where the disk is full
    or the file cannot be written; the good lines before are untouched then.
    """
    lines = memoryview(_lines(rows))
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if not size:
                sync(path.parent)
            end = _end_of_rows(cast(BinaryIO, file))
            if end < size:
                file.truncate(end)
            file.seek(end)
            try:
                while lines:
                    lines = lines[file.write(lines) :]
                os.fsync(file.fileno())
            except OSError:
                with contextlib.suppress(OSError):  # the first error is the one to report
                    file.truncate(end)
                raise


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a JSONL file; none where there is no file.

    Text after the last newline is what a killed writer left and is dropped. Raises UserError with
    file and line of any other line that is no JSON object, or not what its checksum is of.
    """
    return _rows(path, sealed=is_sealed(path.parent))


def _rows(path: Path, *, sealed: bool) -> list[dict[str, Any]]:
    try:
        content = read_bytes(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); fix its permissions") from None
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            rows.append(parse_row(strip_checksum(line, sealed=sealed)))
        except ValueError:
            raise UserError(
                f"{path}:{number}: damaged row {line[:40]!r}; delete this line or restore the file"
            ) from None
    return rows


def rows_of(run_dir: Path, name: str, *, run: str) -> list[dict[str, Any]]:
    """Returns the rows of a JSONL file of the run with this id, read as read_rows does.

    Raises UserError for a row of another run. Older rows have no id, or the directory's name.
    """
    path, sealed = run_dir / name, is_sealed(run_dir)
    rows = _rows(path, sealed=sealed)
    known = (run,) if sealed else (run, run_dir.resolve().name, None)
    for number, row in enumerate(rows, start=1):
        if row.get("run") not in known:
            raise UserError(
                f"{path}:{number}: a row of run {row.get('run')}, but config.yaml here is of run "
                f"{run}; restore the file, or move it away"
            )
    return rows


def is_sealed(run_dir: Path) -> bool:
    """True if all rows of a run have a checksum and its id: env.json has a format, or is damaged.

    It is written when a run begins; those that older versions began have no format in it.
    """
    try:
        return "format" in parse_row(strip_checksum(read_bytes(run_dir / "env.json")))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, TypeError):
        return True


def keep_rows(path: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
    """Drops the rows of a JSONL file that `keep` refuses, whole or not at all."""
    rows = read_rows(path)
    kept = [row for row in rows if keep(row)]
    if len(kept) < len(rows):
        write_rows(path, kept)


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Writes a JSONL file, in place of another if there is one."""
    replace_file(path, _lines(rows))


def replace_file(path: Path, content: bytes) -> None:
    """Puts a file in place of another in one step: written aside, flushed to disk, renamed.

    Makes its folder if that is missing. The last of several processes that write at once wins.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        if not path.parent.exists():
            path.parent.mkdir(exist_ok=True)
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
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Removes what processes left that died in replace_file, of whichever host: it is old."""
    for path in folder.glob(".*.*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            if path.suffixes[-2][1:].isdecimal() and time.time() - path.stat().st_mtime > ABANDONED:
                path.unlink()


@contextlib.contextmanager
def writing(path: Path) -> Generator[None]:
    """Raises UserError in place of the OSError of a file that cannot be written."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror}); "
            "free disk space or fix its permissions, then run the same command again"
        ) from error


def _lines(rows: Iterable[Row]) -> bytes:
    return b"".join(add_checksum(json.dumps(row).encode()) + b"\n" for row in rows)


def _end_of_rows(file: BinaryIO) -> int:
    """Returns the position after the last newline, read backwards since the file may be long."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - 65536)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def add_checksum(text: bytes) -> bytes:
    """Returns the text of a JSON object with its checksum, on a line of its own if it has lines."""
    assert text[:1] + text[-1:] == b"{}", text[-20:]
    body = text[:-1].rstrip()
    comma = b"" if body == b"{" else b","
    blank, end = (b"\n ", b"\n}") if b"\n" in body else (b" ", b"}")
    return b'%s%s%s"crc32": "%08x"%s' % (body, comma, blank, zlib.crc32(body), end)


def strip_checksum(content: bytes, *, sealed: bool = False) -> bytes:
    """Returns the text without its checksum.

    Raises ValueError if it differs from that, or has none although it must: it is `sealed`, or an
    object over several lines that begins with a format.
    """
    body = content[:-_END_BYTES]
    if content[-_END_BYTES:] == _END % zlib.crc32(body):  # of a row, in a third of the time
        return body + b"}"
    checksum = _CHECKSUM.search(content, max(0, len(content) - _CHECKSUM_BYTES))
    if checksum is None:
        if sealed or content.startswith(_VERSIONED):
            raise ValueError("the text lacks its checksum")
        return content
    body = content[: checksum.start()]
    if int(checksum[1], 16) != zlib.crc32(body):
        raise ValueError("the text differs from its checksum")
    return body + b"}"


def refuse_links(run_dir: Path) -> None:
    """Raises UserError if a link in a run directory leads out of it.

    A file that is appended to, or a folder that is cleaned, would be one of the user's own. Not in
    wandb/, where W&B keeps links to its logs.
    """
    inside = run_dir.resolve()
    for folder, folders, files in os.walk(inside):
        for name in (*folders, *files):
            path = Path(folder, name)
            if path.is_symlink() and not _leads_into(inside, path):
                raise UserError(
                    f"{path} is a link that leads out of the run's directory, to "
                    f"{os.readlink(path)}; replace it by what it links to, or remove it"
                )
        folders[:] = [name for name in folders if name != "wandb"]


def _leads_into(folder: Path, link: Path) -> bool:
    try:
        return link.resolve().is_relative_to(folder)
    except (OSError, RuntimeError):  # links in a circle
        return False
