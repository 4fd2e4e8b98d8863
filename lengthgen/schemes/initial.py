"""Initial values that several parts share."""

import torch
from torch import nn


def as_linear(*sizes: int, fan_in: int) -> nn.Parameter:
    """Returns a parameter drawn as torch.nn.Linear draws its own: U(-1, 1) / sqrt(fan_in)."""
    bound = fan_in**-0.5
    return nn.Parameter(torch.empty(sizes).uniform_(-bound, bound))
