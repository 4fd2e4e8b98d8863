"""Task, the rule that makes examples of any length; Example, a prompt and the answer to it."""

from abc import ABC, abstractmethod
from random import Random
from typing import NamedTuple

END = "\n"  # ends every answer: a model that goes on, or stops before, is wrong


class Example(NamedTuple):
    """What a model is given, and what it must write before END; a token per character."""

    prompt: str
    answer: str


class Task(ABC):
    """A task whose examples have a length. The keyword-only arguments are the schema of its YAML.

    A value that it cannot honour raises ValueError, as does a length it has no example of.
    """

    unit = "characters"  # what the length of an example counts
    chance = 0.0  # share of the answers that a model which ignores the prompt can get right
    alphabet = ""  # the characters of all prompts and answers, END aside, in any order

    @abstractmethod
    def example(self, length: int, random: Random) -> Example:
        """Returns an example of this length, from `random` alone."""


def within(least: int, most: int, /, **arguments: int) -> None:
    """Raises ValueError, with the name, for an argument outside of least..most."""
    for name, value in arguments.items():
        if not least <= value <= most:
            raise ValueError(f"{name}={value} is not from {least} to {most}")


def positive(**arguments: int) -> None:
    """Raises ValueError, with the name, for an argument below 1."""
    for name, value in arguments.items():
        if value < 1:
            raise ValueError(f"{name}={value} is not positive")


def letters(n: int, *, of: str) -> str:
    """Returns the first n characters. Raises ValueError if there are fewer."""
    within(1, len(of), alphabet=n)
    return of[:n]


def drawn(alphabet: str, n: int, random: Random) -> str:
    """Returns n characters, each drawn from the alphabet alone."""
    return "".join(random.choices(alphabet, k=n))


def distinct(alphabet: str, n: int, random: Random) -> str:
    """Returns n different characters. Raises ValueError if the alphabet has fewer."""
    if n > len(alphabet):
        raise ValueError(f"there are {len(alphabet)} different names, and {n} are asked")
    return "".join(random.sample(alphabet, n))
