"""The token cache: nothing half-built is trusted, a full disk is one line."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import pytest
from small_corpora import TEXTS, files, load, load_elsewhere, plain_files

from lengthgen.data import corpora, token_cache
from lengthgen.errors import UserError


def cache_folder(cache_dir: Path) -> Path:
    (folder,) = (path for path in cache_dir.iterdir() if path.is_dir())
    return folder


@pytest.mark.parametrize("moment", ["reading", "training a BPE", "tokens of files"])
def test_a_build_that_was_killed_leaves_nothing_that_is_trusted(
    folder: Path, cache_dir: Path, tmp_path: Path, moment: str
) -> None:
    killed = load_elsewhere(plain_files(folder), cache_dir, deadly=moment)
    assert killed.returncode == -signal.SIGKILL
    (left,) = (path.name for path in cache_dir.iterdir() if path.is_dir())
    assert left.endswith(".building")
    again = load(files(folder), cache_dir).corpus
    assert again.fingerprint == load(files(folder), tmp_path / "other").corpus.fingerprint
    assert not list(cache_dir.glob("*.building"))


def test_what_a_dead_builder_of_another_corpus_left_is_removed(
    folder: Path, cache_dir: Path
) -> None:
    left = cache_dir / ".other-0123456789ab.building"
    left.mkdir(parents=True)
    load(files(folder), cache_dir)
    assert not left.exists()


def test_what_a_living_builder_of_another_corpus_writes_is_left_alone(
    folder: Path, cache_dir: Path
) -> None:
    written = cache_dir / ".other-0123456789ab.building"
    written.mkdir(parents=True)
    with filelock.FileLock(cache_dir / ".other-0123456789ab.lock"):
        load(files(folder), cache_dir)
    assert written.exists()


def test_the_second_of_two_processes_waits_and_says_so(folder: Path, cache_dir: Path) -> None:
    load(files(folder), cache_dir)
    built = cache_folder(cache_dir)
    shutil.rmtree(built)
    other = filelock.FileLock(cache_dir / f".{built.name}.lock")
    other.acquire()
    said: list[str] = []

    def say(message: str) -> None:
        said.append(message)
        other.release()

    corpora.load(files(folder), cache_dir=cache_dir, say=say)
    assert said[0] == f"waiting for another process that builds {built}"


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 2)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "harm", "reason"),
    [
        ("train.bin", truncate, "train.bin has"),
        ("validation.bin", truncate, "validation.bin has"),
        ("train.offsets.bin", truncate, "train.offsets.bin has"),
        ("train.bin", flip, "the tokens differ from their fingerprint"),
        ("validation.offsets.bin", flip, "the tokens differ from their fingerprint"),
        ("tokenizer.json", Path.unlink, "FileNotFoundError"),
        ("meta.json", Path.unlink, "FileNotFoundError"),
        ("meta.json", truncate, "JSONDecodeError"),
    ],
)
def test_a_damaged_cache_is_named_and_built_again(
    folder: Path, cache_dir: Path, name: str, harm: Any, reason: str
) -> None:
    before = load(files(folder), cache_dir).corpus.fingerprint
    harm(cache_folder(cache_dir) / name)
    again = load(files(folder), cache_dir)
    assert again.said[0].startswith(f"removing the damaged token cache {cache_folder(cache_dir)} (")
    assert reason in again.said[0]
    assert again.corpus.fingerprint == before
    assert token_cache.damage(cache_folder(cache_dir)) is None


def test_a_mistake_in_a_document_leaves_nothing_behind(folder: Path, cache_dir: Path) -> None:
    for split in ("train", "validation"):
        (folder / split).mkdir()
        (folder / split / "a.txt").write_bytes(b"\xff")
    with pytest.raises(UserError, match="not UTF-8"):
        load(files(folder), cache_dir)
    assert not [path for path in cache_dir.iterdir() if path.is_dir()]


def test_a_split_without_documents_is_an_error(folder: Path, cache_dir: Path) -> None:
    (folder / "train").mkdir()
    (folder / "train" / "a.txt").write_text("A")
    (folder / "validation").mkdir()
    (folder / "validation" / "a.jsonl").write_text('{"text": ""}\n')
    with pytest.raises(UserError, match=r"corpus=files: the validation split has no documents"):
        load(files(folder), cache_dir)


# Room


class Usage(NamedTuple):
    free: int


def test_a_disk_without_room_is_named_before_anything_is_read(
    folder: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def usage(path: Path) -> Usage:
        return Usage(free=1_000)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(UserError) as caught:
        load(files(folder), cache_dir)
    n_bytes = sum(len(text.encode()) for text in TEXTS.values())
    needs = f"1,000 bytes free, but tokenising needs about {2 * n_bytes:,};"
    assert str(caught.value).startswith(f"runtime.cache: {cache_dir} has {needs}")


@pytest.mark.skipif(os.name != "posix", reason="file size limits of POSIX")
@pytest.mark.parametrize("file_bytes", [1_000, 6_000])
def test_a_disk_that_fills_up_is_one_line_and_leaves_nothing(
    folder: Path, cache_dir: Path, file_bytes: int
) -> None:
    stopped = load_elsewhere(plain_files(folder), cache_dir, file_bytes=file_bytes)
    assert stopped.returncode == 1
    assert stopped.stderr.startswith(
        f"UserError: runtime.cache: no room left while writing {cache_dir}"
    )
    assert not [path for path in cache_dir.iterdir() if path.is_dir()]


def test_a_cache_that_cannot_be_written_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"runtime.cache: cannot write .*plain.txt"):
        load(files(folder), folder / "plain.txt")
