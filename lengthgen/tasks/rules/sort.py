"""Sorting, after the NoPE suite (arXiv 2305.19466): single characters, or numbers of 4 digits."""

from random import Random
from string import ascii_letters, digits
from typing import Literal

from lengthgen.tasks.base import Example, random_text
from lengthgen.tasks.scratchpad import ScratchpadTask, Step, format_steps

LARGEST_NUMBER = 9999


class Sort(ScratchpadTask):
    """Letters (in the order of ASCII) or numbers up to 9999, to be written from the least on."""

    unit = "items"

    def __init__(self, *, items: Literal["letters", "numbers"], scratchpad: str) -> None:
        self.items = items
        self.characters = (ascii_letters if items == "letters" else digits + ",") + "="
        super().__init__(scratchpad=scratchpad)

    def example(self, length: int, random: Random) -> Example:
        if self.items == "letters":
            left, key, joint = list(random_text(ascii_letters, length, random)), ord, ""
        else:
            left = [str(random.randint(0, LARGEST_NUMBER)) for _ in range(length)]
            key, joint = int, ","
        prompt, steps, ordered = f"{joint.join(left)}=", list[Step](), list[str]()
        while left:
            least, before = min(left, key=key), joint.join(left)
            left.remove(least)
            ordered.append(least)
            steps.append(Step(before, least, least, joint.join(ordered), joint.join(left)))
        return Example(prompt, format_steps(steps, joint.join(ordered), parts=self.parts))
