"""A temperature that falls with the length of the call: logits times 1 + c ln(L/T) beyond T.

The form that DroPE (Gelberg et al. 2025, arXiv 2512.12167) uses for models whose positions were
dropped; its c is tuned per model. YaRN's factor, (1 + 0.1 ln(L/T))^2, has c = 0.2 to first order.
All queries of a call have one factor, unlike `logn`, where a query's is that of its own place.
"""

import math

from pydantic import PositiveFloat
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Part, Rotated


class Temperature(Part):
    """Multiplies queries, so that scores grow with the logarithm of the length; biases do not.

    coefficient: c.
    """

    depends_on_length = True

    def __init__(self, shape: ModelDims, *, coefficient: PositiveFloat) -> None:
        super().__init__(shape)
        self.coefficient = coefficient

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        return Rotated(q_BHQK * self.factor(c.length), k_BHSK)

    def factor(self, length: int) -> float:
        """Returns the factor of all queries of a call of that length."""
        return 1 + self.coefficient * math.log(max(1, length / self.shape.train_length))
