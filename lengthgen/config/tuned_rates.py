"""Learning rates that `lengthgen tune` chose: the grid of a scheme, and the YAML that holds it."""

import math
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from lengthgen.config import compose
from lengthgen.config.sections import Section, one_line
from lengthgen.errors import UserError

KEYS = ("train.lr", "train.scheme_lr_ratio")  # that are chosen
Positive = Annotated[int, Field(gt=0)]
Rate = Annotated[float, Field(gt=0)]
Loss = Annotated[float, Field(ge=0)]


class Trial(Section):
    """A point of a grid: its loss at T with each seed, in nats per token; null if it diverged.

    A scheme without parameters has no scheme_lr_ratio.
    """

    lr: Rate
    scheme_lr_ratio: Rate | None
    losses: Annotated[list[Loss | None], Field(min_length=1)]

    @property
    def loss(self) -> float:
        """The mean over seeds; infinity if one diverged."""
        return math.fsum(math.inf if x is None else x for x in self.losses) / len(self.losses)


class Tuned(Section):
    """The rates of a scheme, and the grid and the training that they were chosen from."""

    lr: Rate
    scheme_lr_ratio: Rate | None
    model: str
    corpus: str
    fingerprint: str  # of its tokens, 12 hexadecimal digits
    length: Positive
    tokens: Positive
    batch_tokens: Positive
    seeds: list[int]
    grid: Annotated[list[Trial], Field(min_length=1)]

    @property
    def at_edge(self) -> dict[str, float]:
        """The chosen values that are the least or the greatest of several in the grid, by key."""
        found: dict[str, float] = {}
        for key in KEYS:
            name = key.removeprefix("train.")
            values = {getattr(trial, name) for trial in self.grid} - {None}
            chosen = getattr(self, name)
            if len(values) > 1 and chosen in (min(values), max(values)):
                found[key] = chosen
        return found


def read(path: Path) -> dict[str, Tuned]:
    """Returns what a tuned.yaml holds, by scheme. Raises UserError if it cannot be read."""
    plain = compose.read(path)
    try:
        return TypeAdapter(dict[str, Tuned]).validate_python(plain)
    except ValidationError as error:
        wrong = one_line(error, plain, known=Tuned.model_fields)
        raise UserError(
            f"train.tuned: {path} is not as lengthgen tune writes it: {wrong}"
        ) from None
