"""The token cache on disk: folders built once by one process, never half there.

A folder per corpus, CACHE_DIR/NAME-HASH, where HASH covers all that decides the tokens:
train.bin and validation.bin (token ids, little-endian uint16, or uint32 if the vocabulary needs
it), *.offsets.bin (int64, where documents begin), *.names.json, tokenizer.json, meta.json.
It is built next to its place, as .NAME-HASH.building under a lock, and renamed when complete.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import filelock

from lengthgen.data.sources import Say
from lengthgen.data.tokenizer import read_tokenizer
from lengthgen.errors import UserError
from lengthgen.files import sha256_of, sync

SPLITS = ("train", "validation")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOLCK)


def ensure(folder: Path, build: Callable[[Path], Mapping[str, Any]], *, say: Say) -> None:
    """Builds the folder unless it is there. One process builds, others wait for it.

    `build` writes all files but meta.json, and returns what is stated there about them.
    """
    if folder.is_dir():
        return
    with _one_line_errors(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder, say):
            if not folder.is_dir():  # another process may have built it meanwhile
                _build(folder, build)


def _build(folder: Path, build: Callable[[Path], Mapping[str, Any]]) -> None:
    aside = folder.with_name(f".{folder.name}.building")
    shutil.rmtree(aside, ignore_errors=True)  # what a killed process left
    try:
        aside.mkdir()
        meta = {**build(aside), "fingerprint": fingerprint(aside)}
        write(aside / "meta.json", json.dumps(meta, indent=1).encode())
        sync(aside)
        aside.rename(folder)
        sync(folder.parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def find(cache_dir: Path, wanted: str) -> Path | None:
    """Returns the folder whose tokens have this fingerprint, if there is one."""
    metas = sorted(cache_dir.glob("[!.]*/meta.json"))
    return next((path.parent for path in metas if wanted in path.read_text()), None)


def read_meta(folder: Path) -> dict[str, Any]:
    """Returns meta.json. Raises UserError where the tokens are not those of its fingerprint."""
    with _one_line_errors(folder.parent):
        try:
            meta = json.loads((folder / "meta.json").read_text())
            if fingerprint(folder) == meta["fingerprint"]:
                return meta
            reason = "the tokens differ from their fingerprint"
        except (FileNotFoundError, ValueError, KeyError, UserError) as error:
            reason = f"{type(error).__name__}: {error}"
    raise UserError(
        f"the token cache {folder} is damaged ({reason}); delete this folder: it is built again"
    )


def fingerprint(folder: Path) -> str:
    """Returns the sha256 of tokens and offsets of both splits and of the vocabulary."""
    digest = hashlib.sha256()
    for split in SPLITS:
        for name in (f"{split}.bin", f"{split}.offsets.bin", f"{split}.examples.json"):
            if name != f"{split}.examples.json" or (folder / name).exists():  # of tasks only
                digest.update(bytes.fromhex(sha256_of(folder / name)))
    vocab = read_tokenizer(folder / "tokenizer.json").get_vocab(with_added_tokens=True)
    digest.update(json.dumps(vocab, sort_keys=True).encode())
    return digest.hexdigest()


@contextmanager
def _lock(folder: Path, say: Say) -> Generator[None]:
    """Holds the lock of a folder, after a wait for a process that builds it."""
    lock = filelock.FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        say(f"waiting for another process that builds {folder}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _one_line_errors(cache_dir: Path) -> Generator[None]:
    """Turns a full disk, a folder that cannot be used or has no locks into one line."""
    try:
        yield
    except NotImplementedError as error:  # of filelock
        raise UserError(
            f"runtime.cache: {cache_dir} is on a file system without locks; "
            "set runtime.cache=FOLDER to a folder on a local disk"
        ) from error
    except OSError as error:
        if error.errno not in (*FULL, *REFUSED):
            raise
        what = "no room left while writing" if error.errno in FULL else "cannot use"
        raise UserError(
            f"runtime.cache: {what} {cache_dir} ({error.strerror}); make room, or set "
            "runtime.cache=FOLDER to another place"
        ) from error


def write(path: Path, content: bytes) -> None:
    """Writes a file and flushes it to disk."""
    with path.open("wb") as file:
        file.write(content)
        flush(file)


def flush(file: BinaryIO) -> None:
    """Flushes what was written to a file to disk."""
    file.flush()
    os.fsync(file.fileno())
