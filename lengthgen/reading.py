"""Files read within limits: regular files alone, JSON and YAML of bounded size and depth.

A run directory may come from anyone. What breaks a limit raises OSError (of files) or ValueError
(of text), as a file that is gone or damaged does.
"""

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterable
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

MOST_BYTES = 1 << 30  # of a file that is read whole
MOST_YAML = 1 << 20  # characters
MOST_DEPTH = 64  # of lists and mappings within each other
MOST_REPEATED = 10_000  # values that the aliases of a YAML text stand for


def open_regular(path: Path) -> BufferedReader:
    """Opens a regular file for reading, or a link to one; a pipe or a device might never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def check_regular(path: Path) -> None:
    """Raises OSError unless a library that opens files by itself can be given this one."""
    open_regular(path).close()


def read_bytes(path: Path) -> bytes:
    """Returns the content of a regular file of at most MOST_BYTES."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > MOST_BYTES:
            raise OSError(errno.EFBIG, f"larger than {MOST_BYTES:,} bytes", str(path))
        return file.read()


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a regular file, in hexadecimal digits."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def utf8(name: str) -> str:
    """Returns the name of a file, or a word of the command; a byte that is not UTF-8 as \\xff.

    Python has half a surrogate pair there, which no file that is read again may hold.
    """
    return os.fsencode(name).decode(errors="backslashreplace")


def parse_json(content: bytes | str) -> Any:
    """Returns the value of a JSON text, in UTF-8 if it is given as bytes."""
    text = content if isinstance(content, str) else content.decode()
    try:
        value = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    if text.count("[") + text.count("{") > MOST_DEPTH:
        _check_depth(value, MOST_DEPTH)
    return value


def _too_deep() -> ValueError:
    return ValueError(f"nested more than {MOST_DEPTH} deep")


def _check_depth(value: object, left: int) -> None:
    if isinstance(value, dict | list):
        if left == 0:
            raise _too_deep()
        within = value.values() if isinstance(value, dict) else value
        for inner in cast("Iterable[object]", within):
            _check_depth(inner, left - 1)


def parse_row(line: bytes) -> dict[str, Any]:
    """Returns a JSON object, all of whose text can be encoded again."""
    from pydantic_core import from_json  # shell completion of runs reads no rows

    row = from_json(line)  # in half the time of json; refuses halves of surrogate pairs
    if not isinstance(row, dict):
        raise ValueError("no JSON object")
    if line.count(b"[") + line.count(b"{") > MOST_DEPTH:
        _check_depth(row, MOST_DEPTH)
    return cast("dict[str, Any]", row)


def parse_yaml(text: str) -> Any:
    """Returns the value of a YAML text of plain data.

    Raises yaml.YAMLError, with the place, for text that is no YAML.
    """
    import yaml  # takes 10 ms, and shell completion of runs needs none

    if len(text) > MOST_YAML:
        raise ValueError(f"YAML of more than {MOST_YAML:,} characters")
    # The C loader reads all of conf in 10 ms instead of 80: a Tab should feel immediate.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_aliases(yaml.parse(text, Loader=loader))
        return yaml.load(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        if "nesting depth" in (error.problem or ""):  # libyaml's own limit
            raise _too_deep() from None
        raise
    except (AttributeError, LookupError, TypeError) as error:  # of a value unlike its !!tag
        raise ValueError(f"a value does not fit its tag ({error})") from None


def _check_aliases(events: Iterable[Any]) -> None:
    """Raises ValueError for text that is nested too deep, or small but large once it is used.

    Ten lines, each a list of ten aliases of the line before, stand for 10^10 values.
    """
    import yaml

    sizes: dict[str, int] = {}  # by anchor: how many values it stands for
    opened: list[tuple[str | None, int]] = []  # collections: anchor, values before it
    n_values = n_repeated = 0
    for event in events:
        if isinstance(event, yaml.ScalarEvent):
            n_values += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in opened):
                raise ValueError(f"alias *{event.anchor} stands for itself")
            repeated = sizes.get(event.anchor, 0)  # the loader refuses one without an anchor
            n_values, n_repeated = n_values + repeated, n_repeated + repeated
            if n_repeated > MOST_REPEATED:
                raise ValueError(f"aliases repeat more than {MOST_REPEATED:,} values")
        elif isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, n_values))
            if len(opened) > MOST_DEPTH:
                raise _too_deep()
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            n_values += 1
            if anchor is not None:
                sizes[anchor] = n_values - before
