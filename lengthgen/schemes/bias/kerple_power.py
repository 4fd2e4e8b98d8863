"""KERPLE in its power form: Chi et al. 2022, arXiv 2205.09921.

The logit of query i and key j gets -r1 (i - j)^r2, with r1 > 0 and 0 < r2 <= 2 learned per head: r2
= 1 is ALiBi with learned slopes. As in the authors' release (chijames/KERPLE,
megatron/mpu/layers.py, where `bias_a` is r1 and `bias_p` is r2): r1 is drawn from U(0, 1), r2 from
U(0, 2), one pair per head serves all layers, and both are kept at or above 0.01, r2 at or below 2.
`clamp_parameters` and the deviation are those of kerple.py.
"""

import torch
from torch import Tensor, nn

from lengthgen.schemes.base import AttentionContext, ModelDims
from lengthgen.schemes.bias.distance_bias import DistanceBias
from lengthgen.schemes.bias.kerple import SMALLEST
from lengthgen.schemes.parameters import of_layer


class KerplePower(DistanceBias):
    """Adds -r1 distance^r2 to the logits.

    share_layers: one pair (r1, r2) per head for all layers, as in the release, or one in each.
    """

    def __init__(self, shape: ModelDims, *, share_layers: bool) -> None:
        super().__init__(shape)
        n = 1 if share_layers else shape.n_layers
        self.r1 = nn.Parameter(torch.rand(n, shape.n_heads))
        self.r2 = nn.Parameter(2 * torch.rand(n, shape.n_heads))

    def bias_at(self, d_N: Tensor, c: AttentionContext) -> Tensor:
        r1_H1, r2_H1 = of_layer(self.r1, c)[:, None], of_layer(self.r2, c)[:, None]
        # Not exp(r2 log d): that has the gradient nan at distance 0.
        return -r1_H1 * d_N.pow(r2_H1)

    def clamp_parameters(self) -> None:
        self.r1.clamp_(min=SMALLEST)
        self.r2.clamp_(min=SMALLEST, max=2)
