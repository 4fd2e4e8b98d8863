"""What measures of context add to the core."""

from typing import Any

from lengthgen.context.forgetting import FORGETTING
from lengthgen.context.key_tokens import KEY_TOKENS
from lengthgen.context.retrieval import RETRIEVAL


def _section(rows: Any) -> Any:
    from lengthgen.context import report  # which draws

    return report.section(rows)


PROTOCOLS = [FORGETTING, RETRIEVAL, KEY_TOKENS]
SECTIONS = [_section]
