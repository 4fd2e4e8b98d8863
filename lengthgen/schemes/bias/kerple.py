"""KERPLE: Chi et al. 2022, arXiv 2205.09921.

The logit of query i and key j gets -r1 log(1 + r2 (i - j)), or in the power form -r1 (i - j)^r2,
with r1, r2 > 0 learned per head. As in the authors' release (chijames/KERPLE,
megatron/mpu/layers.py; there `bias_a` and `bias_p` of the power form): one pair per head serves all
layers, and both are set to 0.01 where they fall below it. The release does that before each use,
here `clamp_parameters` does after each step: the same trajectory.

Deviation: distances are never rounded to bf16 (the release casts them to the type of the model).
NeMo's `kerple` is another function, -b log(1 + a distance^p) with b from ALiBi and no bound.
"""

import torch
from torch import Tensor, nn

from lengthgen.schemes.base import AttentionContext, ModelDims
from lengthgen.schemes.bias.distance_bias import DistanceBias
from lengthgen.schemes.parameters import of_layer

SMALLEST = 0.01


class Kerple(DistanceBias):
    """Adds -r1 log(1 + r2 distance) to the logits; r1 is drawn from U(0, 2), r2 from U(0, 1).

    share_layers: one pair (r1, r2) per head for all layers, as in the release, or one in each.
    """

    drawn_to = 2, 1
    largest_r2: int | None = None

    def __init__(self, shape: ModelDims, *, share_layers: bool) -> None:
        super().__init__(shape)
        n = 1 if share_layers else shape.n_layers
        drawn = (torch.empty(n, shape.n_heads).uniform_(0, end) for end in self.drawn_to)
        self.r1, self.r2 = map(nn.Parameter, drawn)

    def bias_at(self, d_N: Tensor, c: AttentionContext) -> Tensor:
        r1_H1, r2_H1 = (of_layer(r, c)[:, None] for r in (self.r1, self.r2))
        return -r1_H1 * torch.log1p(r2_H1 * d_N)

    def clamp_parameters(self) -> None:
        self.r1.clamp_(min=SMALLEST)
        self.r2.clamp_(min=SMALLEST, max=self.largest_r2)


class KerplePower(Kerple):
    """Adds -r1 distance^r2 to the logits; r1 is drawn from U(0, 1), r2 from U(0, 2), r2 <= 2.

    r2 = 1 is ALiBi with learned slopes. share_layers: as in Kerple.
    """

    drawn_to = 1, 2
    largest_r2 = 2

    def bias_at(self, d_N: Tensor, c: AttentionContext) -> Tensor:
        r1_H1, r2_H1 = (of_layer(r, c)[:, None] for r in (self.r1, self.r2))
        return -r1_H1 * d_N.pow(r2_H1)  # not exp(r2 log d): its gradient is nan at distance 0
