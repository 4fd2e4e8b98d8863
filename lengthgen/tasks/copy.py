"""Copying, after the NoPE suite: Kazemnejad et al. 2023, arXiv 2305.19466, and its release.

There a token is a word, and the prompt says "Copy:"; here it is a character, and "=" says so.
"""

from random import Random
from string import ascii_letters, digits

from lengthgen.tasks.base import Example, Task, counted, drawn, letters, positive

CHARACTERS = ascii_letters + digits


class Copy(Task):
    """Random characters, to be written again (cmc), `times` times over (cmc2x has 2)."""

    def __init__(self, *, alphabet: int, times: int) -> None:
        positive(times=times)
        self.characters = letters(alphabet, of=CHARACTERS)
        self.times = times
        self.alphabet = self.characters + "="
        self.has_places = times == 1

    def places(self, text: str) -> list[int]:
        """Returns the number of a character in the text, and of its copy."""
        return counted(text, self.characters, backwards=False)

    def example(self, length: int, random: Random) -> Example:
        text = drawn(self.characters, length, random)
        return Example(f"{text}=", text * self.times)


class CopyRepeat(Task):
    """One character, repeated (rsc); with `replace` another one as often (rdc): counting."""

    def __init__(self, *, alphabet: int, times: int, replace: bool) -> None:
        positive(times=times)
        self.characters = letters(alphabet, of=CHARACTERS)
        if replace and alphabet < 2:
            raise ValueError("replace=true needs an alphabet of 2 or more")
        self.times, self.replace = times, replace
        self.alphabet = self.characters + "=>"

    def example(self, length: int, random: Random) -> Example:
        one = drawn(self.characters, 1, random)
        if not self.replace:
            return Example(f"{one * length}=", one * (length * self.times))
        other = drawn(self.characters.replace(one, ""), 1, random)
        return Example(f"{one * length}>{other}=", other * (length * self.times))


class Reverse(Task):
    """Random characters, to be written from the last to the first (mc)."""

    has_places = True

    def __init__(self, *, alphabet: int) -> None:
        self.characters = letters(alphabet, of=CHARACTERS)
        self.alphabet = self.characters + "="

    def places(self, text: str) -> list[int]:
        """Returns the number of a character, 1 the last, as it is in the answer."""
        return counted(text, self.characters, backwards=True)

    def example(self, length: int, random: Random) -> Example:
        text = drawn(self.characters, length, random)
        return Example(f"{text}=", text[::-1])
