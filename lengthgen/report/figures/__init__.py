"""Figures: the only matplotlib. Each module draws one kind of figure from numbers."""
