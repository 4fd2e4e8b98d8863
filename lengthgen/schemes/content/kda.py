"""KDA, Kimi delta attention: Kimi team 2025, arXiv 2510.26692. A recurrent row.

The gated delta rule (`gated_delta`) with a decay for each channel of the keys. Each head keeps a
matrix of d x d numbers; a token lets its rows decay, erases what its key would read, and writes:

  S_t = (I - b_t k_t k_t^T) Diag(a_t) S_{t-1} + b_t k_t v_t^T        o_t = S_t^T q_t / sqrt(d)

with queries and keys scaled to length 1 after SiLU, b_t = sigmoid(w_b . x_t) and
a_t = exp(-A softplus(W x_t + c)) in (0, 1)^d, W of rank d. At first A is drawn from U(1, 16) and c
such that softplus(c) is log-uniform in [0.001, 0.1], as in fla-org/flash-linear-attention
(layers/kda.py), matrices from N(0, init_std^2). Kimi Linear has three such layers for one of
attention without positions.

The weights of a query come from its vector r, which passes all tokens, from its own back to the
first: w_t = b_t r . k_t, then r becomes a_t (r - w_t k_t). N tokens are one triangular system.

Left out, as in `gated_delta`: short convolutions (`short_conv` adds them), gate and norm of the
output. All weights are formed, O(S^2) for S tokens.

N tokens of a piece.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lengthgen.schemes.base import AttentionContext, ModelDims, Part
from lengthgen.schemes.parameters import cast, normal

PIECE = 16  # tokens whose decays are held pairwise, N x N x K numbers


class Kda(Part):
    """Replaces softmax attention by a recurrent memory whose channels decay each by their own."""

    reads_qk = True
    takes_bias = False
    takes_relative_keys = False
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

    def scores(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Tensor:
        q, k = (F.normalize(F.silu(x.to(c.dtype)), dim=-1) for x in (q_BHQK, k_BHSK))
        x_BSD = c.x_BTD[:, c.cols].to(c.dtype)
        w_b, down, up, log_A, shift = cast(c, self.w_b, self.down, self.up, self.log_A, self.c)
        rates_BSHK = F.softplus(F.linear(F.linear(x_BSD, down), up, shift))
        rates_BHSK = rates_BSHK.unflatten(-1, (c.shape.n_heads, -1)).transpose(1, 2)
        log_a = -log_A.exp()[:, None, None] * rates_BHSK
        b_BHS = F.linear(x_BSD, w_b).sigmoid().mT
        return delta_weights(q * c.shape.d_head**-0.5, k, log_a, b_BHS)

    def weights(self, s_BHQS: Tensor, c: AttentionContext) -> Tensor:
        return s_BHQS.masked_fill(s_BHQS == -math.inf, 0)


def delta_weights(q_BHQK: Tensor, k_BHSK: Tensor, log_a: Tensor, b_BHS: Tensor) -> Tensor:
    """Returns the weights of all S keys for the last Q queries, [B, H, Q, S]; 0 for later keys."""
    r, S = q_BHQK, k_BHSK.shape[2]
    before, columns = S - r.shape[2], list[Tensor]()
    for lo in reversed(range(0, S, PIECE)):
        piece = slice(lo, min(lo + PIECE, S))
        k, b = k_BHSK[:, :, piece], b_BHS[:, :, None, piece]
        G = log_a[:, :, piece].cumsum(-2)  # decay from the piece's start on
        apart = (G[..., :, None, :] - G[..., None, :, :]).clamp(max=0).exp()
        start, stop = (max(i - before, 0) for i in (lo, piece.stop))  # queries of the piece
        own, later, earlier = r[:, :, start:stop], r[:, :, stop:], k.shape[2] - (stop - start)
        met_NN = torch.einsum("bhnk,bhnmk,bhmk->bhnm", k, apart, k).tril(-1)
        met_own = torch.einsum("bhnk,bhnmk,bhmk->bhnm", own, apart[:, :, earlier:], k).tril(earlier)
        met_later = later @ (k * (G[:, :, -1:] - G).exp()).mT
        system = met_NN * b + torch.eye(k.shape[2], device=k.device, dtype=k.dtype)
        met = torch.cat([met_own, met_later], dim=2) * b
        w = torch.linalg.solve_triangular(system, met, upper=False, left=False)
        columns.append(F.pad(w, (0, 0, start, 0)))
        left = torch.cat([G[:, :, earlier:], G[:, :, -1:].expand_as(later)], dim=2).exp()
        r = torch.cat([r[:, :, :start], left * r[:, :, start:] - w @ (G.exp() * k)], dim=2)
    return torch.cat(columns[::-1], dim=-1)
