"""SelfExtend: Jin et al. 2024, arXiv 2401.01325.

Keys nearer than W have their ordinary distance. Farther ones are seen in groups of G positions:
floor(i/G) - floor(j/G) + W - floor(W/G). Distances stay inside the trained ones up to a length of
about W + (T - W) G.

The authors' first release shifts by the integer W - floor(W/G), as here; their later one by the
fractional W - W/G. The two differ wherever G does not divide W: the integer gives far keys only
positions that were trained. Groups are counted from the first token, so that a constant added to
all positions changes nothing.
"""

from pydantic import PositiveFloat, PositiveInt

from lengthgen.schemes.base import AttentionContext, ModelDims
from lengthgen.schemes.parameters import tokens
from lengthgen.schemes.remap.remap import Branch, Remap, from_first


class Selfextend(Remap):
    """Rotates far pairs by the distance between their groups.

    neighbours: W in multiples of T; 1024 of 4096 tokens in the release. group: G; 8 in the release.
    """

    def __init__(self, shape: ModelDims, *, neighbours: PositiveFloat, group: PositiveInt) -> None:
        super().__init__(shape)
        self.neighbours = tokens(neighbours, shape)
        self.group = group

    def branches(self, c: AttentionContext) -> list[Branch]:
        far = c.distance() >= self.neighbours
        q_pos, k_pos = from_first(c)
        shift = self.neighbours - self.neighbours // self.group
        return [
            Branch(c.q_pos, c.k_pos, ~far),
            Branch(q_pos // self.group + shift, k_pos // self.group, far),
        ]
