"""Rows of eval.jsonl as they are read again; `rows` says what one holds.

Neither numpy nor torch is imported here: listing 22 runs takes a third of the time of both.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lengthgen.files import read_bytes, read_rows
from lengthgen.runs import status

HEADLINE = "tail"  # scores the same tokens at every length; reference variants are evaluated too
KEPT_ROWS = "kept.jsonl"  # rows of the checkpoints that train.keep_checkpoints keeps


def stored(run_dir: Path, *, run: str) -> list[dict[str, Any]]:
    """Returns the rows of eval.jsonl that measured the final weights of the run with this id.

    While it is not trained, those are the ones that were measured last. Raises UserError as
    read_rows does.
    """
    rows = read_rows(run_dir / "eval.jsonl", run=run)
    measured = [row["weights"] for row in rows if row.get("weights")]
    final = status.final_weights(run_dir, run=run) or (measured[-1] if measured else None)
    return [row for row in rows if row.get("weights") in (None, final)]


def stored_kept(run_dir: Path, *, run: str, below: int) -> list[dict[str, Any]]:
    """Returns the rows of kept.jsonl, by tokens seen, of the weights that were measured last.

    Those of checkpoints before `below` tokens: what training has not taken since is not there. Of
    weights that lie there, so that rows of another training of the same name do not count.
    """
    folders = status.checkpoint_folders(run_dir, "kept")
    there = {json.loads(read_bytes(f / "sha256.json"))["model.safetensors"] for f in folders}
    rows = read_rows(run_dir / KEPT_ROWS, run=run)
    rows = [row for row in rows if row["weights"] in there or not there]
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
