"""Retrieval: some part of the prompt is the answer, the rest is a distraction."""

from random import Random
from string import ascii_letters, ascii_lowercase, digits
from typing import Annotated

from pydantic import Field

from lengthgen.tasks.base import (
    CHARACTERS,
    Alphabet,
    Count,
    Example,
    Fraction,
    Task,
    distinct_characters,
    random_text,
)

NOISE = "."


class Mqar(Task):
    """Different letters, of `keys`, with a digit each; then up to `queries` of them, to be written
    again with their digits.

    Multi-query associative recall: Arora et al. 2023, arXiv 2312.04927. As there a value follows
    its key; the prompt lists the keys that are queried.
    """

    unit = "pairs"

    def __init__(self, *, keys: Annotated[int, Field(ge=1, le=52)], queries: Count) -> None:
        self.keys, self.queries = ascii_letters[:keys], queries
        self.alphabet = self.keys + digits + "|="

    def example(self, length: int, random: Random) -> Example:
        keys = distinct_characters(self.keys, length, random)
        values = random_text(digits, length, random)
        queried = random.sample(range(length), min(length, self.queries))
        pairs = "".join(key + value for key, value in zip(keys, values, strict=True))
        answer = "".join(keys[i] + values[i] for i in queried)
        return Example(f"{pairs}|{''.join(keys[i] for i in queried)}=", answer)


class Passkey(Task):
    """Random letters, among them # and a number of `key_digits` digits, for the number.

    Mohtashami and Jaggi 2023, arXiv 2305.16300, whose filler is a few sentences over and over.
    """

    unit = "letters around the number"

    def __init__(self, *, key_digits: Count) -> None:
        self.key_digits = key_digits
        self.alphabet = ascii_lowercase + digits + "#="

    def example(self, length: int, random: Random) -> Example:
        filler = random_text(ascii_lowercase, length, random)
        key = random_text(digits, self.key_digits, random)
        place = random.randint(0, length)
        return Example(f"{filler[:place]}#{key}{filler[place:]}=", key)


class SelectiveCopy(Task):
    """Up to `kept` random characters at random places, the rest dots: the characters, in order.

    Selective copying: Gu and Dao 2023, arXiv 2312.00752, section 4.1.1.
    """

    def __init__(self, *, alphabet: Alphabet, kept: Count) -> None:
        self.characters, self.kept = CHARACTERS[:alphabet], kept
        self.alphabet = self.characters + NOISE + "="

    def example(self, length: int, random: Random) -> Example:
        text = random_text(self.characters, min(self.kept, length), random)
        shown = [NOISE] * length
        places = sorted(random.sample(range(length), len(text)))
        for place, character in zip(places, text, strict=True):
            shown[place] = character
        return Example(f"{''.join(shown)}=", text)


class FlipFlop(Task):
    """w, i or r, each with a bit: written, ignored, or read; then r, for the bit written last.

    FFL(p): Liu et al. 2023, arXiv 2306.00946. The first is w; of the others this share, `ignored`,
    is i, and w and r are as frequent as each other. A bit behind r is the one written last.
    """

    unit = "instructions before the last"
    alphabet = "wir01"
    chance = 1 / 2
    prompt_end = "r"

    def __init__(self, *, ignored: Fraction) -> None:
        either = (1 - ignored) / 2
        self.shares = (either, ignored, either)

    def example(self, length: int, random: Random) -> Example:
        text, stored = "", ""
        for kind in ["w", *random.choices("wir", self.shares, k=length - 1)]:
            bit = stored if kind == "r" else random_text("01", 1, random)
            stored = bit if kind == "w" else stored
            text += kind + bit
        return Example(f"{text}r", stored)
