"""Formal languages: what an automaton with a state, a stack or a tape can say of a text.

After Deletang et al. 2022, arXiv 2207.02098, and its release; Dyck has a source of its own.
"""

from random import Random
from string import ascii_letters, digits

from lengthgen.tasks.base import Example, Task, drawn, letters, positive, within

BRACKETS = ("()", "[]", "{}", "<>")


class EvenPairs(Task):
    """Whether the number of 01s and 10s among fair bits is even (0) or odd (1)."""

    unit = "bits"
    alphabet = "01="
    chance = 1 / 2

    def example(self, length: int, random: Random) -> Example:
        bits = drawn("01", length, random)
        return Example(f"{bits}=", str((bits.count("01") + bits.count("10")) % 2))


class CycleNavigation(Task):
    """Steps along a cycle of `states`, from 0: ahead (+), back (-), none (0); for where they end.

    There are 5 states in the paper.
    """

    unit = "steps"

    def __init__(self, *, states: int) -> None:
        within(2, len(digits), states=states)
        self.states, self.chance = states, 1 / states
        self.alphabet = "+-=" + digits[:states]

    def example(self, length: int, random: Random) -> Example:
        steps = drawn("+-0", length, random)
        return Example(f"{steps}=", str((steps.count("+") - steps.count("-")) % self.states))


class OddsFirst(Task):
    """Random characters: the first, third, fifth and so on, then the second, fourth and so on.

    As the release says; its code has the second, fourth and so on first.
    """

    def __init__(self, *, alphabet: int) -> None:
        self.characters = letters(alphabet, of=ascii_letters + digits)
        self.alphabet = self.characters + "="

    def example(self, length: int, random: Random) -> Example:
        text = drawn(self.characters, length, random)
        return Example(f"{text}=", text[::2] + text[1::2])


class StackManipulation(Task):
    """A stack of 0s and 1s from its bottom, a colon, then what is pushed, or - where one is popped.

    The answer is the stack from its top. Popping an empty stack does nothing.
    """

    unit = "values and actions"
    alphabet = "01:-="

    def example(self, length: int, random: Random) -> Example:
        n_values = random.randint(1, max(1, length - 1))
        values = drawn("01", n_values, random)
        actions = drawn("01-", length - n_values, random)
        stack = values
        for action in actions:
            stack = stack[:-1] if action == "-" else stack + action
        return Example(f"{values}:{actions}=", stack[::-1])


class Dyck(Task):
    """Brackets of some kinds, opened and closed at random; those that close what is still open.

    At most `depth` are open at once: Dyck-(k, D) of Yao et al. 2021, arXiv 2105.11115, k=`kinds`.
    """

    unit = "brackets"

    def __init__(self, *, kinds: int, depth: int) -> None:
        within(1, len(BRACKETS), kinds=kinds)
        positive(depth=depth)
        self.kinds, self.depth = BRACKETS[:kinds], depth
        self.alphabet = "".join(self.kinds) + "="

    def example(self, length: int, random: Random) -> Example:
        said, closing = "", ""
        for _ in range(length):
            if not closing or (len(closing) < self.depth and random.random() < 0.5):
                opened, closed = random.choice(self.kinds)
                said, closing = said + opened, closed + closing
            else:
                said, closing = said + closing[0], closing[1:]
        return Example(f"{said}=", closing)
