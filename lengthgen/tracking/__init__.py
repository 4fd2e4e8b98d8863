"""The record of a run: JSONL rows on disk, of which a W&B run is a view that may fail."""
