"""Clipped RoPE: Li et al. 2026, arXiv 2602.05258 (there CoPE). Slow pairs fade to a stop.

Of all pairs, the n slowest turn by omega_m (1 + cos(pi i / (n - 1))) / 2, i = 0 ... n-1 from the
fastest of them: the first as before, the last not at all. A hard limit (`p_rope`, `hope`) leaks
into other frequencies, says the paper. As in the authors' code (hrlics/CoPE, modeling_cope.py),
where n is 20 of 64 pairs at base 500000; that model is trained further with the new angles.
"""

import math

import torch
from torch import Tensor

from lengthgen.errors import UserError
from lengthgen.schemes.base import AttentionContext, ModelDims, Part
from lengthgen.schemes.parameters import PositiveShare


class SoftClip(Part):
    """Slows the slowest pairs down, to a stop.

    share: n, as a share of all pairs, in (0, 1], rounded up; 20/64 in the authors' code.
    """

    bidirectional = True

    def __init__(self, shape: ModelDims, *, share: PositiveShare) -> None:
        super().__init__(shape)
        self.share = share

    def frequencies(self, omega_R: Tensor, c: AttentionContext) -> Tensor:
        n = math.ceil(self.share * len(omega_R))
        if n < 2:
            raise UserError(
                f"soft_clip.share={self.share} of {len(omega_R)} rotated channel pairs clips {n}; "
                "at least 2 are needed; raise it, or leave the part out"
            )
        theta = torch.linspace(0, math.pi, n, device=omega_R.device, dtype=omega_R.dtype)
        kept = torch.ones_like(omega_R[n:])
        return omega_R * torch.cat([kept, (1 + theta.cos()) / 2])
