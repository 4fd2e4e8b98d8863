"""Formal languages: texts for automata with a state, a stack or a tape.

After Deletang et al. 2022, arXiv 2207.02098, and its release; for Dyck see its docstring.
"""

from random import Random
from string import digits
from typing import Annotated

from pydantic import Field

from lengthgen.tasks.base import Count, Example, Task, TextTask, random_text

BRACKETS = ("()", "[]", "{}", "<>")


class EvenPairs(Task):
    """Whether the number of 01s and 10s among fair bits is even (0) or odd (1)."""

    unit = "bits"
    alphabet = "01="
    chance = 1 / 2

    def example(self, length: int, random: Random) -> Example:
        bits = random_text("01", length, random)
        return Example(f"{bits}=", str((bits.count("01") + bits.count("10")) % 2))


class CycleNavigation(Task):
    """Steps along a cycle of `states`, from 0: ahead (+), back (-), none (0); for where they end.

    There are 5 states in the paper.
    """

    unit = "steps"

    def __init__(self, *, states: Annotated[int, Field(ge=2, le=len(digits))]) -> None:
        self.states, self.chance = states, 1 / states
        self.alphabet = "+-=" + digits[:states]

    def example(self, length: int, random: Random) -> Example:
        steps = random_text("+-0", length, random)
        return Example(f"{steps}=", str((steps.count("+") - steps.count("-")) % self.states))


class OddsFirst(TextTask):
    """Random characters: the first, third, fifth and so on, then the second, fourth and so on.

    As documented by the release; its code puts the second, fourth and so on first.
    """

    def written(self, text: str) -> str:
        return text[::2] + text[1::2]


class StackManipulation(Task):
    """A stack of 0s and 1s from its bottom, a colon, then what is pushed, or - where one is popped.

    The answer is the stack from its top. Popping an empty stack does nothing.
    """

    unit = "values and actions"
    alphabet = "01:-="

    def example(self, length: int, random: Random) -> Example:
        n_values = random.randint(1, max(1, length - 1))
        values = random_text("01", n_values, random)
        actions = random_text("01-", length - n_values, random)
        stack = values
        for action in actions:
            stack = stack[:-1] if action == "-" else stack + action
        return Example(f"{values}:{actions}=", stack[::-1])


class Dyck(Task):
    """Brackets of some kinds, opened and closed at random; those that close what is still open.

    At most `depth` are open at once: Dyck-(k, D) of Yao et al. 2021, arXiv 2105.11115, k=`kinds`.
    """

    unit = "brackets"

    def __init__(self, *, kinds: Annotated[int, Field(ge=1, le=4)], depth: Count) -> None:
        self.kinds, self.depth = BRACKETS[:kinds], depth
        self.alphabet = "".join(self.kinds) + "="

    def example(self, length: int, random: Random) -> Example:
        text, closing = "", ""
        for _ in range(length):
            if not closing or (len(closing) < self.depth and random.random() < 0.5):
                opened, closed = random.choice(self.kinds)
                text, closing = text + opened, closed + closing
            else:
                text, closing = text + closing[0], closing[1:]
        return Example(f"{text}=", closing)
