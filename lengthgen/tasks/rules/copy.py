"""Copying, after the NoPE suite: Kazemnejad et al. 2023, arXiv 2305.19466, and its release.

There a token is a word, and a prompt begins with "Copy:". Here a token is a character, and a prompt
ends in "=".
"""

from random import Random
from string import ascii_letters, digits

from lengthgen.tasks.base import (
    Example,
    Task,
    check_positive,
    first_characters,
    number_runs,
    random_text,
)

CHARACTERS = ascii_letters + digits


class Copy(Task):
    """Random characters, to be written again (cmc), `times` times over (cmc2x has 2)."""

    def __init__(self, *, alphabet: int, times: int) -> None:
        check_positive(times=times)
        self.characters = first_characters(alphabet, of=CHARACTERS)
        self.times = times
        self.alphabet = self.characters + "="
        self.has_alignment = times == 1

    def alignment_ids(self, text: str) -> list[int]:
        """Returns the number of every character in its text, from 1."""
        return number_runs(text, self.characters, backwards=False)

    def example(self, length: int, random: Random) -> Example:
        text = random_text(self.characters, length, random)
        return Example(f"{text}=", text * self.times)


class CopyRepeat(Task):
    """One character, repeated (rsc); with `replace` another one as often (rdc): counting."""

    def __init__(self, *, alphabet: int, times: int, replace: bool) -> None:
        check_positive(times=times)
        self.characters = first_characters(alphabet, of=CHARACTERS)
        if replace and alphabet < 2:
            raise ValueError("replace=true needs an alphabet of 2 or more")
        self.times, self.replace = times, replace
        self.alphabet = self.characters + "=>"

    def example(self, length: int, random: Random) -> Example:
        one = random_text(self.characters, 1, random)
        if not self.replace:
            return Example(f"{one * length}=", one * (length * self.times))
        other = random_text(self.characters.replace(one, ""), 1, random)
        return Example(f"{one * length}>{other}=", other * (length * self.times))


class Reverse(Task):
    """Random characters, to be written from the last to the first (mc)."""

    has_alignment = True

    def __init__(self, *, alphabet: int) -> None:
        self.characters = first_characters(alphabet, of=CHARACTERS)
        self.alphabet = self.characters + "="

    def alignment_ids(self, text: str) -> list[int]:
        """Returns the number of every character, 1 for the last one of the prompt."""
        return number_runs(text, self.characters, backwards=True)

    def example(self, length: int, random: Random) -> Example:
        text = random_text(self.characters, length, random)
        return Example(f"{text}=", text[::-1])
