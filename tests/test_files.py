"""A JSONL file holds the rows that were appended, as they were written, or names the damage."""

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from commands import files_limited_to
from hypothesis import given
from hypothesis import strategies as st

from lengthgen.errors import UserError
from lengthgen.files import append_rows, read_rows, replace_file, write_rows
from lengthgen.runs import checkpoints

ROWS: list[dict[str, Any]] = [
    {"train/step": 10, "train/loss": 6.25, "document": "a \u00e9\n"},
    {"train/step": 20, "train/loss": None, "nats": [0.5, 1e-7]},
    {},
]
values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
several_rows = st.lists(st.dictionaries(st.text(), values | st.lists(values)), max_size=4)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    append_rows(tmp_path / "train.jsonl", ROWS)
    return tmp_path / "train.jsonl"


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
        content = path.read_bytes()
        assert read_rows(path) == before + torn
        kept = content[: size + int(share * (len(content) - size))]
        path.write_bytes(kept)
        complete = (before + torn)[: kept.count(b"\n")]
        assert read_rows(path) == complete
        append_rows(path, after)
        assert read_rows(path) == complete + after


def test_what_killed_writers_left_goes_with_the_next_write(tmp_path: Path) -> None:
    ended, living = tmp_path / ".a.json.999999999.tmp", tmp_path / f".a.json.{os.getppid()}.tmp"
    others = [tmp_path / ".b.json.999999999.tmp", tmp_path / ".a.json.old.tmp", living]
    for file in (ended, *others):
        file.write_bytes(b"{")
    replace_file(tmp_path / "a.json", b"{}")
    assert {*tmp_path.iterdir()} == {tmp_path / "a.json", *others}


EDITED = b'{"train/step": 2, "crc32": "0a0a0a0a"}'


@pytest.mark.parametrize("damage", [b'{"train/st', b"[1]", b"", b"\xff\xfe{}", b"\0" * 8, EDITED])
def test_a_damaged_line_in_the_middle_is_named(log: Path, damage: bytes) -> None:
    with log.open("a") as file:
        file.write("x" * 200_000)  # torn, and longer than a block
    append_rows(log, ROWS)
    log.write_bytes(log.read_bytes() + damage + b'\n{"train/step": 3}\n')
    with pytest.raises(UserError, match=r"train\.jsonl:7: .* delete this line"):
        read_rows(log)


def test_a_row_of_another_run_is_named_with_its_line(tmp_path: Path) -> None:
    append_rows(tmp_path / "eval.jsonl", [{"run": "a"}, {"run": "b"}])
    with pytest.raises(UserError, match=r"eval\.jsonl:2: a row of run b, but .* of run a; restore"):
        read_rows(tmp_path / "eval.jsonl", run="a")


@pytest.mark.parametrize(("write", "room"), [(append_rows, 1.5), (write_rows, 0.5)])
def test_without_room_all_stays(log: Path, write: Callable[[Path, Any], None], room: float) -> None:
    before = log.read_bytes()
    limit = files_limited_to(int(len(before) * room))
    with limit, pytest.raises(UserError, match=r"train\.jsonl: cannot be written"):
        write(log, ROWS)
    assert list(log.parent.iterdir()) == [log]
    assert log.read_bytes() == before


def test_contents_are_on_disk_before_their_names_and_both_when_writers_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = list[list[str] | bytes]()  # what a folder or a file held
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append(sorted(os.listdir(path)) if path.is_dir() else path.read_bytes())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    replace_file(tmp_path / "probes" / "a.json", b"{}")
    append_rows(tmp_path / "train.jsonl", ROWS)
    checkpoints.save(tmp_path, run="a", step=1, weights={"w": torch.ones(2)}, trainer={})
    assert synced.index(["probes"]) < synced.index(b"{}") < synced.index(["a.json"])
    assert (tmp_path / "train.jsonl").read_bytes() in synced
    assert ["probes", "train.jsonl"] in synced
    for file in (tmp_path / "checkpoints/step-00000001").iterdir():
        assert synced.index(file.read_bytes()) < synced.index(["step-00000001"])
