"""Leaky ReRoPE: Su 2023, github.com/bojone/rerope (leaky_rerope_patch.py), no paper.

Beyond a window w, distances grow kappa times slower: w + (i - j - w) / kappa. They stay inside the
trained ones up to a length of w + (T - w) kappa. Far pairs have fractional coordinates, the
query's shifted by w (1 - 1/kappa). The release's log-n factor is the part `logn`.
"""

from pydantic import PositiveFloat

from lengthgen.schemes.base import AttentionContext, ModelDims
from lengthgen.schemes.parameters import AtLeastOne, tokens
from lengthgen.schemes.remap.remap import Branch, Remap


class LeakyRerope(Remap):
    """Slows the distances of rotary parts beyond a window.

    window: w in multiples of T. slowdown: kappa, 16 in the release.
    """

    def __init__(self, shape: ModelDims, *, window: PositiveFloat, slowdown: AtLeastOne) -> None:
        super().__init__(shape)
        self.window = tokens(window, shape)
        self.slowdown = slowdown

    def branches(self, c: AttentionContext) -> list[Branch]:
        far = c.distance() >= self.window
        slow_q, slow_k = (pos.to(c.dtype) / self.slowdown for pos in (c.q_pos, c.k_pos))
        shift = self.window * (1 - 1 / self.slowdown)
        return [Branch(c.q_pos, c.k_pos, ~far), Branch(slow_q + shift, slow_k, far)]
