"""Probes: what a trained checkpoint does with positions, in rows of numbers and a picture each."""

LOG = "probes.jsonl"  # in the folder of a run
