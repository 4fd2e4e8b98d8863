"""The registry of tasks: every Task in a file of rules/, by its name in snake case."""

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from lengthgen.config import registry as classes
from lengthgen.config.plugins import Plugin
from lengthgen.config.schema import TaskCorpus
from lengthgen.tasks import rules
from lengthgen.tasks.base import END, Example, Task

__all__ = ["END", "Example", "Task", "build", "majority_accuracy", "registry", "task_of"]

MAJORITY_EXAMPLES = 300  # of each length


def registry(plugins: Sequence[Plugin] = ()) -> dict[str, type[Task]]:
    """Returns all tasks by name: those of rules/ and the plugins'.

    Raises UserError for a plugin that fails, and for two tasks of one name.
    """
    return classes.registered(classes.modules_of(rules.__name__, rules.__path__), Task, plugins)


def build(
    kind: str, arguments: Mapping[str, Any], *, where: str, plugins: Sequence[Plugin] = ()
) -> Task:
    """Builds a task from its arguments; no plugin is run for a task of the package.

    Raises UserError for an unknown task, arguments that do not fit its signature, or a value that
    it refuses.
    """
    known = registry()
    known = known if kind in known else registry(plugins)
    return classes.build(Task, known, kind, arguments, where=where)


def task_of(corpus: TaskCorpus) -> Task:
    """Returns the task of a corpus. Raises UserError as `build` does."""
    spec = corpus.task
    return build(spec.kind, spec.arguments, where="task", plugins=corpus.plugins)


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
