"""Files that a configuration names by path, glob or list: found, walked, identified."""

import glob
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lengthgen.errors import UserError, suggestion
from lengthgen.files import open_regular

SUFFIXES = (".txt", ".md", ".py", ".jsonl", ".parquet")


def expand(path: str | Sequence[str], key: str) -> list[Path]:
    """Returns the files that a path, glob or list of them names, sorted, each once."""
    found: dict[Path, None] = {}
    for one in [path] if isinstance(path, str) else path:
        found |= dict.fromkeys(_expand_one(Path(one).expanduser(), key))
    if not found:
        raise UserError(f"{key}: an empty list names no document; give a folder or a file")
    return sorted(found)


def _expand_one(path: Path, key: str) -> list[Path]:
    kinds = " ".join(SUFFIXES)
    if os.path.isdir(path):
        files = [file for file in walk(path, key) if file.suffix.lower() in SUFFIXES]
        if not files:
            raise UserError(f"{key}: no documents in {path}; expected files of {kinds}")
        return files
    if os.path.lexists(path):
        files = [path]
    elif glob.has_magic(str(path)):
        matches = glob.glob(str(path), recursive=True)
        files = [Path(match) for match in matches if not os.path.isdir(match)]
        if not files:
            raise UserError(f"{key}: {path} matches no file; quote the glob and check the folder")
    else:
        raise UserError(f"{key}: {path} does not exist; {_near(path)}")
    for file in files:
        if file.suffix.lower() not in SUFFIXES:
            raise UserError(f"{key}: {file} has an unsupported suffix; supported: {kinds}")
    return files


def _near(path: Path) -> str:
    """Suggests what a mistyped path may have meant, from the nearest folder that exists."""
    folder = path.absolute().parent
    if not os.path.isdir(folder):
        return f"nor does the folder {folder}"
    names = [name for name in os.listdir(folder) if not name.startswith(".")]
    if not names:
        return f"the folder {folder} is empty"
    return suggestion(path.name, names, otherwise=f"{folder} holds nothing of a similar name")


def walk(folder: Path, key: str) -> list[Path]:
    """Returns all files under a folder but hidden ones, sorted."""
    found: list[Path] = []
    with readable(folder, key):
        for root, folders, names in os.walk(folder, onerror=_raise):
            folders[:] = [name for name in folders if not name.startswith(".")]
            found += [Path(root, name) for name in names if not name.startswith(".")]
    return sorted(found)


def _raise(error: OSError) -> None:
    raise error


@contextmanager
def readable(path: Path, key: str) -> Generator[None]:
    """Turns what stops the reading of a path into one line that names the key."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        reason = error.strerror or str(error)
        raise UserError(f"{key}: cannot read {where}: {reason}; check permissions") from error


def state(path: Path, key: str) -> tuple[str, int, int]:
    """Returns what changes when the file does: absolute path, size and time of change."""
    with readable(path, key), open_regular(path) as file:
        status = os.fstat(file.fileno())
    return str(path.absolute()), status.st_size, status.st_mtime_ns
