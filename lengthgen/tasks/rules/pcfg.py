"""PCFG SET, edits of strings composed: Hupkes et al. 2020, arXiv 1908.08351, section 4.

There a probabilistic grammar fitted to English sets lengths and depths. Here the length is the
number of operations, as in the paper's productivity split; all trees are drawn by splitting it at
random, and operations and the sizes of strings are uniform.
"""

from collections.abc import Callable, Mapping
from itertools import product
from random import Random
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Annotated

from pydantic import Field

from lengthgen.tasks.base import Count, Example, WordTask

WordList = list[str]

UNARY: Mapping[str, Callable[[WordList], WordList]] = {
    "copy": lambda x: x,
    "reverse": lambda x: x[::-1],
    "shift": lambda x: x[1:] + x[:1],
    "swap_first_last": lambda x: x[-1:] + x[1:-1] + x[:1] if len(x) > 1 else x,
    "repeat": lambda x: x + x,
    "echo": lambda x: x + x[-1:],
}
ON_TWO: Mapping[str, Callable[[WordList, WordList], WordList]] = {
    "append": lambda x, y: x + y,
    "prepend": lambda x, y: y + x,
    "remove_first": lambda x, y: y,
    "remove_second": lambda x, y: x,
}
OPERATIONS = (*UNARY, *ON_TWO)
LONGEST = 256  # operations: of longer trees few have a short answer
NUMBERED = 20  # symbols of one letter: A1 to A20
SYMBOLS = [f"{letter}{n}" for letter in ascii_uppercase for n in range(1, 1 + NUMBERED)]
SIGNS = {  # the characters of a word: a digit, a comma, or two letters
    **dict(zip(OPERATIONS, digits, strict=True)),
    ",": ",",
    **dict(
        zip(
            SYMBOLS, map("".join, product(ascii_uppercase, ascii_lowercase[:NUMBERED])), strict=True
        )
    ),
}


class Pcfg(WordTask):
    """Operations before their strings, such as append reverse A1 B2 , C3, for the string made.

    Strings have up to `string` of the first `symbols` symbols. Examples whose answer has more than
    `answer` are drawn again.
    """

    unit = "operations"
    form = "[A-Z].?|."

    def __init__(
        self,
        *,
        symbols: Annotated[int, Field(ge=1, le=len(SYMBOLS))],
        string: Annotated[int, Field(ge=1, le=64)],
        answer: Count,
    ) -> None:
        if answer < 2 * string:  # so that every length has examples
            raise ValueError(f"answer={answer} is below {2 * string}, twice string={string}")
        self.symbols, self.string, self.answer = SYMBOLS[:symbols], string, answer
        super().__init__({word: SIGNS[word] for word in (*OPERATIONS, ",", *self.symbols)})

    def example(self, length: int, random: Random) -> Example:
        if length > LONGEST:
            raise ValueError(f"trees have up to {LONGEST} operations, not {length}")
        while True:
            prompt, answer = self._tree(length, random)
            if len(answer) <= self.answer:
                return self.example_of(prompt, answer)

    def _tree(self, n: int, random: Random) -> tuple[WordList, WordList]:
        """Returns the words of n operations and their arguments, and what they make."""
        if n == 0:
            drawn = random.choices(self.symbols, k=random.randint(1, self.string))
            return drawn, drawn
        name = random.choice(OPERATIONS)
        if name in UNARY:
            words, value = self._tree(n - 1, random)
            return [name, *words], UNARY[name](value)
        in_first = random.randrange(n)
        (one, x), (other, y) = self._tree(in_first, random), self._tree(n - 1 - in_first, random)
        return [name, *one, ",", *other], ON_TWO[name](x, y)
