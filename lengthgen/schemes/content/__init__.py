"""Positions that depend on what the tokens are: gates, contextual counts, other weights."""
