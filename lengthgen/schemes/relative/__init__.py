"""Rows added to keys and values by distance, and the memory of earlier segments."""
