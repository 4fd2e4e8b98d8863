"""Run directories, checkpoints, processes and devices."""
