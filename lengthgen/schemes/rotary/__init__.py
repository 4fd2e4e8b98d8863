"""Rotations of queries and keys by position, and the parts that rescale their frequencies."""
