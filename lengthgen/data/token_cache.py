"""The token cache on disk: folders built once by one process, verified, never half there.

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
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import filelock

from lengthgen.data.sources import Say
from lengthgen.data.tokenizer import read_tokenizer
from lengthgen.errors import UserError
from lengthgen.files import open_regular, read_bytes, sha256_of, sync

VERIFY_BYTES = 1_000_000_000  # a larger cache is checked by file sizes alone when it is loaded
SPLITS = ("train", "validation")

Build = Callable[[Path], Mapping[str, Any]]


def ensure(folder: Path, build: Build, *, say: Say) -> None:
    """Builds the folder unless it is there and undamaged.

    One process builds, others wait for it. A damaged folder is named, removed and built again.
    `build` writes all files but meta.json, and returns what is stated there about them.
    """
    if damage(folder) is None:
        return
    cache_dir = folder.parent
    with _room_errors(cache_dir):
        _make_cache_dir(cache_dir)
        _remove_leftovers(cache_dir)
        with _locked(folder, say):
            _build_if_needed(folder, build, say)


def _build_if_needed(folder: Path, build: Build, say: Say) -> None:
    """Builds the folder under its lock, unless another process has done so meanwhile."""
    if folder.is_dir():
        reason = damage(folder)
        if reason is None:
            return
        say(f"removing the damaged token cache {folder} ({reason}); it is built again")
        shutil.rmtree(folder)
    building = folder.with_name(f".{folder.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    try:
        building.mkdir()
        _write_meta(building, {"folder": folder.name, **build(building)})
        os.rename(building, folder)
        sync(folder.parent)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


def _locked(folder: Path, say: Say) -> AbstractContextManager[object]:
    """Returns the held lock of a folder, to be used in a with statement."""
    lock = filelock.FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        return lock.acquire(blocking=False)
    except filelock.Timeout:
        say(f"waiting for another process that builds {folder}")
        return lock.acquire()


def _remove_leftovers(cache_dir: Path) -> None:
    """Removes unfinished folders of dead processes: those whose lock is free."""
    for left in cache_dir.glob(".*.building"):
        lock = filelock.FileLock(left.with_suffix(".lock"))
        with suppress(filelock.Timeout), lock.acquire(blocking=False):
            shutil.rmtree(left)


@contextmanager
def _room_errors(cache_dir: Path) -> Generator[None]:
    """Turns a full disk (or quota, or file size limit) into one line."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise UserError(
            f"runtime.cache: no room left while writing {cache_dir} ({error.strerror}); make room, "
            "or set runtime.cache=FOLDER on another disk"
        ) from error


def _make_cache_dir(cache_dir: Path) -> None:
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache_dir):
            pass
    except OSError as error:
        raise UserError(
            f"runtime.cache: cannot write {cache_dir} ({error.strerror}); "
            "set runtime.cache=FOLDER to another place"
        ) from error


def check_room(folder: Path, needed_bytes: int) -> None:
    """Raises UserError if the disk has fewer bytes free than tokenising needs."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise UserError(
            f"runtime.cache: {folder} has {free_bytes:,} bytes free, but tokenising needs about "
            f"{needed_bytes:,}; make room, or set runtime.cache=FOLDER on another disk"
        )


def damage(folder: Path) -> str | None:
    """Returns what is wrong with a cache folder, or None if it is as it was built."""
    try:
        meta = json.loads(read_bytes(folder / "meta.json"))
        if meta.get("folder", folder.name) != folder.name:  # older ones do not name it
            return f"it is {meta['folder']}"
        sizes: dict[str, int] = meta["files"]
        for name, n_bytes in sizes.items():
            with open_regular(folder / name) as file:
                found = os.fstat(file.fileno()).st_size
            if found != n_bytes:
                return f"{name} has {found:,} bytes instead of {n_bytes:,}"
        if sum(sizes.values()) < VERIFY_BYTES:
            if fingerprint(folder) != meta["fingerprint"]:
                return "the tokens differ from their fingerprint"
            for name, sha256 in meta.get("sha256", {}).items():
                if sha256_of(folder / name) != sha256:
                    return f"{name} differs from its sha256"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, UserError) as error:
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


def _write_meta(folder: Path, about: Mapping[str, Any]) -> None:
    """Writes meta.json, by which damage() verifies the folder: the last file of a build."""
    paths = sorted(folder.iterdir())
    meta = {
        **about,
        "files": {path.name: path.stat().st_size for path in paths},
        "fingerprint": fingerprint(folder),
        # The fingerprint covers the tokens and the vocabulary only.
        "sha256": {path.name: sha256_of(path) for path in paths if path.suffix == ".json"},
    }
    write(folder / "meta.json", json.dumps(meta, indent=1).encode())
    sync(folder)


def write(path: Path, content: bytes) -> None:
    """Writes a file and flushes it to disk."""
    with path.open("wb") as file:
        file.write(content)
        flush(file)


def flush(file: BinaryIO) -> None:
    """Flushes what was written to a file to disk."""
    file.flush()
    os.fsync(file.fileno())
