"""The gated delta rule: Yang et al. 2024, arXiv 2412.06464, equation 10. A recurrent row.

Each head keeps a matrix of d x d numbers instead of all keys. A token lets it decay, erases what
its key would read, and writes its value:

  S_t = a_t S_{t-1} (I - b_t k_t k_t^T) + b_t v_t k_t^T        o_t = S_t q_t / sqrt(d)

with queries and keys scaled to length 1 after SiLU, b_t = sigmoid(w_b . x_t) and
a_t = exp(-A softplus(w_a . x_t + c)). So the weight of key j for query i is

  a_{j+1} ... a_i b_j q_i . H_i ... H_{j+1} k_j / sqrt(d),  H_t = I - b_t k_t k_t^T,

reflections as in `path_attention`, without a softmax: weights may be negative and have any sum. At
first A is drawn from U(0, 16) and c such that softplus(c) is log-uniform in [0.001, 0.1], as in
fla-org/flash-linear-attention (layers/gated_deltanet.py); w_a and w_b from N(0, init_std^2).

Left out of Gated DeltaNet: short convolutions of queries, keys and values, gate and norm of the
output.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lengthgen.schemes.base import AttentionContext, ModelDims
from lengthgen.schemes.content.delta_rule import DeltaRule
from lengthgen.schemes.parameters import cast, normal


class GatedDelta(DeltaRule):
    """Replaces softmax attention by a recurrent memory with the gated delta rule."""

    def __init__(self, shape: ModelDims) -> None:
        super().__init__(shape)
        n, H, D = shape.n_layers, shape.n_heads, shape.d_model
        self.w_a = normal(n, H, D, std=shape.init_std)
        self.w_b = normal(n, H, D, std=shape.init_std)
        self.log_A = nn.Parameter((16 * (1 - torch.rand(n, H))).log())
        step = torch.exp(math.log(0.001) + math.log(100) * torch.rand(n, H))
        self.c = nn.Parameter(step + torch.log(-torch.expm1(-step)))

    def gates(self, x_BSD: Tensor, c: AttentionContext) -> tuple[Tensor, Tensor]:
        w_a, w_b, log_A, shift = cast(c, self.w_a, self.w_b, self.log_A, self.c)
        kept_BHS = -(log_A.exp() * F.softplus(F.linear(x_BSD, w_a, shift))).mT
        return kept_BHS[..., None], F.linear(x_BSD, w_b).sigmoid().mT
