"""The record of a run: JSONL rows on disk, of which a W&B run is a view that may fail."""

from lengthgen.tracking.rows import append_rows, keep_rows, read_rows, replace_file
from lengthgen.tracking.seals import sealed, unsealed
from lengthgen.tracking.sent import is_shown, load_sent, start_again, unsynced
from lengthgen.tracking.tracker import CurvePoint, Results, Say, Tracker

__all__ = [
    "CurvePoint",
    "Results",
    "Say",
    "Tracker",
    "append_rows",
    "is_shown",
    "keep_rows",
    "load_sent",
    "read_rows",
    "replace_file",
    "sealed",
    "start_again",
    "unsealed",
    "unsynced",
]
