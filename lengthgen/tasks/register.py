"""What tasks add to the core."""

from typing import Any

from lengthgen.tasks.objective import ANSWERS, Answers
from lengthgen.tasks.source import TaskSource


def _section(rows: Any) -> Any:
    from lengthgen.tasks import report  # which draws

    return report.tasks_section(rows)


OBJECTIVES = [Answers]
PROTOCOLS = [ANSWERS]
SOURCES = [("task", TaskSource)]  # by corpus.source
SECTIONS = [_section]
