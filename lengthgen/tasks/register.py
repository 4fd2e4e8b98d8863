"""What tasks add to the core."""

from lengthgen.tasks import registry
from lengthgen.tasks.objective import ANSWERS, Answers

OBJECTIVES = [Answers]
PROTOCOLS = [ANSWERS]
REGISTRIES = [registry]  # of classes that a plugin may define
