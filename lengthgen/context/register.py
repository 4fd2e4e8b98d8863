"""What measures of context add to the core."""

from lengthgen.context.forgetting import FORGETTING
from lengthgen.context.key_tokens import KEY_TOKENS
from lengthgen.context.retrieval import RETRIEVAL

PROTOCOLS = [FORGETTING, RETRIEVAL, KEY_TOKENS]
