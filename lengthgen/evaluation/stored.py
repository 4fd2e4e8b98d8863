"""Rows of eval.jsonl as they are read again; `rows` says what one holds.

Neither numpy nor torch is imported here: listing 22 runs takes a third of the time of both.
"""

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import (
    ConfigDict,
    NonNegativeInt,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    create_model,
)

from lengthgen.errors import UserError
from lengthgen.files import read_bytes, read_rows
from lengthgen.runs import status

HEADLINE = "tail"  # scores the same tokens at every length; reference variants are evaluated too
KEPT_ROWS = "kept.jsonl"  # rows of the checkpoints that train.keep_checkpoints keeps

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


@cache
def _rows() -> TypeAdapter[Any]:
    return TypeAdapter(list[_Row])  # pyright: ignore[reportInvalidTypeForm]


def _checked(path: Path, run: str) -> list[dict[str, Any]]:
    """Returns the rows of a file. Raises UserError for a value of another type than it has."""
    rows = read_rows(path, run=run)
    try:
        _rows().validate_python(rows)
        missing = [i for i, row in enumerate(rows) if not (row["n_tokens"] or row.get("skipped"))]
        if not missing:
            return rows
        number, wrong = missing[0], "n_tokens: no token is scored"
    except ValidationError as error:
        (number, *key), message = error.errors()[0]["loc"], error.errors()[0]["msg"]
        wrong = f"{'.'.join(map(str, key))}: {message}"
    where = f"{path}:{int(number) + 1}"
    raise UserError(f"{where}: damaged row, {wrong}; delete this line or restore it")


def stored(run_dir: Path, *, run: str) -> list[dict[str, Any]]:
    """Returns the rows of eval.jsonl that measured the final weights of the run with this id.

    While it is not trained, those are the ones that were measured last. Raises UserError as
    read_rows does.
    """
    rows = _checked(run_dir / "eval.jsonl", run)
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
    rows = [row for row in _checked(run_dir / KEPT_ROWS, run) if row["weights"] in own or not own]
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
