"""Parts for tests: coordinates with gaps, simple biases, owners of one hook; plain attention."""

from typing import TypeVar

import torch
from torch import Tensor

from lengthgen.schemes import AttentionContext, Part

SomePart = TypeVar("SomePart", bound=Part)
SLOPE = """
from lengthgen.schemes import Part

class Slope(Part):
    def bias(self, c):
        return -{slope} * c.distance()
"""  # a plugin


class Scattered(Part):
    """Coordinates that rise by 1 to 5, other ones in each sequence: [B, T]."""

    def positions(self, tokens_BT: Tensor, c: AttentionContext) -> Tensor:
        return (1 + tokens_BT % 5).cumsum(-1)


class Sloped(Part):
    """-distance / 10 times the head's number, from 1."""

    distance_only = True

    def bias(self, c: AttentionContext) -> Tensor:
        return -head_numbers(c.shape.n_heads).to(c.dtype) * c.distance() / 10


def head_numbers(n_heads: int) -> Tensor:
    """Returns 1 ... H as [H, 1, 1]."""
    return torch.arange(1, n_heads + 1, dtype=torch.float64)[:, None, None]


def textbook(q: Tensor, k: Tensor, v: Tensor, added: Tensor) -> Tensor:
    """Returns softmax(q k^T / sqrt(d) + added) v under the causal mask."""
    later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
    logits = q @ k.mT * q.shape[-1] ** -0.5 + added
    return logits.masked_fill(later, -torch.inf).softmax(-1) @ v


class OwnScores(Part):
    def scores(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Tensor:
        return super().scores(q_BHQK, k_BHSK, c)


class OwnWeights(Part):
    def weights(self, s_BHQS: Tensor, c: AttentionContext) -> Tensor:
        return super().weights(s_BHQS, c)


def drawn(part: SomePart) -> SomePart:
    """Returns the part in float64, with parameters of about a half."""
    generator = torch.Generator().manual_seed(4)
    part = part.double()
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
        part.clamp_parameters()
    return part
