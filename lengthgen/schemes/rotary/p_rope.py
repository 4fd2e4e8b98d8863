"""RoPE whose slowest pairs do not turn at all, and compare content alone.

p-RoPE, Barbero et al. 2024, arXiv 2410.06205, section 6.1: omega_m = base^(-2m/r) for m < p r/2, 0
for the rest. HF transformers: rope_type `proportional`.

HoPE, Chen et al. 2024, arXiv 2410.21216 (ACL 2025): pairs that complete no turn within T stop. That
the limit is omega_m < 2 pi / T is our reading; the abstract says only that high frequencies are
retained. For r = 64, base 10000 and T = 512 it keeps 16 pairs of 32, as p = 0.5 does. Two other
methods share the name (arXiv 2509.05218 and 2505.20444).
"""

import math

import torch
from torch import Tensor

from lengthgen.errors import UserError
from lengthgen.schemes.base import AttentionContext, ModelDims, Part
from lengthgen.schemes.parameters import PositiveShare


class PRope(Part):
    """Stops all pairs but the fastest.

    share: p, the share of pairs that turn, in (0, 1]; 0.75 and 0.25 in the paper.
    """

    bidirectional = True

    def __init__(self, shape: ModelDims, *, share: PositiveShare) -> None:
        super().__init__(shape)
        self.share = share

    def frequencies(self, omega_R: Tensor, c: AttentionContext) -> Tensor:
        kept = int(self.share * len(omega_R))
        if kept == 0:
            raise UserError(
                f"p_rope.share={self.share} of {len(omega_R)} rotated channel pairs keeps none; "
                "raise it, or use the scheme nope"
            )
        return omega_R * (torch.arange(len(omega_R), device=omega_R.device) < kept)


class Hope(Part):
    """Stops the pairs whose period exceeds T."""

    bidirectional = True

    def __init__(self, shape: ModelDims) -> None:
        super().__init__(shape)
        self.slowest = 2 * math.pi / shape.train_length
        if self.slowest > 1:  # the fastest pair of RoPE turns by 1 per token
            raise ValueError(
                f"train.length={shape.train_length} is shorter than one turn of the fastest pair; "
                "at least 7 is needed"
            )

    def frequencies(self, omega_R: Tensor, c: AttentionContext) -> Tensor:
        return omega_R * (omega_R >= self.slowest)
