"""Rows as results.load returns them, with losses of one's choice, and run directories of them."""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from small import config_of

from lengthgen.files import append_rows
from lengthgen.report.load import typed
from lengthgen.runs import directory

LENGTHS = (256, 512, 1024, 2048)
Loss = Callable[[int, str, int], float | None]  # of seed, document, length; None: it diverged
CONFIG: dict[str, Any] = {
    "seed": 1,
    "eval": {"targets": 4},
    "scheme": {"name": "rope", "parts": {"rope": {"base": 10000.0}}, "variants": {}},
    "train": {"lr": 0.003, "length": 512},
}


def frame(
    loss: Loss | float,
    *,
    scheme: str = "rope",
    run: str | None = None,
    seeds: Sequence[int] = (1, 2, 3),
    documents: Mapping[str, int] | str = "abcde",
    lengths: Sequence[int] = LENGTHS,
    config: Mapping[str, Any] = CONFIG,
    **columns: Any,
) -> pd.DataFrame:
    """Returns rows of runs of one recipe; of a document 4 targets are scored at each length."""
    n_of = documents if isinstance(documents, Mapping) else dict.fromkeys(documents, 4)
    rows: list[dict[str, Any]] = []
    for seed, document, length in itertools.product(seeds, n_of, lengths):
        mean = loss(seed, document, length) if callable(loss) else loss
        of_run = {"recipe": run or scheme, "config": json.dumps({**config, "seed": seed})}
        name, n = f"{run or scheme}-s{seed}", n_of[document]
        about = {"run": name, "seed": seed, "n": n, "n_documents": len(n_of)}
        place = {"document": document, "length": length}
        rows.append(eval_row(scheme, mean, **about, **place, **of_run, **columns))
    return typed(pd.DataFrame(rows))


def eval_row(scheme: str, loss: float | None, *, n: int = 8, **columns: Any) -> dict[str, Any]:
    """Returns a row of eval.jsonl: a loss that is the mean of n targets; None: it diverged."""
    seed, run = columns.pop("seed"), columns.pop("run")
    return {
        **about(scheme, seed=seed, run=run),
        **{"variant": None, "n_documents": 2, "nats": None if loss is None else n * loss},
        **{"window_nats": loss, "n_tokens": n, "n_bytes": 3 * n, "n_windows": 1},
        **{"unigram_nats": 9.0 * n, **columns},
    }


def about(scheme: str, *, seed: int, run: str) -> dict[str, Any]:
    """Returns what all rows of a run share."""
    return {
        **{"run": run, "scheme": scheme, "model": "tiny", "seed": seed, "corpus": "toy"},
        **{"fingerprint": "f" * 64, "packed": False, "train_length": 512, "tokens_seen": 4096},
        **{"trained_in": "fp32", "protocol": "tail", "parts": "0d0d", "targets": 4},
        **{"precision": "fp32", "endpoints": "0123", "max_context": 4096, "reference": False},
        **{"state": "done", "environment": "{}"},
    }


def write_run(
    root: Path,
    scheme: str = "rope",
    *,
    seed: int = 1,
    losses: Mapping[int, float | None] | None = None,
    overrides: Sequence[str] = (),
    **columns: Any,
) -> Path:
    """Writes a run directory whose two documents have these losses by length."""
    words = [f"scheme={scheme}", f"seed={seed}", "corpus=synthetic", f"runtime.root={root}"]
    config = config_of(*words, *overrides)
    config.run_dir.mkdir(parents=True, exist_ok=True)
    directory.write_config(config, config.run_dir)
    own: dict[str, Any] = {"seed": seed, "run": config.run_id, **columns}
    rows = [
        eval_row(scheme, loss, document=name, length=length, **own)
        for length, loss in (losses or {}).items()
        for name in "ab"
    ]
    if rows:
        append_rows(config.run_dir / "eval.jsonl", rows)
    return config.run_dir
