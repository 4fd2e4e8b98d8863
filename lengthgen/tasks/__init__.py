"""The registry of tasks: every Task in a file of rules/, by its name in snake case."""

from collections.abc import Callable, Sequence

from lengthgen.config import registry as classes
from lengthgen.config.schema import Corpus, TaskCorpus
from lengthgen.tasks import rules
from lengthgen.tasks.base import END, Example, Task

__all__ = ["END", "Example", "Task", "alignment_ids", "registry", "task_of"]

AlignmentIds = Callable[[Sequence[int]], list[int]]  # from a text's tokens to the id of each


def registry(plugins: Sequence[str] = ()) -> dict[str, type[Task]]:
    """Returns all tasks by name: those of rules/ and the plugins'.

    Raises UserError for a plugin that fails, and for two tasks of one name.
    """
    return classes.registered(classes.modules_of(rules.__name__, rules.__path__), Task, plugins)


def task_of(corpus: TaskCorpus) -> Task:
    """Builds the task of a corpus; no plugin is run for a task of the package.

    Raises UserError for an unknown task, arguments that do not fit its signature, or a value that
    it refuses.
    """
    spec, known = corpus.task, registry()
    known = known if spec.kind in known else registry(corpus.plugins)
    rule = classes.chosen(spec.kind, known, corpus.plugins, what="task", where="task.kind")
    return classes.construct(rule, spec.arguments, where="task.arguments")


def alignment_ids(corpus: Corpus) -> AlignmentIds | None:
    """Returns the alignment ids of tokens as a function of them; None for corpora without any.

    A leading bos token has id -1; elsewhere it counts as a character between.
    """
    if not isinstance(corpus, TaskCorpus) or not (rule := task_of(corpus)).aligned:
        return None
    characters = sorted({*rule.alphabet, END})
    bos = len(characters)

    def ids(tokens: Sequence[int]) -> list[int]:
        begins = int(tokens[0] >= bos)
        text = "".join(characters[token] if token < bos else END for token in tokens[begins:])
        return [-1] * begins + rule.alignment_ids(text)

    return ids
