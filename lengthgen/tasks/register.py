"""What tasks add to the core."""

from lengthgen.tasks import registry
from lengthgen.tasks.objective import ANSWERS, Answers
from lengthgen.tasks.source import Task

OBJECTIVES = [Answers]
PROTOCOLS = [ANSWERS]
REGISTRIES = [registry]  # of classes that a plugin may define
SOURCES = [Task]
