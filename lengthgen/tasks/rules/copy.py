"""Copying, after the NoPE suite: Kazemnejad et al. 2023, arXiv 2305.19466, and its release.

There a token is a word, and a prompt begins with "Copy:". Here a token is a character, and a prompt
ends in "=".
"""

from random import Random

from lengthgen.tasks.base import CHARACTERS, Alphabet, Count, Example, Task, TextTask, random_text


class Copy(TextTask):
    """Random characters, to be written again (cmc), `times` times over (cmc2x has 2)."""

    def __init__(self, *, alphabet: Alphabet, times: Count) -> None:
        super().__init__(alphabet=alphabet)
        self.times = times
        self.aligned = self.characters if times == 1 else ""

    def written(self, text: str) -> str:
        return text * self.times


class CopyRepeat(Task):
    """One character, repeated (rsc); with `replace` another one as often (rdc): counting."""

    def __init__(self, *, alphabet: Alphabet, times: Count, replace: bool) -> None:
        self.characters = CHARACTERS[:alphabet]
        if replace and alphabet < 2:
            raise ValueError("replace=true needs an alphabet of 2 or more")
        self.times, self.replace = times, replace
        self.alphabet = self.characters + "=>"

    def example(self, length: int, random: Random) -> Example:
        letter = random_text(self.characters, 1, random)
        if not self.replace:
            return Example(f"{letter * length}=", letter * (length * self.times))
        other = random_text(self.characters.replace(letter, ""), 1, random)
        return Example(f"{letter * length}>{other}=", other * (length * self.times))


class Reverse(TextTask):
    """Random characters, to be written from the last to the first (mc)."""

    aligned_backwards = True

    def __init__(self, *, alphabet: Alphabet) -> None:
        super().__init__(alphabet=alphabet)
        self.aligned = self.characters

    def written(self, text: str) -> str:
        return text[::-1]


class ReverseTwice(TextTask):
    """Random characters, to be written from the last to the first, and that text reversed (mcrv).

    There [NEXT] stands between the two texts, here nothing does.
    """

    def written(self, text: str) -> str:
        return text[::-1] + text
