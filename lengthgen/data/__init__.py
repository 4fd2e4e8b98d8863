"""Corpora: sources, tokens, windows."""
