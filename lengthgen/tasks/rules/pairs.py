"""Pairs of a prompt and an answer, in words, from a file such as that of SCAN.

Lake and Baroni 2018, arXiv 1711.00350; lengths split as in Kazemnejad et al. 2023, arXiv
2305.19466.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from string import ascii_letters, digits, punctuation
from typing import NamedTuple

from lengthgen.errors import UserError
from lengthgen.files import hash_of, read_bytes
from lengthgen.tasks.base import Example, WordTask

WHERE = "task.arguments.path"
ALPHABET = ascii_letters + digits + punctuation.replace("=", "")
Words = tuple[str, ...]
WordPair = tuple[Words, Words]  # a prompt and its answer
LINES = (re.compile(r"IN: *(\S.*?) *OUT: *(.+)"), re.compile(r"([^\t]+)\t([^\t]+)"))


class File(NamedTuple):
    """The content of a file of pairs."""

    by_length: Mapping[int, Sequence[WordPair]]  # by the number of words of the answer
    signs: Mapping[str, str]  # from a word to its characters, as many for all words
    sha256: str


class Pairs(WordTask):
    """A line of a file, "IN: words OUT: words" as in SCAN, or the two parted by a tab.

    A word is one character, a letter of its own if one is free; of more words than there are
    characters, each is two. The length is the number of words of the answer. Lines are drawn with
    replacement.
    """

    unit = "words of the answer"

    def __init__(self, *, path: str) -> None:
        where = Path(path)
        self.file = _read(where, where.stat().st_mtime_ns if where.is_file() else None)
        super().__init__(self.file.signs)
        self.form = f"[^=]{{1,{max(map(len, self.signs.values()), default=1)}}}"

    def example(self, length: int, random: Random) -> Example:
        if length not in self.file.by_length:
            raise ValueError(f"the file has no answer of {length} words")
        return self.example_of(*random.choice(self.file.by_length[length]))

    def data_key(self) -> str:
        return self.file.sha256


@cache
def _read(path: Path, changed: int | None) -> File:
    """Reads a file. Raises UserError for one that cannot be used, with the line."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UserError(
            f"{WHERE}={path}: cannot read it ({why}); give a file of lines such as "
            "IN: jump twice OUT: I_JUMP I_JUMP, for SCAN its tasks.txt"
        ) from None
    by_length: dict[int, list[WordPair]] = {}
    words: set[str] = set()
    answers: dict[Words, Words] = {}
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line:
            continue
        match = next(filter(None, (kind.fullmatch(line) for kind in LINES)), None)
        if match is None:
            raise UserError(
                f"{WHERE}={path}, line {number}: neither IN: words OUT: words nor two texts with a "
                "tab between; correct or remove it"
            )
        prompt, answer = (tuple(part.split()) for part in match.groups())
        if answers.setdefault(prompt, answer) != answer:
            raise UserError(
                f"{WHERE}={path}, line {number}: {' '.join(prompt)} has another answer in a line "
                "above; remove one"
            )
        by_length.setdefault(len(answer), []).append((prompt, answer))
        words.update(prompt, answer)
    for word in sorted(words):
        if "=" in word:
            raise UserError(f"{WHERE}={path}: {word}: = ends a prompt here; write another word")
    return File(by_length, _signs(words, path), hash_of(text))


def _signs(words: set[str], path: Path) -> dict[str, str]:
    """Returns a character for every word: one of its last part's own if one is free, or any.

    Of more words than characters, two for every word.
    """
    if len(words) > len(ALPHABET) ** 2:
        raise UserError(
            f"{WHERE}={path}: {len(words)} different words, and there are {len(ALPHABET) ** 2} "
            "pairs of characters to represent them"
        )
    if len(words) > len(ALPHABET):
        return dict(zip(sorted(words), map("".join, product(ALPHABET, repeat=2)), strict=False))
    signs: dict[str, str] = {}
    for word in sorted(words):
        free = set(ALPHABET) - set(signs.values())
        signs[word] = next(c for c in (*word.rpartition("_")[2], *ALPHABET) if c in free)
    return signs
