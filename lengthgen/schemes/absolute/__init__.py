"""Positions mixed into the token embeddings, and the coordinates that parts give out."""
