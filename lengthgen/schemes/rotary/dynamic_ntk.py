"""Dynamic NTK scaling of RoPE: emozilla 2023, a post on r/LocalLLaMA; no paper of its own.

NTK-aware scaling (ntk.py) whose s grows with the length of the call: s = f L/T - (f - 1) for L > T,
and RoPE as trained for L <= T. With f = 1 it is ntk with `factor: null`. A pure function of L:
ports that keep what they computed for the longest call so far (LlamaDynamicScaledRotaryEmbedding.py
in jquesnelle/yarn) give another result for a short text after a long one. HF transformers calls it
rope_type `dynamic`.

R rotated channel pairs.
"""

from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Part
from lengthgen.schemes.rotary.ntk import with_base_raised
from lengthgen.schemes.rotary.rope_scaling import checked, stretch


class DynamicNtk(Part):
    """Raises the base with the length of the call.

    factor: f, `factor` in HF transformers.
    """

    depends_on_length = True

    def __init__(self, shape: ModelDims, *, factor: float) -> None:
        super().__init__(shape)
        checked(factor)
        self.factor = factor

    def frequencies(self, omega_R: Tensor, c: AttentionContext) -> Tensor:
        return with_base_raised(omega_R, self.factor * stretch(None, c) - (self.factor - 1))
