"""What measures of context add to a report."""

from typing import Any

from lengthgen.evaluation.protocols import PROTOCOLS


def _section(rows: Any) -> Any:
    if {*rows["protocol"]} <= PROTOCOLS.keys():  # what follows imports torch
        return None
    from lengthgen.context import report

    return report.section(rows)


SECTIONS = [_section]
