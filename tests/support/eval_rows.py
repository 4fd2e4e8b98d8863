"""Rows of eval.jsonl for tests."""

from typing import Any

Row = dict[str, Any]

SHARED: Row = {
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
