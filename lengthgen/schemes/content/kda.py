"""KDA, Kimi delta attention: Kimi team 2025, arXiv 2510.26692. A recurrent row.

The gated delta rule (`gated_delta`) with a decay for each channel of the keys. Each head keeps a
matrix of d x d numbers; a token lets its rows decay, erases what its key would read, and writes:

  S_t = (I - b_t k_t k_t^T) Diag(a_t) S_{t-1} + b_t k_t v_t^T        o_t = S_t^T q_t / sqrt(d)

with queries and keys scaled to length 1 after SiLU, b_t = sigmoid(w_b . x_t) and
a_t = exp(-A softplus(W x_t + c)) in (0, 1)^d, W of rank d. At first A is drawn from U(1, 16) and c
such that softplus(c) is log-uniform in [0.001, 0.1], as in fla-org/flash-linear-attention
(layers/kda.py), matrices from N(0, init_std^2). Kimi Linear has three such layers for one of
attention without positions.

Left out, as in `gated_delta`: short convolutions (`short_conv` adds them), gate and norm of the
output.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lengthgen.schemes.base import AttentionContext, ModelDims
from lengthgen.schemes.content.delta_rule import DeltaRule
from lengthgen.schemes.parameters import cast, normal


class Kda(DeltaRule):
    """Replaces softmax attention by a recurrent memory whose channels decay each by their own."""

    needs_whole_text = True

    def __init__(self, shape: ModelDims) -> None:
        super().__init__(shape)
        n, H, D, K = shape.n_layers, shape.n_heads, shape.d_model, shape.d_head
        self.w_b = normal(n, H, D, std=shape.init_std)
        self.down = normal(n, K, D, std=shape.init_std)
        self.up = normal(n, H * K, K, std=shape.init_std)
        self.log_A = nn.Parameter((1 + 15 * torch.rand(n, H)).log())
        step = torch.exp(math.log(0.001) + math.log(100) * torch.rand(n, H * K))
        self.c = nn.Parameter(step + torch.log(-torch.expm1(-step)))

    def gates(self, x_BSD: Tensor, c: AttentionContext) -> tuple[Tensor, Tensor]:
        w_b, down, up, log_A, shift = cast(c, self.w_b, self.down, self.up, self.log_A, self.c)
        rates_BSHK = F.softplus(F.linear(F.linear(x_BSD, down), up, shift))
        rates_BHSK = rates_BSHK.unflatten(-1, (c.shape.n_heads, -1)).transpose(1, 2)
        return -log_A.exp()[:, None, None] * rates_BHSK, F.linear(x_BSD, w_b).sigmoid().mT
