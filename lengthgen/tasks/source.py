"""Examples of a task as documents: training up to one length, tests of every length."""

import inspect
from collections.abc import Iterator, Sequence
from random import Random
from typing import Self

from lengthgen.config import schema
from lengthgen.config.plugins import Plugin
from lengthgen.config.registry import code_of, errors_of
from lengthgen.data.sources import Document, Source, name_hash
from lengthgen.errors import UserError
from lengthgen.files import hash_of
from lengthgen.tasks import END, Example, Task, alignment_ids, base, scratchpad, task_of

HELD_OUT = 5  # one prompt in so many is for tests
MOST_REFUSED = 1000  # draws one after another that are all held out
TRIES = 40  # draws for each test: there are few short prompts


class TaskSource(Source):
    """Examples by the rule of a task, a function of the configuration alone.

    Training lengths are uniform from 1 to task.length, but for what is held out. The tests of one
    length are different prompts, fewer where not so many are found. No prompt is in both splits.
    """

    def __init__(self, spec: schema.TaskSpec, rule: Task) -> None:
        self.spec, self.rule = spec, rule
        self.characters = "".join(sorted({*rule.alphabet, END}))
        self.alignment_ids = alignment_ids(rule)

    @classmethod
    def of(cls, corpus: schema.Corpus, plugins: Sequence[Plugin]) -> tuple[Self, schema.Corpus]:
        assert isinstance(corpus, schema.TaskCorpus)
        rule, spec = task_of(corpus.task, plugins)
        return cls(spec, rule), corpus.model_copy(update={"task": spec})

    def data_key(self) -> str:
        """Returns the hash of the code and the data that the examples are made from."""
        modules = (base, scratchpad)
        with errors_of(type(self.rule), where="task.kind"):
            of_rule = self.rule.data_key()
        texts = [code_of(type(self.rule)), *map(inspect.getsource, modules), of_rule]
        return hash_of("\0".join(texts))

    def read(self, *, held_out: bool) -> Iterator[Document]:
        with errors_of(type(self.rule), where="task.kind"):
            yield from self._tests() if held_out else self._training()

    def _training(self) -> Iterator[Document]:
        spec, rule, random = self.spec, self.rule, Random(f"train {self.spec.seed}")
        made = refused = 0
        while made < spec.examples:
            if refused > MOST_REFUSED:
                raise UserError(
                    f"task.length={spec.length}: {spec.name} has few prompts up to this length, or "
                    "none that is not held out for tests; give another length"
                )
            length = random.randint(1, spec.length)
            example = _made(rule, length, random)
            if example is not None and not is_held_out(rule.canonical_prompt(example.prompt)):
                yield _document(rule.augment(example, random), length, f"train:{made}")
                made, refused = made + 1, 0
            else:
                refused += 1

    def _tests(self) -> Iterator[Document]:
        spec, rule, random = self.spec, self.rule, Random(f"tests {self.spec.seed}")
        for length in range(1, spec.longest + 1):
            tests: dict[str, Example] = {}
            for _ in range(TRIES * spec.examples_per_length):
                example = _made(rule, length, random)
                if example is None:
                    break
                prompt = rule.canonical_prompt(example.prompt)
                if length > spec.length or is_held_out(prompt):
                    tests.setdefault(prompt, example)
                if len(tests) == spec.examples_per_length:
                    break
            for i, example in enumerate(tests.values()):
                yield _document(example, length, f"length {length}:{i}")


def is_held_out(canonical_prompt: str) -> bool:
    """True if prompts that are equivalent to this one are for tests only."""
    return name_hash(canonical_prompt) % HELD_OUT == 0


def _made(rule: Task, length: int, random: Random) -> Example | None:
    """Returns an example, None if the rule has none of this length."""
    try:
        return rule.example(length, random)
    except ValueError:
        return None


def _document(example: Example, length: int, name: str) -> Document:
    text = example.prompt + example.answer + END
    return Document(name=name, text=text, prompt_bytes=len(example.prompt), length=length)
