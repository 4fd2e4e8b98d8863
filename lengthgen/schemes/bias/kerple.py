"""KERPLE: Chi et al. 2022, arXiv 2205.09921.

The logit of query i and key j gets -r1 log(1 + r2 (i - j)), or in the power form -r1 (i - j)^r2,
with r1, r2 > 0 learned per head. As in the authors' release (chijames/KERPLE,
megatron/mpu/layers.py; there `bias_a` and `bias_p` of the power form): one pair per head serves all
layers, and both are set to 0.01 where they fall below it. The release does that before each use,
here `clamp_parameters` does after each step: the same trajectory. A clamp inside the formula would
stop the gradient of a clamped value for good.

Deviation: distances are never rounded to bf16 (the release casts them to the type of the model).
NeMo's `kerple` is another function, -b log(1 + a distance^p) with b from ALiBi and no bound.
"""

import torch
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims
from lengthgen.schemes.bias.distance_bias import DistanceBias
from lengthgen.schemes.parameters import of_layer, uniform

SMALLEST = 0.01


class Kerple(DistanceBias):
    """Adds -r1 log(1 + r2 distance) to the logits; r1 is drawn from U(0, 2), r2 from U(0, 1).

    share_layers: one pair (r1, r2) per head for all layers, as in the release, or one in each.
    """

    def __init__(self, shape: ModelDims, *, share_layers: bool) -> None:
        super().__init__(shape)
        n = 1 if share_layers else shape.n_layers
        self.r1 = uniform(n, shape.n_heads, to=2)
        self.r2 = uniform(n, shape.n_heads, to=1)

    def bias_at(self, d_N: Tensor, c: AttentionContext) -> Tensor:
        r1_H1, r2_H1 = of_layer(self.r1, c)[:, None], of_layer(self.r2, c)[:, None]
        return -r1_H1 * torch.log1p(r2_H1 * d_N)

    def clamp_parameters(self) -> None:
        self.r1.clamp_(min=SMALLEST)
        self.r2.clamp_(min=SMALLEST)


class KerplePower(DistanceBias):
    """Adds -r1 distance^r2 to the logits; r1 is drawn from U(0, 1), r2 from U(0, 2), r2 <= 2.

    r2 = 1 is ALiBi with learned slopes. share_layers: as in Kerple.
    """

    def __init__(self, shape: ModelDims, *, share_layers: bool) -> None:
        super().__init__(shape)
        n = 1 if share_layers else shape.n_layers
        self.r1 = uniform(n, shape.n_heads, to=1)
        self.r2 = uniform(n, shape.n_heads, to=2)

    def bias_at(self, d_N: Tensor, c: AttentionContext) -> Tensor:
        r1_H1, r2_H1 = of_layer(self.r1, c)[:, None], of_layer(self.r2, c)[:, None]
        # Not exp(r2 log d): that has the gradient nan at distance 0.
        return -r1_H1 * d_N.pow(r2_H1)

    def clamp_parameters(self) -> None:
        self.r1.clamp_(min=SMALLEST)
        self.r2.clamp_(min=SMALLEST, max=2)
