"""Log-n scaling: queries times max(1, ln n / ln T), n the number of keys up to the query.

Su's ReRoPE release has it built in (github.com/bojone/rerope), SelfExtend's has it as an option.
More keys flatten a softmax; the factor sharpens it again past the trained length, and is exactly 1
up to there. BiPE's `log_scale` has no maximum with 1 and also flattens rows before T: another
function.
"""

import math

from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Part, Rotated


class Logn(Part):
    """Multiplies queries, so that scores grow with the logarithm of the keys; biases do not."""

    needs_whole_text = True

    def __init__(self, shape: ModelDims) -> None:
        super().__init__(shape)
        if shape.train_length < 2:
            raise ValueError(
                f"train.length={shape.train_length} must be above 1: log-n divides by its logarithm"
            )

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        return Rotated(q_BHQK * self.factor(c)[:, None], k_BHSK)

    def factor(self, c: AttentionContext) -> Tensor:
        """Returns the factor of each query, [Q] in c.dtype."""
        T = self.shape.train_length
        beyond = (c.n_visible().to(c.dtype) / T).clamp(min=1)  # ln 1 = 0: no rounding up to T
        return 1 + beyond.log() / math.log(T)
