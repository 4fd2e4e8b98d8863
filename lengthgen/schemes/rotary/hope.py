"""HoPE, high-frequency rotary position encoding: Chen et al. 2024, arXiv 2410.21216 (ACL 2025).

Pairs that do not complete a turn within the trained length do not turn at all: their components do
not depend on the position. That the limit is omega_m < 2 pi / T is our reading; the abstract says
only that the high frequencies are retained. For r = 64, base 10000 and T = 512 it keeps 16 pairs of
32, as p-RoPE with p = 0.5 does. Two other methods share the name (arXiv 2509.05218, hyperbolic;
2505.20444, for vision-language models).
"""

import math

from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Part


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
