"""Tracing and counting, after RULER: Hsieh et al. 2024, arXiv 2404.06654, in single characters."""

from collections import Counter
from random import Random
from string import ascii_letters, ascii_lowercase, digits
from typing import Annotated

from pydantic import Field

from lengthgen.tasks.base import Example, Task, distinct_characters


class VariableTracking(Task):
    """a=7;b=a;c=3;?7= and the like: the letters that come to hold a digit, in order.

    `chains` digits begin a chain each; a letter of it is set to the one before. The chains are as
    long as each other, or one longer, and mixed at random.
    """

    unit = "assignments"

    def __init__(self, *, chains: Annotated[int, Field(ge=1, le=len(digits))]) -> None:
        self.chains = chains
        self.alphabet = ascii_letters + digits + "=;?"

    def example(self, length: int, random: Random) -> Example:
        names = distinct_characters(ascii_letters, length, random)
        values = distinct_characters(digits, self.chains, random)
        order = [i % self.chains for i in range(length)]
        random.shuffle(order)
        held, text = [""] * self.chains, ""
        for name, chain in zip(names, order, strict=True):
            text += f"{name}={held[chain][-1:] or values[chain]};"
            held[chain] += name
        queried = random.choice(order)
        return Example(f"{text}?{values[queried]}=", held[queried])


class FrequentWords(Task):
    """Letters, for the `most` most frequent; of equally frequent ones the first to come is first.

    The letter of rank r, in an order drawn for each example, is drawn in proportion to
    1 / r ** exponent. RULER's zeta distribution has 2, and its most frequent word is noise.
    """

    unit = "letters"

    def __init__(
        self,
        *,
        most: Annotated[int, Field(ge=1, le=len(ascii_lowercase))],
        exponent: Annotated[int, Field(ge=1, le=64)],
    ) -> None:
        self.most = most
        self.weights = [1 / rank**exponent for rank in range(1, len(ascii_lowercase) + 1)]
        self.alphabet = ascii_lowercase + "="

    def example(self, length: int, random: Random) -> Example:
        ranked = distinct_characters(ascii_lowercase, len(ascii_lowercase), random)
        text = "".join(random.choices(ranked, self.weights, k=length))
        frequent = Counter(text).most_common(self.most)  # in order of appearance where equal
        return Example(f"{text}=", "".join(letter for letter, _ in frequent))
