"""PoPE, polar coordinate position embedding: Gopalakrishnan et al. 2025, arXiv 2509.10534.

Every channel of q and k is a magnitude, softplus(x), and its position an angle; content never
changes the angle, as it does in RoPE. The logit of query i and key j is, for head h,

  (1/sqrt(d)) sum_m softplus(q_im) softplus(k_jm) cos((i - j) omega_m - phi_hm), omega_m = b^(-m/d),

with one frequency per channel, not per pair. Queries and keys become [r cos | r sin], 2d wide; the
scale stays that of d. phi in [-2 pi, 0] is learned. As in x-transformers 2.31 (PolarEmbedding) it
starts at 0, and all layers share it; there it is clamped when used, here after every step, so that
its gradient does not vanish past the bounds.

A part that scales q must stand after this one.

R channels.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lengthgen.schemes.base import AttentionContext, ModelDims, Part, Rotated
from lengthgen.schemes.parameters import Base, of_layer
from lengthgen.schemes.rotary.rope import angles, powers


class Pope(Part):
    """Turns the softplus of queries and keys by their positions, and keys by a learned phase.

    base: 10000. share_layers: one phi for all layers, or one in each.
    """

    reads_qk = True
    bidirectional = True
    rotary = True
    owns_qk = "makes q and k twice as wide"

    def __init__(self, shape: ModelDims, *, base: Base, share_layers: bool) -> None:
        super().__init__(shape)
        self.base = base
        n_phases = 1 if share_layers else shape.n_layers
        self.phi = nn.Parameter(torch.zeros(n_phases, shape.n_heads, shape.d_head))

    def clamp_parameters(self) -> None:
        self.phi.clamp_(-2 * math.pi, 0)

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        omega_R = c.frequencies(powers(self.base, 2 * c.shape.d_head, c))
        phi_H1R = of_layer(self.phi, c)[:, None].to(c.dtype)
        return Rotated(
            polar(q_BHQK, angles(c.q_pos, omega_R)),
            polar(k_BHSK, angles(c.k_pos, omega_R) + phi_H1R),
        )


def polar(x_BHTK: Tensor, theta: Tensor) -> Tensor:
    """Returns [r cos(theta) | r sin(theta)], r = softplus(x), in x's dtype."""
    r = F.softplus(x_BHTK.to(theta.dtype))
    return torch.cat([r * theta.cos(), r * theta.sin()], dim=-1).to(x_BHTK.dtype)
