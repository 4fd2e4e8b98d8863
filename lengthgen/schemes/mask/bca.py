"""Blockwise causal attention: Sun et al. 2022, arXiv 2212.10554, section 3.3; at inference only.

The call is cut into windows of T/2, and a query sees the keys of its own window and of the one
before it: T/2 to T of them. The paper proposes it for xPos; it is a crop of any scheme's context,
so the two are to be reported apart. No release has it (microsoft/torchscale mentions it in a
comment): this is our reading of the section. Windows are counted in tokens of the call, whatever
coordinates they have.
"""

import torch
from pydantic import PositiveFloat
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Part
from lengthgen.schemes.parameters import tokens


class Bca(Part):
    """Hides all keys but those of the query's window and of the one before.

    window: in multiples of T; 0.5.
    """

    needs_whole_text = True

    def __init__(self, shape: ModelDims, *, window: PositiveFloat) -> None:
        super().__init__(shape)
        self.window = tokens(window, shape)

    def visible(self, c: AttentionContext) -> Tensor:
        i = torch.arange(c.rows.start, c.rows.stop, device=c.q_pos.device) // self.window
        j = torch.arange(c.cols.start, c.cols.stop, device=c.q_pos.device) // self.window
        return i[:, None] - j <= 1
