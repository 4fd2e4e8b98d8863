"""The registry of tasks: every Task in a file of this directory, by its name in snake case."""

import importlib
import pkgutil
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from lengthgen.config import sections
from lengthgen.config.schema import TaskCorpus
from lengthgen.errors import UserError, suggestion
from lengthgen.tasks.base import END, Example, Task

__all__ = ["END", "Example", "Task", "build", "majority_accuracy", "registry", "task_of"]

MAJORITY_EXAMPLES = 300  # of each length


def registry() -> dict[str, type[Task]]:
    """Returns all tasks by name."""
    modules = [
        importlib.import_module(f"{__name__}.{found.name}")
        for found in pkgutil.iter_modules(__path__)
        if found.name != "base"
    ]
    return {
        re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower(): value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, Task)
        and value.__module__ == module.__name__
    }


def build(kind: str, arguments: Mapping[str, Any], *, where: str) -> Task:
    """Builds a task from its arguments.

    Raises UserError for an unknown task, arguments that do not fit its signature, or a value that
    it refuses.
    """
    known = registry()
    if kind not in known:
        raise UserError(f"{where}.kind: no task {kind!r}; {suggestion(kind, known)}")
    made = known[kind]
    held = sections.arguments(made, arguments, where=f"{where}.arguments")
    try:
        return made(**held)
    except ValueError as error:
        raise UserError(f"{where}.arguments: {error}") from None


def task_of(corpus: TaskCorpus) -> Task:
    """Returns what makes a corpus's examples. Raises UserError as `build` does."""
    return build(corpus.task.kind, corpus.task.arguments, where="task")


def majority_accuracy(rule: Task, lengths: Sequence[int]) -> float:
    """Returns the share of right answers of a model that knows each length's commonest answer.

    The mean over the lengths, over new examples: about the best that is possible without reading
    the prompt.
    """
    shares: list[float] = []
    for length in lengths:
        random = Random(length)
        answers = Counter(rule.example(length, random).answer for _ in range(MAJORITY_EXAMPLES))
        shares.append(answers.most_common(1)[0][1] / MAJORITY_EXAMPLES)
    return sum(shares) / len(shares) if shares else 0.0
