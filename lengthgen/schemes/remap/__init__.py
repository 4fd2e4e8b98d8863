"""Rotary logits at remapped positions."""
