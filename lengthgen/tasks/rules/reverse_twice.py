"""Reversing twice, after the NoPE suite (mcrv): Kazemnejad et al. 2023, arXiv 2305.19466.

There a token is a word, and [NEXT] stands between the two texts. Here a token is a character, and
nothing does, as in `copy_2x`.
"""

from random import Random

from lengthgen.tasks.base import Example, Task, first_characters, random_text
from lengthgen.tasks.rules.copy import CHARACTERS


class ReverseTwice(Task):
    """Random characters, to be written from the last to the first, and that text reversed again."""

    def __init__(self, *, alphabet: int) -> None:
        self.characters = first_characters(alphabet, of=CHARACTERS)
        self.alphabet = self.characters + "="

    def example(self, length: int, random: Random) -> Example:
        text = random_text(self.characters, length, random)
        return Example(f"{text}=", text[::-1] + text)
