"""NTK-aware scaling of RoPE: bloc97 2023, a post on r/LocalLLaMA; no paper of its own.

The base becomes base' = base s^(r/(r-2)), as in jquesnelle/yarn (LlamaNTKScaledRotaryEmbedding.py):
angle m of r/2 is divided by s^(2m/(r-2)), the fastest by 1 and the slowest by s. So written it
needs no base, and applies to whatever angles stand. A single pair (r = 2), for which the exponent
has no value, is the fastest and keeps its angle.
"""

import torch
from torch import Tensor

from lengthgen.schemes.base import AttentionContext
from lengthgen.schemes.rotary.rope_scaling import RopeScaling


class Ntk(RopeScaling):
    """Raises the base so that the slowest pair turns s times as slowly, the fastest as before.

    factor: s, `alpha` in the authors' code; null: L/T of each call, at least 1.
    """

    def frequencies(self, omega_R: Tensor, c: AttentionContext) -> Tensor:
        m = torch.arange(len(omega_R), device=omega_R.device, dtype=omega_R.dtype)
        return omega_R * self.stretch(c) ** (-m / max(len(omega_R) - 1, 1))
