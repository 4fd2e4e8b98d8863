"""ALiBi with learned slopes: `alibi_learned` of McGill-NLP/length-generalization.

The code of Kazemnejad et al. 2023 (arXiv 2305.19466) offers it. The logarithm of each slope is a
parameter, so that slopes stay positive; they begin at ALiBi's own. One slope per head serves all
layers, as there. Deviation: the bias is -slope * distance, where that code has slope * j, which
half precision cannot tell apart at large j.
"""

import torch
from torch import Tensor, nn

from lengthgen.schemes.base import AttentionContext, ModelDims, Part
from lengthgen.schemes.bias.alibi import slopes
from lengthgen.schemes.parameters import of_layer


class AlibiLearned(Part):
    """Adds -exp(log_slope) * distance to the logits.

    share_layers: one slope per head for all layers, or one in each.
    """

    bidirectional = True
    distance_only = True

    def __init__(self, shape: ModelDims, *, share_layers: bool) -> None:
        super().__init__(shape)
        n = 1 if share_layers else shape.n_layers
        self.log_slopes = nn.Parameter(torch.tensor(slopes(shape.n_heads)).log().repeat(n, 1))

    def bias(self, c: AttentionContext) -> Tensor:
        return -of_layer(self.log_slopes, c).exp()[:, None, None] * c.distance()
