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
    chance = 0.0  # share of right answers of a model that ignores the prompt, if known
    alphabet = ""  # the characters of all prompts and answers, END aside, in any order
    ends = "="  # what every prompt ends in
    has_places = False  # `places` says something; for parts that are told, upper bounds

    def meant(self, prompt: str) -> str:
        """Returns the same text for prompts that ask the same: all of them are tests, or none."""
        return prompt

    def spelled(self, text: str) -> str:
        """Returns a prompt or an answer as people are to read it; `abridged` takes it back."""
        return text

    def abridged(self, text: str) -> str:
        """Returns what people write as characters of the alphabet; ValueError if it has no such."""
        return text

    def source(self) -> str:
        """Returns what identifies data that examples come from, beside the rule's own code."""
        return ""

    def places(self, text: str) -> list[int]:
        """Returns the place of every character: those that belong together have the same number.

        From 1 on; 0 for characters between, such as signs. The text is a prompt, or that and what
        follows, an answer or not; what comes later changes no place of these.
        """
        return [0] * len(text)

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


def counted(text: str, characters: str, *, backwards: bool) -> list[int]:
    """Returns places: each run of these characters is counted from 1, all others are 0.

    Backwards: in the prompt, which "=" ends, from the last one of a run to its first.
    """
    found: list[int] = []
    prompt, n = True, 0
    for i, character in enumerate(text):
        if character in characters:
            n += 1
            found.append(n)
            continue
        if backwards and prompt:
            found[i - n :] = reversed(found[i - n :])
        prompt = prompt and character != "="
        found.append(0)
        n = 0
    return found
