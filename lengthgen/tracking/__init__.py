"""The record of a run: JSONL rows on disk, of which a W&B run is a view that may fail."""

from lengthgen.tracking.wandb_run import CurvePoint, Results, Say, Tracker
from lengthgen.tracking.wandb_state import is_shown, load_sent, start_again, unsynced

__all__ = [
    "CurvePoint",
    "Results",
    "Say",
    "Tracker",
    "is_shown",
    "load_sent",
    "start_again",
    "unsynced",
]
