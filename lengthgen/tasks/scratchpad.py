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

PARTS = "ICOVR"
SIGNS = ("", ":", "=", ";", "|")  # before each part
BETWEEN, RESULT = "&", "#"


class Step(NamedTuple):
    """The five parts of one step, as text."""

    read: str
    computed: str
    output: str
    carried: str
    rest: str


def validate_parts(parts: str) -> str:
    """Returns the parts unchanged. Raises ValueError if one is unknown or named twice."""
    if len(set(parts)) < len(parts) or not set(parts) <= set(PARTS):
        raise ValueError(f"scratchpad={parts!r} is not made of {PARTS}, each at most once")
    return parts


def scratchpad_alphabet(parts: str) -> str:
    """Returns the characters that a scratchpad of these parts adds to those of its texts."""
    return "".join(SIGNS) + BETWEEN + RESULT if parts else ""


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
            for part, sign, text in zip(PARTS, SIGNS, step, strict=True)
            if part in parts
        )
        for step in steps
    )
    return BETWEEN.join(texts) + RESULT + result
