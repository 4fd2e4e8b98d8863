"""A JSONL file holds the rows that were appended, whatever stopped the writer."""

import contextlib
import resource
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lengthgen.errors import UserError
from lengthgen.storage import append_rows, keep_rows, read_rows


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


def test_appended_rows_are_read_back_unchanged(tmp_path: Path) -> None:
    rows = [{"train/step": 1, "train/loss": 0.1 + 0.2}, {"document": "a\nb \u2028 \u00e9"}]

    append_rows(tmp_path / "train.jsonl", rows[:1])
    append_rows(tmp_path / "train.jsonl", rows[1:])

    assert read_rows(tmp_path / "train.jsonl") == rows


def test_a_file_that_is_not_there_has_no_rows(tmp_path: Path) -> None:
    assert read_rows(tmp_path / "train.jsonl") == []


VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
ROWS = st.lists(st.dictionaries(st.text(), VALUES | st.lists(VALUES), min_size=1), min_size=1)


@settings(derandomize=True, deadline=None, database=None)
@given(ROWS, st.floats(0, 1), st.binary())
@example(train_rows(1, 2), 1.0, b"x" * 200_000)  # more than one block is searched for its begin
def test_a_torn_write_leaves_the_whole_lines_and_the_next_append_follows_them(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], kept: float, torn: bytes
) -> None:
    path = tmp_path_factory.mktemp("torn") / "train.jsonl"
    append_rows(path, rows)
    written = path.read_bytes()
    written = written[: round(kept * len(written))]
    path.write_bytes(written + torn.replace(b"\n", b""))
    whole = rows[: written.count(b"\n")]

    assert read_rows(path) == whole
    append_rows(path, train_rows(3))
    assert read_rows(path) == [*whole, *train_rows(3)]


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


def test_a_reader_never_sees_a_half_rewritten_file(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    append_rows(path, train_rows(1, 2))
    with path.open("rb") as before:  # holds the old file open across the rewrite
        keep_rows(path, lambda row: row["train/step"] == 2)
        assert len(before.readlines()) == 2
    assert read_rows(path) == train_rows(2)


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


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").mkdir()

    with pytest.raises(UserError, match=r"train\.jsonl: cannot be written \(Is a directory\)"):
        append_rows(tmp_path / "train.jsonl", train_rows(1))
    with pytest.raises(UserError, match=r"train\.jsonl: cannot be read \(Is a directory\)"):
        read_rows(tmp_path / "train.jsonl")
