"""Rows of eval.jsonl as they are read again; `rows` says what one holds.

Neither numpy nor torch is imported here: listing 22 runs takes a third of the time of both.
"""

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, create_model

from lengthgen.errors import UserError
from lengthgen.files import read_bytes, read_rows
from lengthgen.runs import status

HEADLINE = "tail"  # scores the same tokens at every length; reference variants are evaluated too
KEPT_ROWS = "kept.jsonl"  # rows of the checkpoints that train.keep_checkpoints keeps

# The columns of rows by what a value is, in a table of rows too (report/load.py). Always there:
LABELS = ["scheme", "model", "corpus", "fingerprint", "parts", "protocol", "precision", "endpoints"]
INTEGERS = ["seed", "train_length", "tokens_seen", "max_context", "length", "n_documents"]
COUNTS = ["n_tokens", "n_bytes", "n_windows"]
# Absent, or null, from some rows:
NAMES = ["variant", "document", "group", "skipped", "trained_in", "unit", "weights", "settings"]
COUNTED = ["targets", "copy_tokens", "token_hits", "stop_errors"]
REALS = ["nats", "window_nats", "unigram_nats", "copy_nats", "chance", "n_scores"]
ARRAYS = [
    *("position_nats", "position_tokens", "first_wrong", "edit_distances", "results_right"),
    *("hits", "exact", "tries"),
]
_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Length = Annotated[_Count, Field(gt=0)]
_FIELDS: dict[str, Any] = {
    **dict.fromkeys(LABELS, (str, ...)),
    **dict.fromkeys([*INTEGERS, *COUNTS], (_Count, ...)),
    **dict.fromkeys(NAMES, (str | None, None)),
    **dict.fromkeys(COUNTED, (Annotated[int | None, Field(ge=0, lt=2**63)], None)),
    **dict.fromkeys(REALS, (float | None, None)),
    **dict.fromkeys(ARRAYS[:2], (list[float] | None, None)),
    **dict.fromkeys(ARRAYS[2:], (list[float | bool | None] | None, None)),
    **dict.fromkeys(("length", "train_length"), (_Length, ...)),
    **dict.fromkeys(("variant", "document"), (str | None, ...)),
    **dict.fromkeys(("nats", "window_nats"), (float | None, ...)),
    "score": (Annotated[float | None, Field(allow_inf_nan=True)], None),  # nan where it diverged
    "packed": (bool, ...),
}
# A value of another type would hide all other runs.
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
