"""Rows of eval.jsonl: what a document adds to a cell of the curve.

A row holds what identifies its cell (`cell_facts` of evaluator.py), n_documents, `document`, and

    group                       the project or author that the document is from, if one is named
    settings                    of eval, that decide what is scored: "eval.endpoints=16 ..."
    nats, n_tokens, n_bytes     sums over the scored tokens; nats are null where a model diverged
    n_windows, window_nats      the sum over windows of the mean over a window's scored tokens
    unigram_nats                of the same tokens under their frequencies in the training split
    copy_nats, copy_tokens      over copy opportunities (overlap.copy_opportunities)
    position_nats, ..._tokens   by bin of windows.position_bins
    skipped                     why the cell has no value

A row of a task holds all tests of a length: `tasks/objective.py`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ConfigDict, NonNegativeInt, PositiveInt, ValidationError, create_model

from lengthgen.data import overlap
from lengthgen.data.windows import Endpoint, Ints, Span, position_bins
from lengthgen.errors import UserError
from lengthgen.evaluation.scored_text import Nats, Plan
from lengthgen.files import read_bytes, read_rows
from lengthgen.runs import status

KEPT = "kept.jsonl"  # rows of the checkpoints that train.keep_checkpoints keeps
DIVERGED = ("nats", "window_nats", "copy_nats", "position_nats")  # None where a model diverged


_TEXTS = ["scheme", "model", "corpus", "fingerprint", "protocol", "parts", "endpoints", "precision"]
_COUNTS = ["seed", "tokens_seen", "max_context", "n_documents", "n_tokens", "n_bytes", "n_windows"]
_FIELDS: dict[str, Any] = {
    **dict.fromkeys(_TEXTS, (str, ...)),
    **dict.fromkeys(_COUNTS, (NonNegativeInt, ...)),
    **dict.fromkeys(("length", "train_length"), (PositiveInt, ...)),
    **dict.fromkeys(("variant", "document"), (str | None, ...)),
    **dict.fromkeys(("weights", "trained_in", "skipped", "unit", "settings"), (str | None, None)),
    **dict.fromkeys(("nats", "window_nats"), (float | None, ...)),
    **dict.fromkeys(("unigram_nats", "copy_nats"), (float | None, None)),
    **dict.fromkeys(("targets", "copy_tokens"), (NonNegativeInt | None, None)),
    **dict.fromkeys(("position_nats", "position_tokens"), (list[float] | None, None)),
    "packed": (bool, ...),
}
# What is read of a row: a value of another type would hide all other runs.
_Row = create_model("_Row", __config__=ConfigDict(strict=True, allow_inf_nan=False), **_FIELDS)


def _checked(path: Path, run: str) -> list[dict[str, Any]]:
    """Returns the rows of a file. Raises UserError for a value of another type than it has."""
    rows = read_rows(path, run=run)
    for number, row in enumerate(rows, start=1):
        try:
            _Row.model_validate(row)
        except ValidationError as error:
            first = error.errors()[0]
            wrong = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        else:
            if row["n_tokens"] or row.get("skipped"):
                continue
            wrong = "n_tokens: no token is scored"
        raise UserError(f"{path}:{number}: damaged row, {wrong}; delete this line or restore it")
    return rows


def stored(run_dir: Path, *, run: str) -> list[dict[str, Any]]:
    """Returns the rows of eval.jsonl that measured the final weights of the run with this id.

    While it is not trained, those are the ones that were measured last. Raises UserError as
    read_rows does.
    """
    rows = [{**row, "run": run} for row in _checked(run_dir / "eval.jsonl", run)]
    measured = [row["weights"] for row in rows if row.get("weights")]
    final = status.final_weights(run_dir, run=run) or (measured[-1] if measured else None)
    return [row for row in rows if row.get("weights") in (None, final)]


def stored_kept(run_dir: Path, *, run: str, below: int) -> list[dict[str, Any]]:
    """Returns the rows of kept.jsonl, by tokens seen, of the weights that were measured last.

    Those of checkpoints before `below` tokens: what training has not taken since is not there. Of
    weights that lie there, so that rows of another training of the same name do not count.
    """
    folders = status.checkpoint_folders(run_dir, "kept")
    own = {json.loads(read_bytes(f / "sha256.json"))["model.safetensors"] for f in folders}
    rows = [row for row in _checked(run_dir / KEPT, run) if row["weights"] in own or not own]
    newest = {row["tokens_seen"]: row["weights"] for row in rows if row["tokens_seen"] < below}
    return [row for row in rows if newest.get(row["tokens_seen"]) == row["weights"]]


def loss(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Returns the loss of a cell in nats per token from its rows, oldest first.

    It is infinite where the model diverged, None where documents are missing.
    """
    newest = {r["document"]: r for r in rows if r.get("endpoints") == rows[-1].get("endpoints")}
    if not rows or None in newest or len(newest) < rows[-1]["n_documents"]:
        return None
    nats = math.fsum(math.inf if r["nats"] is None else r["nats"] for r in newest.values())
    return nats / sum(row["n_tokens"] for row in newest.values())


def per_document(
    spans: Sequence[Span],
    scored: Mapping[Span, tuple[Ints, Nats]],
    plan: Plan,
    *,
    copies: bool,
    by_position: bool,
) -> list[dict[str, Any]]:
    """Returns the sums of a cell's windows: a row per document; of packed text, per endpoint.

    `spans` are the windows of the cell. `scored` holds the scored tokens of each and their nats,
    or those of some documents alone, of which rows are then returned.
    """
    corpus, rows = plan.corpus, list[dict[str, Any]]()
    apart = {"near": plan.train_length, "far": plan.max_context}
    may_copy_in = partial(overlap.copy_opportunities, corpus, **apart)
    clusters = plan.by_cluster(spans)
    for cluster, windows in clusters.items():
        if windows[0] not in scored:
            continue
        tokens = np.concatenate([scored[span][0] for span in windows])
        nats_of = [scored[span][1] for span in windows]
        nats = np.concatenate(nats_of)
        row: dict[str, Any] = {
            "n_documents": len(clusters),
            "document": cluster_name(cluster, plan),
            "group": group(cluster, plan),
            "nats": math.fsum(nats),
            "n_tokens": len(tokens),
            "n_bytes": int(corpus.token_bytes[tokens].sum()),
            "n_windows": len(windows),
            "window_nats": math.fsum(math.fsum(own) / len(own) for own in nats_of),
            "unigram_nats": -math.fsum(plan.log_frequency[tokens]),
        }
        if copies:
            of_each = [may_copy_in(s.document, s.end, targets=s.scored) for s in windows]
            may_copy = np.concatenate(of_each)
            row |= {"copy_nats": math.fsum(nats[may_copy]), "copy_tokens": int(may_copy.sum())}
        if by_position:
            edges = position_bins(plan.train_length, windows[0].length)
            first = np.concatenate([[0], edges[:-1]])
            summed = np.sum(nats_of, axis=0)
            row["position_nats"] = np.add.reduceat(summed, first).tolist()
            row["position_tokens"] = (len(windows) * (edges - first)).tolist()
        if not math.isfinite(row["nats"]):  # the model diverged here
            row |= {key: None for key in DIVERGED if key in row}
        rows.append(row)
    return rows


def skipped(reason: str) -> dict[str, Any]:
    """Returns the row of a cell without a value, and why."""
    nothing = {"n_tokens": 0, "n_bytes": 0, "n_windows": 0, "nats": 0.0, "window_nats": 0.0}
    return {"document": None, "n_documents": 0, **nothing, "skipped": reason}


def cluster_name(cluster: Endpoint | int, plan: Plan) -> str:
    names = plan.corpus.validation.names
    if isinstance(cluster, Endpoint):
        return f"{names[cluster.document]}, to token {cluster.end}"
    return names[cluster] if cluster >= 0 else f"stream block {-cluster}"


def group(cluster: Endpoint | int, plan: Plan) -> str | None:
    """Returns the group that a document is from, of a block of the stream that of most tokens.

    None for a document that is a group of its own, and for packed text.
    """
    split = plan.corpus.validation
    if isinstance(cluster, Endpoint):
        return None
    if cluster < 0:
        end = -cluster * plan.max_context
        cuts = np.clip(split.offsets, end - plan.max_context, end)
        cluster = int(np.diff(cuts).argmax())
    name = split.groups[cluster]
    return None if name == split.names[cluster] else name
