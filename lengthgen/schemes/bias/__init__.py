"""Biases of the logits that depend on the distance."""
