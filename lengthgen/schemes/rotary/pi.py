"""Position interpolation: Chen et al. 2023, arXiv 2306.15595. All rotary angles are divided by s.

Position p then turns as p/s did in training, so that no angle is new; neighbours are s times as
close as any that were trained. The paper fine-tunes at the new length; without that, as here, it is
known to be poor, and is the reference that the others are measured against.
"""

from torch import Tensor

from lengthgen.schemes.base import AttentionContext
from lengthgen.schemes.rotary.rope_scaling import RopeScaling


class Pi(RopeScaling):
    """Divides the angles per position by s.

    factor: s; null: L/T of each call, at least 1.
    """

    def frequencies(self, omega_R: Tensor, c: AttentionContext) -> Tensor:
        return omega_R / self.stretch(c)
