"""Rows of eval.jsonl for tests, and run directories that hold some."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lengthgen.analysis.eval_rows import FORMAT
from lengthgen.report import collect, run_records
from lengthgen.report.collect import Report

Row = dict[str, Any]

SHARED: Row = {
    "format": FORMAT,
    "corpus": "toy",
    "fingerprint": "f" * 64,
    "packed": False,
    "train_length": 512,
    "tokens_seen": 4096,
    "protocol": "tail",
    "variant": None,
    "parts": "0d0d0d0d",
    "precision": "fp32",
    "endpoints": "0123456789ab",
}
NOTHING: Row = {
    **{"document": None, "n_documents": 0, "nats": 0.0, "n_tokens": 0, "n_bytes": 0},
    **{"n_windows": 0, "window_nats": 0.0},
}


def row(**changes: Any) -> Row:
    """A row of a run of RoPE at 1024 tokens: 8 targets of one of two documents."""
    return {
        **SHARED,
        "run": "rope-tiny-toy-s1-0a0a0a0a",
        "scheme": "rope",
        "model": "tiny",
        "seed": 1,
        "targets": 4,
        "length": 1024,
        "reach": 4096,
        "document": "a",
        "n_documents": 2,
        "nats": 8.0,
        "n_tokens": 8,
        "n_bytes": 16,
        "n_windows": 2,
        "window_nats": 2.0,
        **changes,
    }


def cell(*nats: float, **changes: Any) -> list[Row]:
    """The rows of a complete cell, a document of 8 targets for each sum of nats."""
    names = "abcdefgh"[: len(nats)]
    return [
        row(document=name, n_documents=len(nats), nats=one, **changes)
        for name, one in zip(names, nats, strict=True)
    ]


LENGTHS = (512, 1024, 2048, 16384)
LOSSES = (3.0, 2.5, 4.0, 5.0)


class Runs:
    """Writes run directories with losses of one's choice."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(
        self,
        scheme: str,
        losses: Sequence[float] = LOSSES,
        *,
        lengths: Sequence[int] = LENGTHS,
        seed: int = 1,
        parts: Mapping[str, Any] | None = None,
        suffix: str = "0a0a0a0a",
        parts_hash: str = "0d0d0d0d",
        **changes: Any,
    ) -> Path:
        """Writes a run; lengths beyond the losses are skipped ones."""
        path = self.root / f"{scheme}-tiny-toy-s{seed}-{suffix}"
        path.mkdir(parents=True, exist_ok=True)
        plain = {"seed": seed, "scheme": {"name": scheme, "parts": parts or {scheme: {}}}}
        (path / "config.yaml").write_text(yaml.safe_dump(plain))
        about = {
            **SHARED,
            **{"run": path.name, "scheme": scheme, "model": "tiny", "seed": seed},
            **{"targets": 64, "reach": 16384, "parts": parts_hash},
            **changes,
        }
        with (path / "eval.jsonl").open("a") as file:
            for i, length in enumerate(lengths):
                for row in _cell(losses[i] if i < len(losses) else None):
                    file.write(json.dumps({"length": length, **row, **about}) + "\n")
        return path


def _cell(loss: float | None) -> list[dict[str, Any]]:
    """One row that says n/a, or two documents of 64 and 128 tokens with this loss."""
    if loss is None:
        return [{**NOTHING, "skipped": "the table has 512 rows"}]
    return [
        {
            **{"document": name, "n_documents": 2, "nats": n * loss, "n_tokens": n},
            **{"n_bytes": 3 * n, "n_windows": n // 64, "window_nats": n // 64 * loss},
        }
        for name, n in (("a", 64), ("b", 128))
    ]


def gathered(*run_dirs: Path) -> Report:
    """The report of runs of text."""
    return collect.gather(run_records.read(run_dirs))


def table_of(*run_dirs: Path) -> str:
    """What a terminal shows of runs."""
    return collect.table(run_records.read(run_dirs))
