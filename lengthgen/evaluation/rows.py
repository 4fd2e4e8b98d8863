"""Rows of eval.jsonl: what a document adds to a cell of the curve."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NotRequired

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from lengthgen.config.schema import Config
from lengthgen.data import overlap
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.spans import Endpoint, Span
from lengthgen.data.windows import Ints, position_bins
from lengthgen.errors import UserError
from lengthgen.evaluation.scored_text import Nats, Plan, Scored
from lengthgen.files import read_rows
from lengthgen.runs import status

UNIGRAM_TOKENS = 1 << 27  # of the training split, at most, that its frequencies are counted on
DIVERGED = ("nats", "window_nats", "far_nats", "position_nats")  # None where a model diverged

Count = Annotated[int, Field(ge=0)]
Sum = Annotated[float, Field(ge=0)]  # of nats


@with_config(ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))
class Row(TypedDict):
    """What one document adds to a cell, or why the cell is skipped; JSON, a line each."""

    run: str
    weights: str  # sha256 of their file
    scheme: str
    model: str
    seed: int
    corpus: str
    fingerprint: str
    packed: bool
    train_length: Count  # in the unit of `length`
    tokens_seen: Count
    trained_in: str  # precision
    precision: str
    reach: Count  # targets before every endpoint
    protocol: str
    targets: Count | None  # K
    variant: str | None
    length: Count
    parts: str  # hash of what the scheme computes
    endpoints: str  # hash of which tokens are scored
    n_documents: Count  # that the cell has rows of
    document: str | None
    nats: Sum | None  # over the scored tokens
    n_tokens: Count
    n_bytes: Count
    n_windows: Count
    window_nats: Sum | None  # over windows, of the mean over a window's scored tokens
    skipped: NotRequired[str]
    unigram_nats: NotRequired[Sum]  # of the same tokens under the training split's frequencies
    # Of the far-copy targets, whose bigram stands beyond T and not within:
    far_nats: NotRequired[Sum | None]
    far_tokens: NotRequired[Count]
    position_nats: NotRequired[list[Sum] | None]  # by bin of windows.position_bins
    position_tokens: NotRequired[list[Count]]
    # Of a task, whose row holds all examples of a length:
    unit: NotRequired[str]  # what the length counts
    chance: NotRequired[Sum]  # accuracy without the prompt
    first_wrong: NotRequired[list[Count | None]]  # the first wrong token of each answer
    token_hits: NotRequired[Count]
    stop_errors: NotRequired[Count]  # answers that first go wrong where they stop, or should
    # Of its first tests, those that were decoded:
    edit_distances: NotRequired[list[Sum]]  # over the length of the longer of two answers
    results_right: NotRequired[list[bool]]
    answer_ranks: NotRequired[list[Count]]


_SCHEMA = TypeAdapter(Row)


def checked(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row that is to be written. Raises ValidationError if it does not fit Row."""
    _SCHEMA.validate_python(row)
    return row


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
            row |= {key: None for key in DIVERGED if key in row}
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
