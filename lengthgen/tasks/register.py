"""What tasks add to the core."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lengthgen.tasks import alignment_ids, registry
from lengthgen.tasks.objective import ANSWERS, Answers
from lengthgen.tasks.source import TaskSource

if TYPE_CHECKING:
    import pandas as pd

    from lengthgen.report.section import Section


def _section(rows: pd.DataFrame) -> Section | None:
    from lengthgen.tasks import report

    return report.section(rows)


ALIGNMENT_IDS = [alignment_ids]
OBJECTIVES = [Answers]
PROTOCOLS = [ANSWERS]
REGISTRIES = [registry]  # of classes that a plugin may define
SOURCES = [("task", TaskSource)]  # by corpus.source
SECTIONS = [_section]
