"""Lengths that a YAML gives in multiples of the trained length T, so that they follow it."""

from lengthgen.schemes.base import ModelDims


def tokens(name: str, multiple: float, shape: ModelDims) -> int:
    """Returns multiple * T as a number of tokens, rounded, at least 1.

    Raises ValueError that names the argument if it is not above 0.
    """
    if multiple <= 0:
        raise ValueError(f"{name}={multiple} must be above 0")
    return max(1, round(multiple * shape.train_length))
