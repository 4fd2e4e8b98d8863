"""Costs: what a run took to train, from the rows of its train.jsonl."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from safetensors import safe_open


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a run took; None is unknown."""

    parameters: int | None
    tokens: int | None
    seconds: float | None  # of training steps alone, over all its sessions

    @property
    def tokens_per_s(self) -> float | None:
        return self.tokens / self.seconds if self.tokens and self.seconds else None


def cost(rows: Sequence[Mapping[str, Any]], *, parameters: int | None) -> Cost:
    """Returns the cost of a run from the rows of train.jsonl."""
    seen = [0, *(row["train/tokens"] for row in rows)]
    steps = zip(pairwise(seen), rows, strict=True)
    seconds = math.fsum((b - a) / row["train/tokens_per_s"] for (a, b), row in steps)
    return Cost(parameters=parameters, tokens=seen[-1] or None, seconds=seconds or None)


def parameters(model: Path) -> int:
    """Returns the number of parameters in a model.safetensors, tied ones counted once."""
    with safe_open(model, framework="numpy") as tensors:
        names = tensors.offset_keys()
        return sum(math.prod(tensors.get_slice(name).get_shape()) for name in names)
