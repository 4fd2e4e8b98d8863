"""Copying, after the NoPE suite: Kazemnejad et al. 2023, arXiv 2305.19466, and its release.

There a token is a word, and a prompt begins with "Copy:". Here a token is a character, and a prompt
ends in "=".
"""

from random import Random

from lengthgen.tasks.base import (
    CHARACTERS,
    Example,
    Task,
    TextTask,
    check_positive,
    first_characters,
    number_runs,
    random_text,
)


class Copy(TextTask):
    """Random characters, to be written again (cmc), `times` times over (cmc2x has 2)."""

    def __init__(self, *, alphabet: int, times: int) -> None:
        super().__init__(alphabet=alphabet)
        check_positive(times=times)
        self.times = times
        self.has_alignment = times == 1

    def alignment_ids(self, text: str) -> list[int]:
        """Returns the number of every character in its text, from 1."""
        return number_runs(text, self.characters, backwards=False)

    def written(self, text: str) -> str:
        return text * self.times


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


class Reverse(TextTask):
    """Random characters, to be written from the last to the first (mc)."""

    has_alignment = True

    def alignment_ids(self, text: str) -> list[int]:
        """Returns the number of every character, 1 for the last one of the prompt."""
        return number_runs(text, self.characters, backwards=True)

    def written(self, text: str) -> str:
        return text[::-1]


class ReverseTwice(TextTask):
    """Random characters, to be written from the last to the first, and that text reversed (mcrv).

    There [NEXT] stands between the two texts, here nothing does.
    """

    def written(self, text: str) -> str:
        return text[::-1] + text
