"""Additive GRAPE: Zhang et al. 2025, arXiv 2512.07805, with gates of keys, queries or both.

ALiBi whose slopes depend on content: the logit of query i and key j gets

  -(i - j) m_h omega_h (softplus(v_h . q_i / sqrt(d)) + softplus(u_h . k_j / sqrt(d)))

with one of the two terms for gates of queries or keys alone. m_h are ALiBi's slopes, omega_h > 0 is
trained and begins at 1, u_h and v_h are trained directions, scaled to length 1. As in the authors'
code (model-architectures/GRAPE, model/llama-mha-grape-a-querykeygated.py), whose queries and keys
have been through a norm before; here they are as the scheme's other parts leave them.

The framework contains ALiBi (constant gates) and FoX (sums of gates, `fox`). Its other forms are
the part `grape_m` and, left out, path integrals (GRAPE-AP).
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lengthgen.schemes.base import AttentionContext, ModelDims, Part, products
from lengthgen.schemes.bias.alibi import slopes
from lengthgen.schemes.parameters import constant, normal, of_layer


class GrapeA(Part):
    """Adds to the logits the distance times slopes that query and key give.

    gates: whose content counts.
    """

    reads_qk = True

    def __init__(
        self, shape: ModelDims, *, gates: Literal["key", "query", "query_and_key"]
    ) -> None:
        super().__init__(shape)
        n, H, K = shape.n_layers, shape.n_heads, shape.d_head
        self.omega = nn.Parameter(torch.full((n, H), math.log(math.expm1(1))))
        self.u = normal(n, H, K, std=K**-0.5) if gates != "query" else None
        self.v = normal(n, H, K, std=K**-0.5) if gates != "key" else None

    def scores(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Tensor:
        rate = gate(self.u, k_BHSK, c).mT + gate(self.v, q_BHQK, c)
        m_H = constant(tuple(slopes(c.shape.n_heads)), c.q_pos.device, c.dtype)
        omega_H = m_H * F.softplus(of_layer(self.omega, c).to(c.dtype))
        return c.biased(
            products(q_BHQK, k_BHSK, c) - c.distance() * (omega_H[:, None, None] * rate)
        )


def gate(direction: nn.Parameter | None, x_BHTK: Tensor, c: AttentionContext) -> Tensor:
    """Returns softplus(u.x / sqrt(d)) for each head's direction u, [B, H, T, 1]; 0 without one."""
    if direction is None:
        return x_BHTK.new_zeros(1, 1, 1, 1, dtype=c.dtype)
    u_HK1 = F.normalize(of_layer(direction, c).to(c.dtype), dim=-1)[..., None]
    return F.softplus(x_BHTK.to(c.dtype) @ u_HK1 * c.shape.d_head**-0.5)
