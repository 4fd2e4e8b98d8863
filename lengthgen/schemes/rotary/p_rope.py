"""p-RoPE: Barbero et al. 2024, arXiv 2410.06205, section 6.1. The slowest pairs do not turn at all.

omega_m = base^(-2m/r) for m < int(p r/2), and 0 for the rest, which compare content alone. This is
not partial rotation (rope's rotary_percentage): there, fewer channels share out the whole range of
frequencies; here the range is cut and the angles that stay are those of RoPE. HF transformers calls
it rope_type `proportional`.
"""

import torch
from torch import Tensor

from lengthgen.errors import UserError
from lengthgen.schemes.base import AttentionContext, ModelDims, Part
from lengthgen.schemes.parameters import Share


class PRope(Part):
    """Stops all pairs but the fastest.

    share: p, the share of pairs that turn, in (0, 1]; 0.75 and 0.25 in the paper.
    """

    bidirectional = True

    def __init__(self, shape: ModelDims, *, share: Share) -> None:
        super().__init__(shape)
        self.share = share

    def frequencies(self, omega_R: Tensor, c: AttentionContext) -> Tensor:
        kept = int(self.share * len(omega_R))
        if kept == 0:
            raise UserError(
                f"p_rope.share={self.share} of {len(omega_R)} rotated channel pairs keeps none; "
                "raise it, or use the scheme nope"
            )
        return omega_R * (torch.arange(len(omega_R), device=omega_R.device) < kept)
