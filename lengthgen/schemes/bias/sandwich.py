"""Sandwich: Chi et al. 2023, arXiv 2212.10356.

The inner product of the sinusoidal embeddings of two positions, sum_m cos(distance * w_m) with
w_m = 10000^(-2m/width) and m = 0 ... width/2 - 1, divided by 8h/H in head h = 1 ... H.

Zero-shifted: width/2 is taken off each sum, so that distance 0 gets 0; bf16 would spend its 8 bits
on a constant. NeMo's `sandwich` is another function: its m begins at 1, its width is the head's.

M frequencies.
"""

from typing import Annotated

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims
from lengthgen.schemes.bias.distance_bias import DistanceBias


class Sandwich(DistanceBias):
    """Adds (sum_m cos(distance * w_m) - width/2) / (8h/H) to the logits.

    width: d-bar in the paper, 128, whatever the model's width.
    """

    def __init__(
        self, shape: ModelDims, *, width: Annotated[PositiveInt, Field(multiple_of=2)]
    ) -> None:
        super().__init__(shape)
        self.width = width

    def bias_at(self, d_N: Tensor, c: AttentionContext) -> Tensor:
        H = self.shape.n_heads
        m = torch.arange(self.width // 2, device=d_N.device, dtype=d_N.dtype)
        h = torch.arange(1, H + 1, device=d_N.device, dtype=d_N.dtype)
        angles_NM = d_N[:, None] * 10000 ** (-2 * m / self.width)
        return (angles_NM.cos() - 1).sum(-1) / (8 * h / H)[:, None]
