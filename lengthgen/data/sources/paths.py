"""Files that a configuration names by path, glob or list: found, walked, identified."""

import glob
import hashlib
import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path

from lengthgen.errors import UserError, suggestion
from lengthgen.files import open_regular

SUFFIXES = (".txt", ".md", ".py", ".jsonl", ".parquet")


def expand(path: str | Sequence[str], key: str) -> list[Path]:
    """Returns the files that a path, glob or list of them names, sorted, each once."""
    given = [path] if isinstance(path, str) else path
    files = {file for each in given for file in _expand(Path(each).expanduser(), key)}
    if not files:
        raise UserError(f"{key}: an empty list names no document; give a folder or a file")
    return sorted(files)


def _expand(path: Path, key: str) -> list[Path]:
    kinds = " ".join(SUFFIXES)
    if os.path.isdir(path):
        files = [file for file in walk(path, key) if file.suffix.lower() in SUFFIXES]
        if not files:
            raise UserError(f"{key}: no documents in {path}; expected files of {kinds}")
        return files
    files = (
        [path] if os.path.lexists(path) else [Path(p) for p in glob.glob(str(path), recursive=True)]
    )
    files = [file for file in files if not os.path.isdir(file)]
    if not files:
        if glob.has_magic(str(path)):
            raise UserError(f"{key}: {path} matches no file; quote the glob and check the folder")
        folder = path.absolute().parent
        near = os.listdir(folder) if os.path.isdir(folder) else []
        hint = suggestion(path.name, near, otherwise=f"nothing in {folder} has a similar name")
        raise UserError(f"{key}: {path} does not exist; {hint}")
    for file in files:
        if file.suffix.lower() not in SUFFIXES:
            raise UserError(f"{key}: {file} has an unsupported suffix; supported: {kinds}")
    return files


def walk(folder: Path, key: str) -> list[Path]:
    """Returns all files under a folder but hidden ones, sorted."""

    def refuse(error: OSError) -> None:
        raise error

    files: list[Path] = []
    with readable(folder, key):
        for root, folders, names in os.walk(folder, onerror=refuse):
            folders[:] = [name for name in folders if not name.startswith(".")]
            files += [Path(root, name) for name in names if not name.startswith(".")]
    return sorted(files)


@contextmanager
def readable(path: Path, key: str) -> Generator[None]:
    """Turns what stops the reading of a path into one line that names the key."""
    try:
        yield
    except OSError as error:
        where, reason = error.filename or path, error.strerror or str(error)
        raise UserError(f"{key}: cannot read {where}: {reason}; check permissions") from error


def states(paths: Iterable[Path], key: str) -> str:
    """Returns the hash of what changes when files do: absolute paths, sizes, times of change."""
    digest = hashlib.sha256()
    for path in paths:
        with readable(path, key), open_regular(path) as file:
            status = os.fstat(file.fileno())
        digest.update(
            f"{path.absolute()}\0{status.st_size}\0{status.st_mtime_ns}\0".encode(
                errors="surrogateescape"
            )
        )
    return digest.hexdigest()
