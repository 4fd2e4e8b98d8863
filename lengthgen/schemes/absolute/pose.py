"""PoSE, positional skip-wise training: Zhu et al. 2023, arXiv 2309.10400.

In training a window's positions are 0 ... a-1 and a+u ... L-1+u: two chunks with a skip between
them, a uniform in 1 ... L/2 and u in 0 ... maximum-L, so that windows of T tokens have all
distances up to the maximum. Evaluation has 0 ... L-1. As in the authors' code (dwzhu-pku/PoSE,
train_pose.py), which trains further a model whose rotary angles are divided by maximum / T
(`pi`, or another scaling).

Deviations: one draw serves all rows of a call, and the text of the second chunk is what follows the
first; the release takes it from further on in the same document.
"""

import torch
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Part
from lengthgen.schemes.parameters import AtLeastOne, tokens


class Pose(Part):
    """Skips positions in training, within each window.

    maximum: positions in all, in multiples of T; 8 to 64 in the paper.
    """

    def __init__(self, shape: ModelDims, *, maximum: AtLeastOne) -> None:
        super().__init__(shape)
        self.maximum = tokens(maximum, shape)

    @property
    def depends_on_length(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.training

    def largest_position(self, length: int) -> int:
        return max(self.maximum, length) - 1

    def positions(self, tokens_BT: Tensor, c: AttentionContext) -> Tensor:
        if not c.training or c.length >= self.maximum:
            return c.pos
        if c.generator is None:
            raise ValueError("pose draws positions; call the model with a generator")
        first = int(torch.randint(1, (c.length + 1) // 2 + 1, (), generator=c.generator))
        skip = int(torch.randint(self.maximum - c.length + 1, (), generator=c.generator))
        return c.pos + skip * (c.pos >= first)
