"""Protocols, plans, scoring and rows."""
