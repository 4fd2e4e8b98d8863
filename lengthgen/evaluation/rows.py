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

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from lengthgen.data import overlap
from lengthgen.data.windows import Endpoint, Ints, Span, position_bins
from lengthgen.evaluation.scored_text import Nats, Plan

DIVERGED = ("nats", "window_nats", "copy_nats", "position_nats")  # None where a model diverged


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
            "window_nats": math.fsum(math.fsum(each) / len(each) for each in nats_of),
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
