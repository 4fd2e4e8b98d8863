"""BAM, a generalised Gaussian prior over distances: Bianchessi et al. 2025, arXiv 2505.22842.

The logit of query i and key j gets -e^sigma (i - j + 1e-5)^beta, sigma and beta learned per head
and shared by all layers; at the start it is ALiBi (sigma the logarithm of its slope, beta 1). It is
kerple_power without bounds: where beta falls below 0, a head attends to far keys.

This is what the authors' training code evaluates (ArthurSBianchessi/BAM, models/bam.py). Their code
for inference has (e^sigma distance + 1e-5)^beta, another function unless beta is 1. Left out: the
prior's location mu, which that code holds at 0, and the scaled softmax it may be combined with.
"""

import torch
from torch import Tensor, nn

from lengthgen.schemes.base import AttentionContext, ModelDims
from lengthgen.schemes.bias.alibi import slopes
from lengthgen.schemes.bias.distance_bias import DistanceBias
from lengthgen.schemes.parameters import of_layer

NEAREST = 1e-5  # keeps distance 0 finite where beta is negative


class Bam(DistanceBias):
    """Adds -e^sigma (distance + 1e-5)^beta to the logits.

    share_layers: one pair (sigma, beta) per head for all layers, as in the release, or one in each.
    """

    def __init__(self, shape: ModelDims, *, share_layers: bool) -> None:
        super().__init__(shape)
        n = 1 if share_layers else shape.n_layers
        self.sigma = nn.Parameter(torch.tensor(slopes(shape.n_heads)).log().repeat(n, 1))
        self.beta = nn.Parameter(torch.ones(n, shape.n_heads))

    def bias_at(self, d_N: Tensor, c: AttentionContext) -> Tensor:
        sigma_H1, beta_H1 = of_layer(self.sigma, c)[:, None], of_layer(self.beta, c)[:, None]
        return -sigma_H1.exp() * (d_N + NEAREST).pow(beta_H1)
