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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import filelock

from lengthgen.data.sources import Say
from lengthgen.data.tokenizer import read_tokenizer
from lengthgen.errors import UserError
from lengthgen.files import sha256_of, sync

VERIFY_BYTES = 1_000_000_000  # a larger cache is taken as it was built
SPLITS = ("train", "validation")

Build = Callable[[Path], Mapping[str, Any]]


def ensure(folder: Path, build: Build, *, say: Say) -> None:
    """Builds the folder unless it is there and undamaged.

    One process builds, others wait for it. A damaged folder is named, removed and built again.
    `build` writes all files but meta.json, and returns what is stated there about them.
    """
    with _one_line_errors(folder.parent):
        if folder.is_dir() and damage(folder) is None:
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder.parent)
        with _lock(folder, say):
            if folder.is_dir():  # another process may have built it meanwhile
                reason = damage(folder)
                if reason is None:
                    return
                say(f"removing the damaged token cache {folder} ({reason}); it is built again")
                shutil.rmtree(folder)
            _build(folder, build)


def _build(folder: Path, build: Build) -> None:
    aside = folder.with_name(f".{folder.name}.building")
    shutil.rmtree(aside, ignore_errors=True)
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


def find(cache_dir: Path, wanted: str, *, say: Say) -> Path | None:
    """Returns the undamaged folder whose tokens have this fingerprint, if there is one."""
    with _one_line_errors(cache_dir):
        for path in sorted(cache_dir.glob("[!.]*/meta.json")):
            if wanted in path.read_text():
                reason = damage(path.parent)
                if reason is None:
                    return path.parent
                say(f"the token cache {path.parent} is damaged ({reason}), and not used")
    return None


def damage(folder: Path) -> str | None:
    """Returns what is wrong with a cache folder, or None if its tokens are as they were built.

    Raises OSError for a file that is there and cannot be read: that is no damage.
    """
    try:
        meta = json.loads((folder / "meta.json").read_text())
        n_bytes = sum(meta[split]["tokens"] for split in SPLITS) * 2
        if n_bytes < VERIFY_BYTES and fingerprint(folder) != meta["fingerprint"]:
            return "the tokens differ from their fingerprint"
    except (FileNotFoundError, ValueError, KeyError, UserError) as error:
        return f"{type(error).__name__}: {error}"
    return None


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


def _remove_leftovers(cache_dir: Path) -> None:
    """Removes unfinished folders of dead processes: those whose lock is free."""
    for left in cache_dir.glob(".*.building"):
        lock = filelock.FileLock(left.with_suffix(".lock"))
        with suppress(filelock.Timeout), lock.acquire(blocking=False):
            shutil.rmtree(left)


@contextmanager
def _one_line_errors(cache_dir: Path) -> Generator[None]:
    """Turns a full disk, a folder that cannot be used or has no locks into one line."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    refused = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOLCK)
    try:
        yield
    except NotImplementedError as error:  # of filelock
        raise UserError(
            f"runtime.cache: {cache_dir} is on a file system without locks; "
            "set runtime.cache=FOLDER to a folder on a local disk"
        ) from error
    except OSError as error:
        if error.errno not in (*full, *refused):
            raise
        what = "no room left while writing" if error.errno in full else "cannot use"
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
