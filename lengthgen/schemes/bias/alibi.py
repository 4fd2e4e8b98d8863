"""ALiBi, attention with linear biases: Press et al. 2022, arXiv 2108.12409, section 3.

The logit of query i and key j gets -m_h (i - j), with fixed slopes m_h. The bias is a function of
the distance, never of the key's index alone: slope * j, equal under softmax in exact arithmetic,
gives neighbouring keys the same bias in half precision beyond a few thousand tokens.

Head counts that are no power of two follow the authors' release (fairseq/models/transformer.py,
get_slopes): the slopes of the power of two below, then every other slope of the one above.

`beyond: interpolate` presses a call of L > T tokens into the trained window, as position
interpolation does for RoPE: slopes times T/L (Al-Khateeb et al. 2023, arXiv 2310.13017).

H heads, Q queries, S keys.
"""

from typing import Literal

from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Part
from lengthgen.schemes.parameters import constant


class Alibi(Part):
    """Adds -m_h * distance to the logits.

    beyond: extend, the same slopes at every length, as in the paper; interpolate, slopes times T/L
    in calls of L > T tokens.
    """

    bidirectional = True
    distance_only = True

    def __init__(self, shape: ModelDims, *, beyond: Literal["extend", "interpolate"]) -> None:
        super().__init__(shape)
        self.beyond = beyond
        self.depends_on_length = beyond == "interpolate"

    def bias(self, c: AttentionContext) -> Tensor:
        m_H = constant(tuple(slopes(c.shape.n_heads)), c.q_pos.device, c.dtype)
        if self.beyond == "interpolate":
            m_H = m_H * min(1, c.shape.train_length / c.length)
        return -m_H[:, None, None] * c.distance()


def slopes(n_heads: int) -> list[float]:
    """Returns the slopes m_h of all heads: 2^(-8h/H) for a power of two, h = 1 ... H."""
    below = 2 ** (n_heads.bit_length() - 1)
    first = [2 ** (-8 * h / below) for h in range(1, below + 1)]
    return first + [2 ** (-4 * h / below) for h in range(1, 2 * (n_heads - below), 2)]
