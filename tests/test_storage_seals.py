"""A row with a checksum is read as it was written, or not at all."""

import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest

from lengthgen.errors import UserError
from lengthgen.storage import add_checksum, append_rows, read_rows, strip_checksum

ROWS: list[dict[str, Any]] = [
    {"train/step": 10, "train/loss": 6.25, "document": "a \u00e9\n"},
    {"train/step": 20, "train/loss": None, "nats": [0.5, 1e-7]},
    {},
]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    append_rows(tmp_path / "train.jsonl", ROWS)
    return tmp_path / "train.jsonl"


def test_a_checksum_is_one_more_key_to_every_reader(log: Path) -> None:
    for line, row in zip(log.read_bytes().splitlines(), ROWS, strict=True):
        plain: dict[str, Any] = json.loads(line)
        digits = plain.pop("crc32")
        assert plain == row
        before = line[: line.rindex(b"," if row else b' "crc32"')]
        assert int(digits, 16) == zlib.crc32(before)
    assert read_rows(log) == ROWS


def test_no_flipped_bit_changes_a_row_in_silence(log: Path) -> None:
    whole = log.read_bytes()
    known, likely = {key for row in ROWS for key in row}, (ROWS, ROWS[:-1])
    # Without the word "crc32" a row is older; without the last newline it is torn, and no row.
    words = re.finditer(rb',? "crc32": ".{8}"}|\n', whole)
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


def test_a_truncated_file_holds_the_first_rows(log: Path) -> None:
    whole = log.read_bytes()
    for n_bytes in range(len(whole)):
        log.write_bytes(whole[:n_bytes])
        assert read_rows(log) == ROWS[: whole[:n_bytes].count(b"\n")]


def test_a_row_that_was_edited_is_named_with_its_line(log: Path) -> None:
    log.write_bytes(log.read_bytes().replace(b'"train/step": 20', b'"train/step": 21'))
    with pytest.raises(UserError, match=r"train\.jsonl:2: damaged row .*; delete this line or"):
        read_rows(log)


def test_a_row_without_a_checksum_is_read_as_it_is(log: Path) -> None:
    log.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    assert read_rows(log) == ROWS
    append_rows(log, ROWS)
    assert read_rows(log) == [*ROWS, *ROWS]


def test_text_over_several_lines_has_a_checksum_too() -> None:
    text = json.dumps(ROWS[0], indent=1).encode()
    assert list(json.loads(add_checksum(text))) == [*ROWS[0], "crc32"]
    assert add_checksum(text).splitlines()[:-2] == [
        *text.splitlines()[:-2],
        text.splitlines()[-2] + b",",
    ]
    assert json.loads(strip_checksum(add_checksum(text))) == ROWS[0]
    assert strip_checksum(text) == text
    with pytest.raises(ValueError, match="differs from its checksum"):
        strip_checksum(add_checksum(text).replace(b"10", b"11"))
