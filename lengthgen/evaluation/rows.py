"""Rows of eval.jsonl: what a document adds to a cell, and to which evaluation it belongs."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pydantic
from pydantic import ConfigDict, Field

from lengthgen.config.schema import Config
from lengthgen.config.sections import first_error
from lengthgen.data import overlap
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.spans import Endpoint, Span
from lengthgen.data.windows import Ints, position_bins
from lengthgen.errors import UserError
from lengthgen.evaluation.scored_text import Nats, Plan, Scored
from lengthgen.files import read_rows
from lengthgen.runs import status

LATER = ("trained_in", "weights")  # facts that older rows lack
FORMAT = 3  # of the rows; those of another one are not read
UNIGRAM_TOKENS = 1 << 27  # of the training split, at most, that its frequencies are counted on

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


def stored(run_dir: Path, *, run: str) -> list[dict[str, Any]]:
    """Returns the rows of eval.jsonl that measured the final weights of the run with this id.

    While it is not trained, those are the ones that were measured last. Raises UserError as
    read_rows does.
    """
    rows = [{**row, "run": run} for row in read_rows(run_dir / "eval.jsonl", run=run)]
    done = status.read_done(run_dir, run=run)
    of_done = done.weights if done else None
    measured = [row["weights"] for row in rows if row.get("weights")]
    final = of_done or (measured[-1] if measured else None)
    return [row for row in rows if row.get("weights") in (None, final)]


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


def per_document(
    spans: Sequence[Span],
    plan: Plan,
    scored: Mapping[Span, Scored],
    log_frequency: Nats,
    *,
    train_length: int,
    targets: Callable[[Span], Ints],
    far_copies: bool,
    by_position: bool,
) -> list[dict[str, Any]]:
    """Returns the sums of a cell's windows: a row per document; of packed text, per endpoint.

    `targets` returns the scored tokens of a window. log_frequency: [V], of the training split.
    """
    corpus = plan.corpus
    clusters: dict[Endpoint | int, list[Span]] = {}
    for span in spans:
        clusters.setdefault(plan.text.cluster(span.document, span.end), []).append(span)
    rows: list[dict[str, Any]] = []
    for cluster, windows in clusters.items():
        tokens = np.concatenate([targets(span) for span in windows])
        nats = np.concatenate([scored[span] for span in windows])
        row: dict[str, Any] = {
            "n_documents": len(clusters),
            "document": cluster_name(cluster, corpus),
            "nats": math.fsum(nats),
            "n_tokens": len(tokens),
            "n_bytes": int(corpus.token_bytes[tokens].sum()),
            "n_windows": len(windows),
            "window_nats": math.fsum(math.fsum(scored[s]) / len(scored[s]) for s in windows),
            "unigram_nats": -math.fsum(log_frequency[tokens]),
        }
        if far_copies:
            distances = {"near": train_length, "far": plan.max_context}
            far = np.concatenate(
                [
                    overlap.far_copies(corpus, s.document, s.end, targets=s.scored, **distances)
                    for s in windows
                ]
            )
            row |= {"far_nats": math.fsum(nats[far]), "far_tokens": int(far.sum())}
        if by_position:
            row |= _by_position(windows, scored, train_length)
        if not math.isfinite(row["nats"]):  # the model diverged here
            row |= {key: None for key in LOST if key in row}
        rows.append(row)
    return rows


def _by_position(
    scored: Sequence[Span], nats: Mapping[Span, Nats], train_length: int
) -> dict[str, list[Any]]:
    """Returns sums over windows, by bin of positions."""
    length = scored[0].length
    edges = position_bins(train_length, length)
    summed = np.sum([nats[span] for span in scored], axis=0)
    first = np.concatenate([[0], edges[:-1]])
    return {
        "position_nats": np.add.reduceat(summed, first).tolist(),
        "position_tokens": (len(scored) * (edges - first)).tolist(),
    }


def skipped(reason: str) -> dict[str, Any]:
    """Returns the row of a cell without a value, and why."""
    nothing = {"n_tokens": 0, "n_bytes": 0, "n_windows": 0, "nats": 0.0, "window_nats": 0.0}
    return {"document": None, "n_documents": 0, **nothing, "skipped": reason}


def cluster_name(cluster: Endpoint | int, corpus: TokenizedCorpus) -> str:
    """Returns the document of the row that holds a cluster of targets."""
    if isinstance(cluster, Endpoint):
        return f"{corpus.validation.names[cluster.document]}, to token {cluster.end}"
    return corpus.validation.names[cluster] if cluster >= 0 else f"stream block {-cluster}"


def unigram(corpus: TokenizedCorpus) -> Nats:
    """Returns the log probability of each token by its frequency in training, plus one, [V]."""
    counts = np.bincount(corpus.train.tokens[:UNIGRAM_TOKENS], minlength=corpus.vocab_size) + 1.0
    return np.log(counts / counts.sum())


def parts_hash(config: Config, variant: str | None) -> str:
    """Returns 8 hexadecimal digits that name what a cell's scheme computes.

    A variant or a plugin may be redefined after it was evaluated under the same name.
    """
    try:
        parts = config.scheme.parts if variant is None else config.variant(variant)
    except UserError as error:  # a reference variant that this scheme cannot take
        parts = {"error": str(error)}
    definition = json.dumps([variant, parts, config.scheme.layers, *config.plugins], sort_keys=True)
    return hashlib.sha256(definition.encode()).hexdigest()[:8]
