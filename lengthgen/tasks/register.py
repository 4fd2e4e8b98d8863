"""What tasks add to the core."""

from lengthgen.tasks.objective import ANSWERS, Answers
from lengthgen.tasks.source import TaskSource

OBJECTIVES = [Answers]
PROTOCOLS = [ANSWERS]
SOURCES = [("task", TaskSource)]  # by corpus.source
