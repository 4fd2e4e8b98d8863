"""STRING, shifted rotary positions: An et al. 2024, arXiv 2410.18745. Far keys come nearer.

Few training windows hold distances near T, so that these are badly trained. Keys nearer than S
(`shift`) keep their distance, farther ones have i - j - S + W, W = `local`: none above L - S + W,
which lies within T up to a length of T + S - W. As in the authors' code (HKUNLP/STRING,
string_for_llama.py), which takes S = 0.33 L of 128k tokens, W = 128, and multiplies cos and sin by
0.1 ln 2 + 1: here q by its square (`mscale`). Deviations: S and W are multiples of T, whatever L,
since the paper has L <= T; and a key at the distance S is far, as in the release's decoding: its
reading of a prompt counts it in both branches.
"""

from pydantic import PositiveFloat
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Rotated
from lengthgen.schemes.parameters import tokens
from lengthgen.schemes.remap import Branch, Remap


class String(Remap):
    """Takes S - W off the distance of far keys.

    shift, local: S and W in multiples of T; S about a third, W small. mscale: of cos and sin.
    """

    def __init__(
        self,
        shape: ModelDims,
        *,
        shift: PositiveFloat,
        local: PositiveFloat,
        mscale: PositiveFloat,
    ) -> None:
        super().__init__(shape)
        self.shift, self.local, self.mscale = tokens(shift, shape), tokens(local, shape), mscale
        if self.local >= self.shift:
            raise ValueError(
                f"local={local} must be below shift={shift}: at train.length={shape.train_length} "
                f"they are {self.local} and {self.shift} tokens"
            )

    def branches(self, c: AttentionContext) -> list[Branch]:
        far = c.distance() >= self.shift
        nearer = c.q_pos - (self.shift - self.local)
        return [Branch(c.q_pos, c.k_pos, ~far), Branch(nearer, c.k_pos, far)]

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        return Rotated(q_BHQK * self.mscale**2, k_BHSK)
