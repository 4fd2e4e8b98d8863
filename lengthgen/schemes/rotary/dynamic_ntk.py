"""Dynamic NTK scaling of RoPE: emozilla 2023, a post on r/LocalLLaMA; no paper of its own.

NTK-aware scaling (ntk.py) whose s grows with the length of the call: s = f L/T - (f - 1) for L > T,
and RoPE as trained for L <= T. With f = 1 it is ntk with `factor: null`. A pure function of L:
ports that keep what they computed for the longest call so far (LlamaDynamicScaledRotaryEmbedding.py
in jquesnelle/yarn) give another result for a short text after a long one. HF transformers calls it
rope_type `dynamic`.
"""

from pydantic import PositiveInt

from lengthgen.schemes.base import AttentionContext, ModelDims
from lengthgen.schemes.parameters import AtLeastOne
from lengthgen.schemes.rotary.ntk import Ntk


class DynamicNtk(Ntk):
    """Raises the base with the length of the call.

    factor: f, `factor` in HF transformers.
    """

    def __init__(
        self,
        shape: ModelDims,
        *,
        factor: AtLeastOne,
        original_max_position_embeddings: PositiveInt | None = None,
    ) -> None:
        super().__init__(
            shape,
            factor=factor,
            original_max_position_embeddings=original_max_position_embeddings,
        )
        self.growth, self.depends_on_length = factor, True

    def stretch(self, c: AttentionContext) -> float:
        return self.growth * self.times_trained(c) - (self.growth - 1)
