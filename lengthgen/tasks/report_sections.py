"""What tasks add to a report."""

from typing import Any


def _section(rows: Any) -> Any:
    if rows["unit"].isna().all():  # what follows imports torch
        return None
    from lengthgen.tasks import report

    return report.tasks_section(rows)


SECTIONS = [_section]
