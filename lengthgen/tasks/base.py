"""Task, the rule that makes examples of any length; Example, a prompt and the answer to it."""

from abc import ABC, abstractmethod
from random import Random
from string import ascii_letters, digits
from typing import NamedTuple

CHARACTERS = ascii_letters + digits
END = "\n"  # ends every answer: a model that continues, or stops before, is wrong


class Example(NamedTuple):
    """What a model reads, and what it must write before END; a token per character."""

    prompt: str
    answer: str


class Task(ABC):
    """A task whose examples have a length. The keyword-only arguments are the schema of its YAML.

    A value that it cannot honour raises ValueError, as does a length without examples.
    """

    unit = "characters"  # what the length of an example counts
    chance = 0.0  # accuracy of a model that ignores the prompt, if known
    alphabet = ""  # the characters of all prompts and answers except END, in any order
    prompt_end = "="  # the end of every prompt
    has_alignment = False  # alignment_ids is defined; for parts that read it, upper bounds
    parts = ""  # of the scratchpad before the result, as tasks/scratchpad.py names them

    def canonical_prompt(self, prompt: str) -> str:
        """Returns one text for all equivalent prompts: all of them are tests, or none."""
        return prompt

    def detokenize(self, text: str) -> str:
        """Returns a prompt or an answer in readable form; the inverse of `tokenize`."""
        return text

    def tokenize(self, text: str) -> str:
        """Returns a readable text as characters of the alphabet; ValueError if there are none."""
        return text

    def data_key(self) -> str:
        """Returns what identifies the data of the examples, in addition to the code of the task."""
        return ""

    def augment(self, example: Example, random: Random) -> Example:
        """Returns an example as training shows it, by `random` alone; tests show it unchanged."""
        return example

    def alignment_ids(self, text: str) -> list[int]:
        """Returns an id of every character: those that correspond to each other have the same one.

        From 1 on; 0 for characters between, such as operators. The text is a prompt, or a prompt
        and what follows, an answer or not; later characters do not change earlier ids.
        """
        return [0] * len(text)

    @abstractmethod
    def example(self, length: int, random: Random) -> Example:
        """Returns an example of this length, from `random` alone."""


class TextTask(Task):
    """Random characters; a subclass says what is to be written for them."""

    def __init__(self, *, alphabet: int) -> None:
        self.characters = first_characters(alphabet, of=CHARACTERS)
        self.alphabet = self.characters + "="

    def example(self, length: int, random: Random) -> Example:
        text = random_text(self.characters, length, random)
        return Example(f"{text}=", self.written(text))

    @abstractmethod
    def written(self, text: str) -> str:
        """Returns the answer for a text."""


def check_range(least: int, most: int, /, **arguments: int) -> None:
    """Raises ValueError, with the name, for an argument outside of least..most."""
    for name, value in arguments.items():
        if not least <= value <= most:
            raise ValueError(f"{name}={value} is not from {least} to {most}")


def check_positive(**arguments: int) -> None:
    """Raises ValueError, with the name, for an argument below 1."""
    for name, value in arguments.items():
        if value < 1:
            raise ValueError(f"{name}={value} is not positive")


def first_characters(n: int, *, of: str) -> str:
    """Returns the first n characters. Raises ValueError if there are fewer."""
    check_range(1, len(of), alphabet=n)
    return of[:n]


def random_text(alphabet: str, n: int, random: Random) -> str:
    """Returns n characters, each one drawn independently from the alphabet."""
    return "".join(random.choices(alphabet, k=n))


def distinct_characters(alphabet: str, n: int, random: Random) -> str:
    """Returns n different characters. Raises ValueError if the alphabet has fewer."""
    if n > len(alphabet):
        raise ValueError(f"there are {len(alphabet)} different names, and {n} are needed")
    return "".join(random.sample(alphabet, n))


def number_runs(text: str, characters: str, *, backwards: bool) -> list[int]:
    """Returns alignment ids: each run of these characters is counted from 1, all others are 0.

    Backwards: in the prompt, which ends in "=", from the last one of a run to its first.
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
