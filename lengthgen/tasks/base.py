"""Task, the rule that makes examples of any length; Example, a prompt and the answer to it."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from random import Random
from string import ascii_letters, digits
from typing import Annotated, NamedTuple

from pydantic import Field

from lengthgen.errors import suggestion

CHARACTERS = ascii_letters + digits
Alphabet = Annotated[int, Field(ge=1, le=len(CHARACTERS))]  # of CHARACTERS, the first ones
Count = Annotated[int, Field(ge=1, le=4096)]
Fraction = Annotated[float, Field(ge=0, le=1)]
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
    aligned = ""  # characters with alignment ids, for parts that read them (upper bounds)
    aligned_backwards = False  # in the prompt, from the last character of a run to its first
    commutes = ""  # the sign between terms of a prompt whose order does not matter
    parts = ""  # of the scratchpad before the result, as tasks/scratchpad.py names them

    def canonical_prompt(self, prompt: str) -> str:
        """Returns one text for all equivalent prompts: all of them are tests, or none."""
        if not self.commutes:
            return prompt
        return self.commutes.join(sorted(prompt[: -len(self.prompt_end)].split(self.commutes)))

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

        From 1 on, by the place in a run of `aligned`; 0 for characters between, such as operators.
        The text is a prompt, or a prompt and what follows; later characters change no earlier id.
        """
        ids: list[int] = []
        in_prompt, n = True, 0
        for i, character in enumerate(text):
            n = n + 1 if character in self.aligned else 0
            ids.append(n)
            if n == 0 and self.aligned_backwards and in_prompt:
                start = i - (ids[i - 1] if i else 0)
                ids[start:i] = reversed(ids[start:i])
            in_prompt = in_prompt and not text.endswith(self.prompt_end, 0, i + 1)
        return ids

    @abstractmethod
    def example(self, length: int, random: Random) -> Example:
        """Returns an example of this length, from `random` alone."""


class TextTask(Task):
    """Random characters; a subclass says what is to be written for them."""

    def __init__(self, *, alphabet: Alphabet) -> None:
        self.characters = CHARACTERS[:alphabet]
        self.alphabet = self.characters + "="

    def example(self, length: int, random: Random) -> Example:
        text = random_text(self.characters, length, random)
        return Example(f"{text}=", self.written(text))

    @abstractmethod
    def written(self, text: str) -> str:
        """Returns the answer for a text."""


class WordTask(Task):
    """A task in words, which prompts and answers write as the characters that `signs` has."""

    form = "[^=]"  # of a word's characters, as a regular expression

    def __init__(self, signs: Mapping[str, str]) -> None:
        self.signs = signs
        self.alphabet = "".join(dict.fromkeys("".join(signs.values()))) + "="

    def example_of(self, prompt: Iterable[str], answer: Iterable[str]) -> Example:
        """Returns the example of these words."""
        asked, done = ("".join(map(self.signs.__getitem__, words)) for words in (prompt, answer))
        return Example(f"{asked}=", done)

    def detokenize(self, text: str) -> str:
        words = {sign: word for word, sign in self.signs.items()}
        parts: list[str] = re.findall(f"=|{self.form}", text)
        return " ".join(words.get(part, part) for part in parts)

    def tokenize(self, text: str) -> str:
        words, signs = text.replace("=", " = ").split(), {**self.signs, "=": "="}
        for word in words:
            if word not in signs:
                raise ValueError(f"no word {word!r}; {suggestion(word, signs)}")
        return "".join(signs[word] for word in words)


def random_text(alphabet: str, n: int, random: Random) -> str:
    """Returns n characters, each one drawn independently from the alphabet."""
    return "".join(random.choices(alphabet, k=n))


def distinct_characters(alphabet: str, n: int, random: Random) -> str:
    """Returns n different characters. Raises ValueError if the alphabet has fewer."""
    if n > len(alphabet):
        raise ValueError(f"there are {len(alphabet)} different names, and {n} are needed")
    return "".join(random.sample(alphabet, n))
