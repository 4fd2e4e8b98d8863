"""The attention temperature of Llama 4: Meta 2025; transformers, models/llama4/modeling_llama4.py.

Query p is multiplied by 1 + scale * ln(1 + floor((p + 1) / floor)): a step at every multiple of
`floor`. With floor = T the first step is that of the last trained query. Llama 4 has it in the
layers without positions only; name the part in `layers` of a scheme for the same.

p + 1 is taken as the number of keys up to the query, whatever coordinates other parts give out.
"""

from pydantic import PositiveFloat
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Part, Rotated
from lengthgen.schemes.parameters import tokens


class Llama4Temperature(Part):
    """Multiplies queries by a factor that grows in steps; biases are left as they are.

    scale: 0.1 in Llama 4. floor: in multiples of T; 8192 tokens in Llama 4.
    """

    needs_whole_text = True

    def __init__(self, shape: ModelDims, *, scale: PositiveFloat, floor: PositiveFloat) -> None:
        super().__init__(shape)
        self.scale, self.floor = scale, tokens(floor, shape)

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        return Rotated(q_BHQK * self.factor(c)[:, None], k_BHSK)

    def factor(self, c: AttentionContext) -> Tensor:
        """Returns the factor of each query, [Q] in c.dtype."""
        steps = c.n_visible() // self.floor
        return 1 + self.scale * steps.to(c.dtype).log1p()
