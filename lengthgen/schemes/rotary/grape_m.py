"""Multiplicative GRAPE: Zhang et al. 2025, arXiv 2512.07805, commuting planes with a trained angle.

A position n acts on queries and keys as exp(n omega L), L a generator of rotations. With the planes
of RoPE's channel pairs these are RoPE's rotations by angles omega_m = exp(w_m) that are trained,
from base^(-2m/d) on; all heads share them. As in the authors' code (model-architectures/GRAPE,
model/llama-mha-grape-m-nonctx.py). Trained planes, and angles that depend on the token, are left
out: for these see `selective_rope`.
"""

import math

import torch
from torch import Tensor, nn

from lengthgen.schemes.base import AttentionContext, ModelDims
from lengthgen.schemes.parameters import Base, of_layer
from lengthgen.schemes.rotary.rope import Rope


class GrapeM(Rope):
    """Rotates queries and keys by position, with trained angles per position.

    base: of the angles before training, 10000.
    """

    def __init__(self, shape: ModelDims, *, base: Base) -> None:
        super().__init__(shape, base=base, rotary_percentage=1.0, layout="half")
        slope = -2 * math.log(base) / shape.d_head
        log_omega_R = torch.tensor([m * slope for m in range(shape.d_head // 2)])
        self.log_omega = nn.Parameter(log_omega_R.repeat(shape.n_layers, 1))

    def omega(self, c: AttentionContext) -> Tensor:
        return of_layer(self.log_omega, c).to(c.dtype).exp()
