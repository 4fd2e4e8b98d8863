"""Rows of eval.jsonl as the old report reads them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Annotated, Any

import pydantic
from pydantic import ConfigDict, Field

from lengthgen.config.sections import first_error
from lengthgen.errors import UserError

LATER = ("trained_in", "weights")  # facts that older rows lack
FORMAT = 3  # of the rows; those of another one are not read
LOST = ("nats", "window_nats", "far_nats", "position_nats")  # where a model diverged
DECODED = ("edit_distances", "results_right", "answer_ranks")

Count = Annotated[int, Field(ge=0, le=1 << 53)]  # exact as a float
Length = Annotated[int, Field(ge=1, le=1 << 26)]  # arrays of so many positions are made
Sum = Annotated[float, Field(ge=0)]  # of nats
Condition = tuple[str, int | None, str]  # precision, targets, endpoints


@dataclass(frozen=True, kw_only=True)
class CellFacts:
    """What all rows of a cell share: a run at one length, under one protocol."""

    run: str
    weights: str | None = None  # sha256 of their file
    scheme: str
    model: str
    seed: int
    corpus: str
    fingerprint: str
    packed: bool
    train_length: Length
    tokens_seen: Count
    protocol: str
    targets: Count | None  # K
    variant: str | None
    parts: str  # hash of what the scheme computes
    length: Length
    trained_in: str | None = None  # precision
    precision: str
    endpoints: str
    reach: Count
    n_documents: Count

    @property
    def condition(self) -> Condition:
        """What was scored and how: cells of different conditions cannot be compared."""
        return (self.precision, self.targets, self.endpoints)

    def facts(self) -> dict[str, Any]:
        return dict(zip(_FACTS, fact_values(self), strict=True))


_FACTS = tuple(field.name for field in fields(CellFacts))
fact_values = attrgetter(*_FACTS)


@pydantic.dataclasses.dataclass(
    frozen=True,
    kw_only=True,
    config=ConfigDict(strict=True, extra="ignore", allow_inf_nan=False),
)
class EvalRow(CellFacts):
    """What one document adds to a cell, or why the cell is skipped.

    All nats are sums. Where the model diverged in a document, they are None.
    """

    document: str | None
    nats: Sum | None
    n_tokens: Count
    n_bytes: Count
    n_windows: Count
    window_nats: Sum | None  # over windows, of the mean over a window's scored tokens
    unigram_nats: Sum | None = None  # of the same tokens under the training split's frequencies
    # Of the far-copy targets, whose bigram stands beyond T and not within:
    far_nats: Sum | None = None
    far_tokens: Count | None = None
    token_nats: list[Sum] | None = None  # no longer written
    position_nats: list[Sum] | None = None  # by bin of windows.position_bins
    position_tokens: list[Count] | None = None
    skipped: str | None = None
    # Of a task, whose row holds all examples of a length:
    first_wrong: list[Count | None] | None = None  # the first wrong token of each answer
    token_hits: Count | None = None
    stop_errors: Count | None = None  # answers that first go wrong where they stop, or should
    unit: str | None = None  # what the length counts
    chance: Annotated[float, Field(ge=0, le=1)] | None = None  # accuracy without the prompt
    # Of its first tests, those that were decoded (evaluation/decoding.py):
    edit_distances: list[Annotated[float, Field(ge=0, le=1)]] | None = None
    results_right: list[bool] | None = None
    answer_ranks: list[Annotated[int, Field(ge=1)]] | None = None


def diverged(row: Mapping[str, Any], *, run: str, seed: int) -> dict[str, Any]:
    """Returns a row of another seed as it is of a run that diverged in training.

    The loss is infinite, and no answer of a task is right.
    """
    lost: dict[str, Any] = {key: None for key in LOST if key in row}
    if row.get("first_wrong") is not None:
        lost |= {"first_wrong": [0] * len(row["first_wrong"]), "token_hits": 0, "stop_errors": 0}
    kept = {key: value for key, value in row.items() if key not in DECODED}
    return kept | lost | {"run": run, "seed": seed, "weights": None}


def checked(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the row if it can be read again. Raises UserError as `parse` does."""
    parse(row)
    return row


def parse(row: Mapping[str, Any]) -> EvalRow:
    """Returns a row of this FORMAT. Raises UserError, naming run and field, if one is not valid."""
    try:
        return EvalRow(**row)
    except pydantic.ValidationError as error:
        raise damaged(row.get("run", "(no run)"), f"field {first_error(error)}") from None
    except TypeError:  # a key like pydantic's own argument
        raise damaged(row.get("run", "(no run)"), "a field that no row has") from None


def damaged(run: str, what: str) -> UserError:
    """Returns the error on rows of a run that hold what no evaluation writes."""
    return UserError(
        f"eval.jsonl of {run}: {what}; delete such rows and run lengthgen eval {run}, "
        "or report other runs"
    )
