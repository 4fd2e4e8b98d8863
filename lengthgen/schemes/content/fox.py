"""FoX, the forgetting transformer: Lin et al. 2025, arXiv 2503.02130.

A gate per token and head, f_t = sigmoid(w.x_t + b) of the layer's normalised input x, decays what
came before: the bias of query i and key j is ln f_{j+1} + ... + ln f_i = F_i - F_j. No rotation is
needed. Weights are drawn from N(0, init_std^2), which is 0.02 as in the authors' code, and b starts
at 0, f at a half; x-transformers (attn_data_dependent_alibi) starts at b = 5.

CABLE (Veisi et al. 2025, arXiv 2503.08067) sums -softplus(w.x_t + b): that is ln f_t under the
opposite signs of w and b, and the draws are symmetric, so that it is the same model from the
start. Its released code does not divide q.k by sqrt(d); here all logits are.
Left out: the output gates, norms of q and k and token shifts of the paper's "Pro" block.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from lengthgen.schemes.base import AttentionContext, ModelDims, Part
from lengthgen.schemes.parameters import cast, normal, running_sum


class Fox(Part):
    """Adds the logarithm of how much of a key's token the later ones have let pass.

    gate_bias: b at the start; 0 in the authors' code.
    """

    def __init__(self, shape: ModelDims, *, gate_bias: float) -> None:
        super().__init__(shape)
        n, H, D = shape.n_layers, shape.n_heads, shape.d_model
        self.w = normal(n, H, D, std=shape.init_std)
        self.b = nn.Parameter(torch.full((n, H), float(gate_bias)))

    def bias(self, c: AttentionContext) -> Tensor:
        x_BSD = c.x_BTD[:, c.cols].to(c.dtype)
        w_HD, b_H = cast(c, self.w, self.b)
        passed_BHS = functional.logsigmoid(functional.linear(x_BSD, w_HD, b_H)).transpose(1, 2)
        total_BHS = running_sum(passed_BHS)
        # Counted from the block's first query on, rounding leaves near keys their differences.
        F_BHS = (total_BHS - total_BHS[..., c.rows.start, None].detach()).to(c.dtype)
        return F_BHS[..., c.rows, None] + (-F_BHS)[..., None, :]
