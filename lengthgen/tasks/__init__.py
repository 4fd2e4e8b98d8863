"""The registry of tasks: every Task in a file of rules/, by its name in snake case."""

from collections.abc import Sequence

from lengthgen.config import registry as classes
from lengthgen.config.plugins import Plugin
from lengthgen.config.schema import AlignmentIds, TaskSpec
from lengthgen.config.sections import arguments
from lengthgen.tasks import rules
from lengthgen.tasks.base import END, Example, Task

__all__ = ["END", "Example", "Task", "alignment_ids", "task_classes", "task_of"]


def task_classes(plugins: Sequence[Plugin] = ()) -> dict[str, type[Task]]:
    """Returns all tasks by name: those of rules/ and the plugins'.

    Raises UserError for a plugin that fails, and for two tasks of one name.
    """
    return classes.registered(classes.modules_of(rules.__name__, rules.__path__), Task, plugins)


def task_of(spec: TaskSpec, plugins: Sequence[Plugin] = ()) -> tuple[Task, TaskSpec]:
    """Returns the task, and what is given of it with its arguments in their types.

    No plugin is run for a task of the package. Raises UserError for an unknown task, arguments that
    do not fit its signature, or a value that it refuses.
    """
    known = task_classes()
    known = known if spec.kind in known else task_classes(plugins)
    kind = classes.class_named(spec.kind, known, plugins, what="task", where="task.kind")
    held = arguments(kind, spec.arguments, where="task.arguments")
    rule = classes.construct(kind, held, where="task.arguments")
    return rule, spec.model_copy(update={"arguments": held})


def alignment_ids(rule: Task) -> AlignmentIds | None:
    """Returns the alignment ids of tokens as a function of them; None for tasks without any.

    A leading bos token has id -1; elsewhere it counts as a character between.
    """
    if not rule.aligned:
        return None
    characters = sorted({*rule.alphabet, END})
    bos = len(characters)

    def ids(tokens: Sequence[int]) -> list[int]:
        begins = int(tokens[0] >= bos)
        text = "".join(characters[token] if token < bos else END for token in tokens[begins:])
        return [-1] * begins + rule.alignment_ids(text)

    return ids
