"""NTK-aware scaling of RoPE: bloc97 2023, a post on r/LocalLLaMA; no paper of its own.

The base becomes base' = base s^(r/(r-2)), as in jquesnelle/yarn (LlamaNTKScaledRotaryEmbedding.py):
angle m of r/2 is divided by s^(2m/(r-2)), the fastest by 1 and the slowest by s. So written it
needs no base, and applies to whatever angles stand. A single pair (r = 2), for which the exponent
has no value, is the fastest and keeps its angle.

R rotated channel pairs.
"""

import torch
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Part
from lengthgen.schemes.rotary.rope_scaling import checked, stretch


class Ntk(Part):
    """Raises the base so that the slowest pair turns s times as slowly, the fastest as before.

    factor: s, `alpha` in the authors' code; null: L/T of each call, at least 1.
    """

    def __init__(self, shape: ModelDims, *, factor: float | None) -> None:
        super().__init__(shape)
        self.factor = checked(factor)
        self.depends_on_length = factor is None

    def frequencies(self, omega_R: Tensor, c: AttentionContext) -> Tensor:
        return with_base_raised(omega_R, stretch(self.factor, c))


def with_base_raised(omega_R: Tensor, s: float) -> Tensor:
    """Returns omega_m s^(-m/(R-1)), the angles of the base times s^(r/(r-2)), where r = 2R."""
    m = torch.arange(len(omega_R), device=omega_R.device, dtype=omega_R.dtype)
    return omega_R * s ** (-m / max(len(omega_R) - 1, 1))
