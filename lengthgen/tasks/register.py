"""What tasks add to the core."""

from lengthgen.tasks import alignment_ids, registry
from lengthgen.tasks.objective import ANSWERS, Answers
from lengthgen.tasks.source import TaskSource

ALIGNMENT_IDS = [alignment_ids]
OBJECTIVES = [Answers]
PROTOCOLS = [ANSWERS]
REGISTRIES = [registry]  # of classes that a plugin may define
SOURCES = [("task", TaskSource)]  # by corpus.source
