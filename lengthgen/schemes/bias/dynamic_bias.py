"""Dynamic position bias: a small network from the distance to a bias per head.

Wang et al. 2021 (CrossFormer, arXiv 2108.00154), for images. For language models as
`dynamic_pos_bias` of x-transformers, which this follows: linear layers with biases and SiLU between
them, no norm, raw distances (or their logarithm, as in Swin V2, Liu et al. 2021, arXiv 2111.09883),
one network for all layers, torch's default initialisation.

Deviation: x-transformers feeds signed distances, as it serves bidirectional models too.

R width of the network.
"""

from itertools import pairwise
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from lengthgen.schemes.base import AttentionContext, ModelDims
from lengthgen.schemes.bias.distance_bias import DistanceBias
from lengthgen.schemes.parameters import as_linear, of_layer


class DynamicBias(DistanceBias):
    """Adds MLP(distance), one output per head, to the logits.

    width: of the hidden layers, in multiples of d_model; 1/4 in x-transformers. depth: hidden
    layers, 2 there. distance: as it is, or log(1 + distance). share_layers: one network for all
    layers of the model, as there, or one in each.
    """

    def __init__(
        self,
        shape: ModelDims,
        *,
        width: float,
        depth: Annotated[int, Field(ge=1, le=64)],
        distance: Literal["linear", "log"],
        share_layers: bool,
    ) -> None:
        super().__init__(shape)
        R = int(shape.d_model * width)
        if R < 1:
            raise ValueError(
                f"width={width} of d_model={shape.d_model} gives no hidden unit; give "
                f"{1 / shape.d_model:g} or more"
            )
        self.log = distance == "log"
        n = 1 if share_layers else shape.n_layers
        sizes = [1, *[R] * depth, shape.n_heads]
        self.linear_weights = nn.ParameterList(
            as_linear(n, b, a, fan_in=a) for a, b in pairwise(sizes)
        )
        self.linear_biases = nn.ParameterList(as_linear(n, b, fan_in=a) for a, b in pairwise(sizes))

    def bias_at(self, d_N: Tensor, c: AttentionContext) -> Tensor:
        layers = [
            (of_layer(weight, c), of_layer(bias, c))
            for weight, bias in zip(self.linear_weights, self.linear_biases, strict=True)
        ]
        x_NR = (torch.log1p(d_N) if self.log else d_N)[:, None]
        for i, (weight, bias) in enumerate(layers):
            x_NR = F.linear(F.silu(x_NR) if i else x_NR, weight.to(d_N), bias.to(d_N))
        return x_NR.T
