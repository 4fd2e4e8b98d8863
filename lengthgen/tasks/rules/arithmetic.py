"""Arithmetic, after the NoPE suite (arXiv 2305.19466), with the later formats of addition.

Output reversed: Lee et al. 2023, arXiv 2307.03381; that with zero padding: Cho et al. 2024, arXiv
2405.20671; all reversed: McLeish et al. 2024, arXiv 2405.17399; that with index hints, random
spaces or both: Zhou et al. 2024, arXiv 2402.09371, the spaces after Shen et al. 2023, 2311.14737.
"""

import re
from random import Random
from string import ascii_letters, digits
from typing import Annotated, Literal

from pydantic import Field

from lengthgen.tasks.base import Count, Example, Fraction, Task, random_text
from lengthgen.tasks.scratchpad import ScratchpadTask, Step, format_steps

CARRY = 10  # the base
SPACE = "_"


class Addition(ScratchpadTask):
    """a+b, of which the longer has `length` digits and the other any number up to that.

    reverse: nothing, the sum ("output"), or all three numbers ("all"): the lowest digit first.
    pad: both numbers have `length` digits, the sum one more. hints: every digit has a letter before
    it that marks its place, from a random first letter on; lengths up to 51. spaces: the share of
    places between two digits of a, or of b, that hold a space, _, drawn for each. They are in
    training only: an augmentation. The papers' figure has them in the prompt alone and 2 in 4
    places; that there is at most one in a place, and none in tests, is our reading.
    """

    unit = "digits of the longer number"
    characters, of_steps = digits + "+=", ","

    def __init__(
        self,
        *,
        reverse: Literal["none", "output", "all"],
        pad: bool,
        hints: bool,
        scratchpad: str,
        spaces: Fraction = 0.0,
    ) -> None:
        self.reverse, self.pad, self.hints, self.spaces = reverse, pad, hints, spaces
        super().__init__(scratchpad=scratchpad)
        if self.parts and (hints or pad or spaces or reverse != "none"):
            raise ValueError("a scratchpad goes with plain addition only")
        self.alphabet += ascii_letters * hints + SPACE * bool(spaces)
        if reverse != "none" and not hints and not spaces:  # ids are place values, 1 the lowest
            self.aligned, self.aligned_backwards = digits, reverse != "all"

    def canonical_prompt(self, prompt: str) -> str:
        """Returns the sum with its numbers in order, without hints and spaces."""
        return "+".join(sorted(re.sub("[a-zA-Z=_]", "", prompt).split("+")))

    def augment(self, example: Example, random: Random) -> Example:
        """Returns the example with its spaces; a hint stays at its digit."""
        prompt = re.sub(
            r"(?<=\d)(?=\w)", lambda _: SPACE * (random.random() < self.spaces), example.prompt
        )
        return Example(prompt, example.answer)

    def example(self, length: int, random: Random) -> Example:
        sizes = [length, random.randint(1, length)]
        a, b = (_number(size, random) for size in random.sample(sizes, 2))
        total = str(int(a) + int(b))
        if self.pad:
            a, b, total = a.zfill(length), b.zfill(length), total.zfill(length + 1)
        if self.parts:
            steps = _added(a, b)
            return Example(f"{a}+{b}=", format_steps(steps, total, parts=self.parts))
        if self.reverse == "all":
            a, b = a[::-1], b[::-1]
        if self.reverse != "none":
            total = total[::-1]
        if self.hints:
            a, b, total = self._hinted((a, b, total), length, random)
        return Example(f"{a}+{b}=", total)

    def _hinted(
        self, numbers: tuple[str, str, str], length: int, random: Random
    ) -> tuple[str, ...]:
        if length + 1 > len(ascii_letters):
            raise ValueError(f"hints reach to {len(ascii_letters) - 1} digits, not to {length}")
        first = random.randrange(len(ascii_letters) - length)
        lowest_first = (self.reverse == "all", self.reverse == "all", self.reverse != "none")
        return tuple(
            "".join(
                ascii_letters[first + (i if low else len(number) - 1 - i)] + digit
                for i, digit in enumerate(number)
            )
            for number, low in zip(numbers, lowest_first, strict=True)
        )


class Modsum(ScratchpadTask):
    """The sum of digits from 1 to 9, modulo `modulus`."""

    unit = "terms"
    characters, commutes = digits + "+=", "+"

    def __init__(self, *, modulus: Annotated[int, Field(ge=2, le=CARRY)], scratchpad: str) -> None:
        self.modulus, self.guess = modulus, 1 / modulus
        super().__init__(scratchpad=scratchpad)

    def example(self, length: int, random: Random) -> Example:
        terms = random_text(digits[1:], length, random)
        steps: list[Step] = []
        total = 0
        for i, term in enumerate(terms):
            before, total = total, (total + int(term)) % self.modulus
            rest = "+".join(terms[i + 1 :])
            steps.append(Step(term, f"{before}+{term}", str(total), str(total), rest))
        answer = format_steps(steps, str(total), parts=self.parts)
        return Example(f"{'+'.join(terms)}=", answer)


class Parity(ScratchpadTask):
    """Whether the number of ones among fair bits is even (0) or odd (1)."""

    unit = "bits"
    characters, guess = "01=+", 1 / 2

    def example(self, length: int, random: Random) -> Example:
        bits = random_text("01", length, random)
        steps: list[Step] = []
        odd = 0
        for i, bit in enumerate(bits):
            before, odd = odd, odd ^ int(bit)
            steps.append(Step(bit, f"{before}+{bit}", str(odd), str(odd), bits[i + 1 :]))
        return Example(f"{bits}=", format_steps(steps, str(odd), parts=self.parts))


class Polynomial(ScratchpadTask):
    """V@ and terms such as -3x2, a coefficient and a degree: their sum at x=V, modulo 10.

    Coefficients are from -3 to 3, degrees from 0 to 3, V from -2 to 2. A step of the scratchpad has
    its term's value modulo 10 for output, and carries the sum on.
    """

    unit = "terms"
    characters, of_steps = digits + "@x+-=", "*"

    def canonical_prompt(self, prompt: str) -> str:
        """Returns the place, and the terms in order."""
        place, terms = prompt[:-1].split("@")
        return f"{place}@{sorted(re.findall('..x.', terms))}"

    def example(self, length: int, random: Random) -> Example:
        x = random.randint(-2, 2)
        pairs = [(random.randint(-3, 3), random.randint(0, 3)) for _ in range(length)]
        terms = [f"{coefficient:+}x{degree}" for coefficient, degree in pairs]
        steps: list[Step] = []
        total = 0
        for i, (coefficient, degree) in enumerate(pairs):
            power = x**degree
            total = (total + coefficient * power) % CARRY
            output, rest = str(coefficient * power % CARRY), "".join(terms[i + 1 :])
            steps.append(Step(terms[i], f"{coefficient:+}*{power:+}", output, str(total), rest))
        answer = format_steps(steps, str(total), parts=self.parts)
        return Example(f"{x:+}@{''.join(terms)}=", answer)


class Multiplication(Task):
    """a*b, of `length` and `by` digits. reverse: nothing, or the product, its lowest digit first.

    Nx2 is that of Cho et al. 2024, arXiv 2405.20671, with the product reversed.
    """

    unit = "digits of the first number"
    alphabet = digits + "*="
    commutes = "*"

    def __init__(self, *, by: Count, reverse: Literal["none", "output"]) -> None:
        self.by, self.reverse = by, reverse

    def example(self, length: int, random: Random) -> Example:
        a, b = _number(length, random), _number(self.by, random)
        product = str(int(a) * int(b))
        return Example(f"{a}*{b}=", product if self.reverse == "none" else product[::-1])


class BitwiseOr(Task):
    """a|b, of which the longer has `length` bits, the other any number: OR from the first bit on.

    Where the shorter has ended, the bits are those of the longer. McLeish et al. 2024, arXiv
    2405.17399.
    """

    unit = "bits of the longer number"
    alphabet = "01|="
    aligned = "01"
    commutes = "|"

    def example(self, length: int, random: Random) -> Example:
        sizes = random.sample([length, random.randint(1, length)], 2)
        a, b = (random_text("01", size, random) for size in sizes)
        bits = zip(a.ljust(length, "0"), b.ljust(length, "0"), strict=True)
        return Example(f"{a}|{b}=", "".join(max(pair) for pair in bits))


def _number(n_digits: int, random: Random) -> str:
    """Returns a number of so many digits; it does not begin with 0 unless it is one digit."""
    first = random_text(digits if n_digits == 1 else digits[1:], 1, random)
    return first + random_text(digits, n_digits - 1, random)


def _added(a: str, b: str) -> list[Step]:
    """Returns the steps of an addition by columns, the lowest first."""
    n = max(len(a), len(b))
    tops, bottoms, carry = a.zfill(n), b.zfill(n), 0
    steps: list[Step] = []
    for i in reversed(range(n)):
        total = int(tops[i]) + int(bottoms[i]) + carry
        computed = f"{tops[i]}+{bottoms[i]}+{carry}"
        carry = total // CARRY
        rest = f"{tops[:i]}+{bottoms[:i]}"
        read = f"{tops[i]},{bottoms[i]}"
        steps.append(Step(read, computed, str(total % CARRY), str(carry), rest))
    return steps
