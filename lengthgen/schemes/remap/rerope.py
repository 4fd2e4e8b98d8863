"""ReRoPE, rectified rotary position embedding: Su 2023, github.com/bojone/rerope, no paper.

Distances stop growing at a window w: min(i - j, w). Nearer pairs rotate as always; for farther
ones the query stands at w and the key at 0. A part of its own, so that it applies to whatever
rotates. The release also multiplies queries by the log-n factor; here that is the part `logn`.

The release ran windows of 512 and 1024 at T = 4096.
"""

import torch
from pydantic import PositiveFloat

from lengthgen.schemes.base import AttentionContext, ModelDims
from lengthgen.schemes.parameters import tokens
from lengthgen.schemes.remap.remap import Branch, Remap


class Rerope(Remap):
    """Caps the distances of rotary parts.

    window: w in multiples of T.
    """

    def __init__(self, shape: ModelDims, *, window: PositiveFloat) -> None:
        super().__init__(shape)
        self.window = tokens(window, shape)

    def branches(self, c: AttentionContext) -> list[Branch]:
        far = c.distance() >= self.window
        return [
            Branch(c.q_pos, c.k_pos, ~far),
            Branch(torch.full_like(c.q_pos, self.window), torch.zeros_like(c.k_pos), far),
        ]
