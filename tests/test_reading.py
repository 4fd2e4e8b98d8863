"""Reading within limits: what would hang, fill memory or end in a traceback is refused at once."""

import json
import os
import socket
import stat
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lengthgen import reading
from lengthgen.config import compose
from lengthgen.errors import UserError
from lengthgen.storage import read_rows


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def a_folder(path: Path) -> None:
    path.mkdir()


IRREGULAR: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "folder": a_folder,
    "socket": a_socket,
}


@pytest.fixture(params=IRREGULAR)
def irregular(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Something that is no regular file, or a link to it."""
    path = tmp_path / "file.yaml"
    IRREGULAR[request.param](path)
    return path


def test_only_regular_files_are_read(irregular: Path) -> None:
    with pytest.raises(OSError, match=r"not a regular file|Is a directory|No such device"):
        reading.read_bytes(irregular)


def test_rows_and_yaml_are_read_of_regular_files_alone(irregular: Path) -> None:
    for read in (read_rows, compose.read):
        with pytest.raises(UserError, match=r"file\.yaml: cannot be read \("):
            read(irregular)


def test_a_link_to_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to("file")
    assert reading.read_bytes(tmp_path / "link") == b"text"


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(OSError, match="larger than 1,073,741,824 bytes"):
        reading.read_bytes(path)


def test_an_open_file_is_closed_where_it_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(OSError, match="not a regular file"):
            reading.check_regular(tmp_path / "pipe")
    assert len(os.listdir("/proc/self/fd")) == before
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


HOSTILE_JSON = {
    "deep list": b"[" * 60_000,
    "deep mapping": b'{"a":' * 60_000,
    "one level too deep": b"[" * 65 + b"]" * 65,
    "long number": b"1" * 5_000,
    "not UTF-8": b'"\xff"',
    "empty": b"",
}


@pytest.mark.parametrize("name", HOSTILE_JSON)
def test_hostile_json_is_an_error_of_its_value(name: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        reading.parse_json(HOSTILE_JSON[name])


def test_json_is_read_down_to_the_depth_that_is_allowed() -> None:
    text = b"[" * 64 + b"]" * 64
    assert reading.parse_json(text) is not None
    assert reading.parse_json(b'{"a": "' + b"[{" * 1000 + b'"}') == {"a": "[{" * 1000}


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(row=st.dictionaries(st.text(), JSON_VALUES))
def test_a_row_is_read_as_it_was_written_bit_for_bit(row: dict[str, Any]) -> None:
    text = json.dumps(row)
    assert json.dumps(reading.parse_row(text.encode())) == text


@pytest.mark.parametrize(
    ("line", "is_read"),
    [
        (b'{"a": ' + b"[" * 63 + b"]" * 63 + b"}", True),
        (b'{"a": ' + b"[" * 64 + b"]" * 64 + b"}", False),
        (b'{"a": ' * 65 + b"1" + b"}" * 65, False),
        (b'{"a": "\\ud83d\\ude00"}', True),
        (b'{"a": "\\ud83d"}', False),  # half a character
        (b'{"a": 1} {"a": 2}', False),
        (b"[]", False),
    ],
    ids=range(7),
)
def test_a_row_is_one_object_of_limited_depth_and_whole_characters(
    line: bytes, is_read: bool
) -> None:
    with nullcontext() if is_read else pytest.raises(ValueError, match=r"."):
        assert "a" in reading.parse_row(line)


@pytest.mark.parametrize("name", HOSTILE_JSON)
def test_a_hostile_row_is_named_by_file_and_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / "eval.jsonl"
    path.write_bytes(b'{"a": 1}\n' + HOSTILE_JSON[name] + b"\n")
    with pytest.raises(UserError, match=r"eval\.jsonl:2: damaged row"):
        read_rows(path)


BOMB = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 10)}]" for i in range(10))
MERGES = "\n".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}' if i else '{x: 1}'] * 10)}]}}" for i in range(10)
)
HOSTILE_YAML = {
    "aliases of aliases": (BOMB, "aliases repeat more than 10,000 values"),
    "merges of merges": (MERGES, "aliases repeat more than 10,000 values"),
    "an alias of itself": ("a: &a [*a]", r"alias \*a stands for itself"),
    "deep brackets": ("a: " + "[" * 60_000, "nested more than 64 deep"),
    "deep dashes": ("- " * 60_000, "nested more than 64 deep"),
    "deep keys": ("? " * 60_000, "nested more than 64 deep"),
    "long text": ("a: " + "x" * (1 << 20), "more than 1,048,576 characters"),
    "a long number": ("a: " + "1" * 5_000, "Exceeds the limit"),
    "no such day": ("a: 2001-99-99", "month must be in"),
    "a tag of another type": ("a: !!bool x", "does not fit its tag"),
    "a tag of no time": ("a: !!timestamp x", "does not fit its tag"),
    "an unknown alias": ("a: *b", "undefined alias"),
    "a key that is a list": ("? [a]\n: b", "unhashable key"),
    "a zero byte": ("a: \0", "control characters|unacceptable character"),
}


@pytest.mark.parametrize("name", HOSTILE_YAML)
def test_hostile_yaml_is_one_line_that_names_the_file(name: str, tmp_path: Path) -> None:
    text, reason = HOSTILE_YAML[name]
    (tmp_path / "e.yaml").write_text(text)
    with pytest.raises(UserError, match=rf"e\.yaml.*: not .*YAML: .*({reason})"):
        compose.read(tmp_path / "e.yaml")


def test_anchors_that_repeat_little_are_read() -> None:
    text = "a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}\nd: [&d z, *d]"
    assert reading.parse_yaml(text) == yaml.safe_load(text)


@pytest.mark.parametrize("name", ["aliases of aliases", "deep brackets"])
def test_hydra_is_given_no_yaml_that_is_hostile(name: str, tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "e.yaml").write_text("defaults: [/model: bomb]\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "bomb.yaml").write_text(HOSTILE_YAML[name][0])
    with pytest.raises(UserError, match=r"bomb\.yaml: not readable as YAML"):
        compose.compose(["experiment=e"], config_dir=tmp_path)


def test_hydra_waits_for_no_pipe(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    os.mkfifo(tmp_path / "model" / "pipe.yaml")
    for words in (["model=pipe"], ["seed=2"]):
        with pytest.raises(UserError, match=r"pipe\.yaml: cannot be read \(not a regular file\)"):
            compose.compose(words, config_dir=tmp_path)
