"""A JSONL file holds the rows that were appended, as they were written, or names the damage."""

import contextlib
import json
import os
import re
import resource
import zlib
from collections.abc import Generator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lengthgen.errors import UserError
from lengthgen.files import (
    append_rows,
    keep_rows,
    parse_yaml,
    read_bytes,
    read_rows,
    replace_file,
)

ROWS: list[dict[str, Any]] = [
    {"train/step": 10, "train/loss": 6.25, "document": "a \u00e9\n"},
    {"train/step": 20, "train/loss": None, "nats": [0.5, 1e-7]},
    {},
]
values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
several_rows = st.lists(st.dictionaries(st.text(), values | st.lists(values)), max_size=4)


def train_rows(*steps: int) -> list[dict[str, Any]]:
    return [{"train/step": step, "train/tokens": 8192 * step, "train/loss": 6.5} for step in steps]


@contextlib.contextmanager
def files_limited_to(n_bytes: int) -> Generator[None]:
    """Lets no file of this process grow further: like a full disk, it takes a part of a write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@given(before=several_rows, torn=several_rows, after=several_rows, share=st.floats(0, 1))
def test_rows_are_read_back_unchanged_and_what_a_killed_writer_left_is_cut(
    before: list[dict[str, Any]],
    torn: list[dict[str, Any]],
    after: list[dict[str, Any]],
    share: float,
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "train.jsonl"
        append_rows(path, before)
        size = path.stat().st_size
        append_rows(path, torn)
        whole = path.read_bytes()
        assert read_rows(path) == before + torn
        kept = whole[: size + int(share * (len(whole) - size))]
        path.write_bytes(kept)
        complete = (before + torn)[: kept.count(b"\n")]
        assert read_rows(path) == complete
        append_rows(path, after)
        assert read_rows(path) == complete + after


def test_a_torn_line_longer_than_one_block_is_cut_whole(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    append_rows(path, train_rows(1))
    with path.open("a") as file:
        file.write("x" * 200_000)

    append_rows(path, train_rows(2))

    assert read_rows(path) == train_rows(1, 2)


@pytest.mark.parametrize("damage", [b'{"train/st', b"[1]", b"", b"\xff\xfe{}", b"\0" * 8])
def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "train.jsonl"
    append_rows(path, train_rows(1, 2))
    path.write_bytes(damage.join([path.read_bytes(), b"\n"]) + b'{"train/step": 3}\n')

    with pytest.raises(UserError, match=r"train\.jsonl:3: .* delete this line"):
        read_rows(path)


def test_rows_that_are_not_kept_are_gone_and_the_others_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    undisturbed = tmp_path / "undisturbed.jsonl"
    append_rows(path, train_rows(1, 2, 3, 4))
    append_rows(undisturbed, train_rows(1, 2, 3))

    keep_rows(path, lambda row: row["train/step"] <= 2)
    append_rows(path, train_rows(3))

    assert path.read_bytes() == undisturbed.read_bytes()
    assert sorted(tmp_path.iterdir()) == [path, undisturbed]


def test_a_rewrite_without_room_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    append_rows(path, train_rows(*range(100)))

    with files_limited_to(100), pytest.raises(UserError, match=r"train\.jsonl: cannot be written"):
        keep_rows(path, lambda row: row["train/step"] > 0)

    assert read_rows(path) == train_rows(*range(100))
    assert list(tmp_path.iterdir()) == [path]


def test_an_append_without_room_leaves_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    append_rows(path, train_rows(1))
    size = path.stat().st_size

    room = size + size // 2
    with files_limited_to(room), pytest.raises(UserError, match=r"train\.jsonl: cannot be written"):
        append_rows(path, train_rows(2))

    assert path.stat().st_size == size


# Checksums


@pytest.fixture
def log(tmp_path: Path) -> Path:
    append_rows(tmp_path / "train.jsonl", ROWS)
    return tmp_path / "train.jsonl"


def test_a_checksum_is_one_more_key_to_every_reader(log: Path) -> None:
    for line, row in zip(log.read_bytes().splitlines(), ROWS, strict=True):
        plain: dict[str, Any] = json.loads(line)
        digits = plain.pop("crc32")
        assert plain == row
        before = line[: line.rindex(b"," if row else b'"crc32"')]
        assert int(digits, 16) == zlib.crc32(before)
    assert read_rows(log) == ROWS


def test_no_flipped_bit_changes_a_row_in_silence(log: Path) -> None:
    whole = log.read_bytes()
    known, likely = {key for row in ROWS for key in row}, (ROWS, ROWS[:-1])
    # Without the word "crc32" a row is older; without the last newline it is torn, and no row.
    words = re.finditer(rb'(, )?"crc32": ".{8}"}|\n', whole)
    unknown = {byte for word in words for byte in range(*word.span())}
    for bit in range(8 * len(whole)):
        harmed = bytearray(whole)
        harmed[bit // 8] ^= 1 << bit % 8
        log.write_bytes(harmed)
        try:
            found = read_rows(log)
        except UserError:
            continue
        assert bit // 8 in unknown
        assert [{key: row[key] for key in row if key in known} for row in found] in likely


def test_a_row_without_a_checksum_is_read_as_it_is(log: Path) -> None:
    log.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    assert read_rows(log) == ROWS
    append_rows(log, ROWS)
    assert read_rows(log) == [*ROWS, *ROWS]


# Reading


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "device", "folder"):
        with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
            read_bytes(tmp_path / name)
        with pytest.raises(UserError, match=rf"{name}: cannot be read \("):
            read_rows(tmp_path / name)


def test_a_link_to_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to("file")
    assert read_bytes(tmp_path / "link") == b"text"


def test_a_row_of_another_run_is_named_with_its_line(tmp_path: Path) -> None:
    append_rows(tmp_path / "eval.jsonl", [{"run": "a"}, {"run": "b"}])
    with pytest.raises(UserError, match=r"eval\.jsonl:2: a row of run b, but .* of run a; restore"):
        read_rows(tmp_path / "eval.jsonl", run="a")


def test_yaml_makes_plain_data_alone() -> None:
    with pytest.raises(yaml.YAMLError, match="could not determine a constructor"):
        parse_yaml("a: !!python/object/apply:os.system [true]")


# Power


def test_names_are_on_disk_before_a_writer_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[Path, list[str]]] = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append((path, sorted(os.listdir(path)) if path.is_dir() else []))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    replace_file(tmp_path / "probes" / "a.json", b"{}")
    append_rows(tmp_path / "train.jsonl", ROWS)
    assert (tmp_path, ["probes"]) in synced
    assert (tmp_path / "probes", ["a.json"]) in synced
    assert (tmp_path, ["probes", "train.jsonl"]) in synced
