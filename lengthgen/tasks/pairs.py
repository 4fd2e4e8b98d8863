"""Pairs of a file: what to do in words, and what is to be done; such as SCAN.

Lake and Baroni 2018, arXiv 1711.00350; lengths split as in Kazemnejad et al. 2023, arXiv
2305.19466.
"""

import hashlib
import re
from functools import cache
from pathlib import Path
from random import Random
from string import ascii_letters, digits, punctuation
from typing import NamedTuple

from lengthgen.tasks.base import Example, Task

SIGNS = ascii_letters + digits + punctuation.replace("=", "")
LINES = (re.compile(r"IN: *(\S.*?) *OUT: *(.+)"), re.compile(r"([^\t]+)\t([^\t]+)"))


class Pair(NamedTuple):
    """One line of a file, as words."""

    asked: tuple[str, ...]
    done: tuple[str, ...]


class Pairs(Task):
    """A line of a file, "IN: words OUT: words" as in SCAN, or the two parted by a tab.

    A word is one character: a letter of its own if one is free. The length is the number of words
    of the answer. Lines are drawn again and again: the file has as many as it has.
    """

    unit = "words of the answer"

    def __init__(self, *, path: str) -> None:
        file = Path(path).expanduser()
        self.by_length, self.signs, self.sha256 = _read(file, _state(file))
        self.words = {sign: word for word, sign in self.signs.items()}
        self.alphabet = "".join(self.words) + "="

    def example(self, length: int, random: Random) -> Example:
        if length not in self.by_length:
            raise ValueError(f"the file has no answer of {length} words")
        pair = random.choice(self.by_length[length])
        asked, done = ("".join(self.signs[word] for word in words) for words in pair)
        return Example(f"{asked}=", done)

    def source(self) -> str:
        return self.sha256

    def spelled(self, text: str) -> str:
        return " ".join(self.words.get(character, character) for character in text)

    def abridged(self, text: str) -> str:
        words = text.replace("=", " = ").split()
        for word in words:
            if word not in self.signs and word != "=":
                raise ValueError(f"no word {word!r}; there are {', '.join(self.signs)}")
        return "".join(self.signs.get(word, word) for word in words)


def _state(path: Path) -> tuple[int, int] | None:
    """Returns what differs when a file has changed."""
    return (path.stat().st_mtime_ns, path.stat().st_size) if path.is_file() else None


@cache
def _read(
    path: Path, state: tuple[int, int] | None
) -> tuple[dict[int, list[Pair]], dict[str, str], str]:
    """Returns the pairs by length, the character of every word, and the hash of the file."""
    text = _text(path)
    by_length: dict[int, list[Pair]] = {}
    words: set[str] = set()
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line:
            continue
        match = next(filter(None, (one.fullmatch(line) for one in LINES)), None)
        if match is None:
            raise ValueError(
                f"path={path}, line {number}: neither IN: words OUT: words nor two texts with a "
                "tab between"
            )
        asked, done = (tuple(part.split()) for part in match.groups())
        by_length.setdefault(len(done), []).append(Pair(asked, done))
        words.update(asked, done)
    for word in sorted(words):
        if "=" in word:
            raise ValueError(f"path={path}: {word}: = ends a prompt here; write another word")
    return by_length, _signs(words, path), hashlib.sha256(text.encode()).hexdigest()


def _text(path: Path) -> str:
    try:
        if path.is_file():  # a device would be read for ever
            return path.read_bytes().decode()
        why = "no such file"
    except OSError as error:
        why = str(error.strerror)
    except UnicodeDecodeError:
        why = "this is no UTF-8 text"
    raise ValueError(
        f"path={path}: cannot read it ({why}); give a file of lines such as "
        "IN: jump twice OUT: I_JUMP I_JUMP, for SCAN its tasks.txt"
    )


def _signs(words: set[str], path: Path) -> dict[str, str]:
    """Returns a character for every word: one of its last part's own if one is free, or any."""
    if len(words) > len(SIGNS):
        raise ValueError(
            f"path={path}: {len(words)} different words, and there are {len(SIGNS)} characters "
            "to stand for them"
        )
    found: dict[str, str] = {}
    for word in sorted(words):
        wanted = [one for one in (*word.rpartition("_")[2], *SIGNS) if one in SIGNS]
        found[word] = next(one for one in wanted if one not in found.values())
    return found
