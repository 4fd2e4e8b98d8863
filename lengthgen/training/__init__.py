"""The optimizer step and the loop."""
