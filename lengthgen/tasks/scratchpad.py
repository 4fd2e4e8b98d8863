"""Scratchpads: the steps of a computation in five parts, each of which can be left out.

After Kazemnejad et al. 2023, arXiv 2305.19466, section 5 and figure 4, whose parts are words; here
they are characters. An answer is its steps, one after another, then "#" and the result.

part  in a step of 57+68, the second        there
I     5,6         what is read              "For digits 5, 6"
C     :5+6+1      what is computed          "We have: ( 5 + 6 + carry ) % 10"
O     =2          its output                "== 2"
V     ;1          what is carried on        ". and currently, carry: 1"
R     |+          what is left to read      "So, the rest is: ..."
"""

from collections.abc import Iterable
from typing import NamedTuple

from lengthgen.tasks.base import Task

PARTS = "ICOVR"
BEFORE = ("", ":", "=", ";", "|")  # before each part
BETWEEN, RESULT = "&", "#"


class Step(NamedTuple):
    """The five parts of one step, as text."""

    read: str
    computed: str
    output: str
    carried: str
    rest: str


class ScratchpadTask(Task):
    """A task whose answers may begin with the steps to them, of the parts that are named."""

    characters = ""  # of prompts and results
    of_steps = ""  # further ones of steps
    guess = 0.0  # `chance` without a scratchpad

    def __init__(self, *, scratchpad: str) -> None:
        if len(set(scratchpad)) < len(scratchpad) or not set(scratchpad) <= set(PARTS):
            raise ValueError(f"scratchpad={scratchpad!r} is not made of {PARTS}, each at most once")
        added = "".join(BEFORE) + BETWEEN + RESULT + self.of_steps if scratchpad else ""
        self.parts, self.alphabet = scratchpad, self.characters + added
        self.chance = 0.0 if scratchpad else self.guess


def result_of(answer: str) -> str | None:
    """Returns what follows the scratchpad of an answer; None if nothing marks a result."""
    return answer.rpartition(RESULT)[2] if RESULT in answer else None


def format_steps(steps: Iterable[Step], result: str, *, parts: str) -> str:
    """Returns the steps' parts in the order I, C, O, V, R, and the result; that alone if none."""
    if not parts:
        return result
    texts = (
        "".join(
            sign + text
            for part, sign, text in zip(PARTS, BEFORE, step, strict=True)
            if part in parts
        )
        for step in steps
    )
    return BETWEEN.join(texts) + RESULT + result
