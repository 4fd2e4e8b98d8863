"""DCA, dual chunk attention: An et al. 2024, arXiv 2402.17463.

Tokens are cut into chunks of c = s - w positions, numbered 0 ... c-1 in each. A key keeps its
number j mod c. A query stands at i mod c for keys of its own chunk, at min(i mod c + c, s) for
those of the chunk before, so that distances up to w are exact, and at s for all older ones. No
distance exceeds s, whatever the length.

Chunks are counted from the first token. The release (ChunkLlama) multiplies cos and sin by a factor
that its own comment says the paper does not use: left out here.
"""

from dataclasses import replace

import torch
from pydantic import PositiveFloat

from lengthgen.schemes.base import AttentionContext, ModelDims
from lengthgen.schemes.parameters import tokens
from lengthgen.schemes.remap.remap import Branch, Remap, from_first


class DualChunk(Remap):
    """Rotates by distances within and between chunks.

    chunk: s in multiples of T, 3/4 in the release. local: w in multiples of T, 1/8 in the release.
    """

    def __init__(self, shape: ModelDims, *, chunk: PositiveFloat, local: PositiveFloat) -> None:
        super().__init__(shape)
        self.chunk = tokens(chunk, shape)
        self.local = tokens(local, shape)
        if self.local >= self.chunk:
            raise ValueError(
                f"local={local} must be below chunk={chunk}: at train.length={shape.train_length} "
                f"they are {self.local} and {self.chunk} tokens"
            )

    def branches(self, c: AttentionContext) -> list[Branch]:
        size = self.chunk - self.local
        q_pos, k_pos = from_first(c)
        behind = replace(c, q_pos=q_pos // size, k_pos=k_pos // size).distance()  # in chunks
        q_pos, k_pos = q_pos % size, k_pos % size
        return [
            Branch(q_pos, k_pos, behind == 0),
            Branch((q_pos + size).clamp(max=self.chunk), k_pos, behind == 1),
            Branch(torch.full_like(q_pos, self.chunk), k_pos, behind >= 2),
        ]
