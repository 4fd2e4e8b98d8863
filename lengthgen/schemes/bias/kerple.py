"""KERPLE in its logarithmic form: Chi et al. 2022, arXiv 2205.09921.

The logit of query i and key j gets -r1 log(1 + r2 (i - j)), with r1, r2 > 0 learned per head. As
in the authors' release (chijames/KERPLE, megatron/mpu/layers.py): r1 is drawn from U(0, 2), r2 from
U(0, 1), one pair per head serves all layers, and both are set to 0.01 where they fall below it. The
release does that before each use, here `clamp_parameters` does after each step: the same
trajectory. A clamp inside the formula would be another one, as it stops the gradient of a clamped
value for good.

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
    """Adds -r1 log(1 + r2 distance) to the logits.

    share_layers: one pair (r1, r2) per head for all layers, as in the release, or one in each.
    """

    def __init__(self, shape: ModelDims, *, share_layers: bool) -> None:
        super().__init__(shape)
        n = 1 if share_layers else shape.n_layers
        self.r1 = nn.Parameter(2 * torch.rand(n, shape.n_heads))
        self.r2 = nn.Parameter(torch.rand(n, shape.n_heads))

    def bias_at(self, d_N: Tensor, c: AttentionContext) -> Tensor:
        r1_H1, r2_H1 = of_layer(self.r1, c)[:, None], of_layer(self.r2, c)[:, None]
        return -r1_H1 * torch.log1p(r2_H1 * d_N)

    def clamp_parameters(self) -> None:
        self.r1.clamp_(min=SMALLEST)
        self.r2.clamp_(min=SMALLEST)
