"""PaTH: Yang et al. 2025, arXiv 2505.16381. Reflections of the tokens between query and key.

The logit of query i and key j is

  q_i . H_i H_{i-1} ... H_{j+1} k_j / sqrt(d),  H_t = I - beta_t w_t w_t^T,

with w_t of length 1 and beta_t = 2 sigmoid(u . x_t + b), per head: H_t reflects at beta = 2 and
erases at 1. w_t is linear in the layer's input, through a matrix of low rank, a causal convolution
over the last few tokens of each channel and SiLU. As in fla-org/flash-linear-attention
(layers/path_attn.py); weights are drawn from N(0, init_std^2), b begins at 0. The paper's
PaTH-FoX is this part and `fox`. Deviation: the release multiplies the sums of log gates by
1/sqrt(d), as q.k; here they are added as they are.

Products over a piece of N tokens are those of its reflections at once (the UT transform):
H_N ... H_1 = I - W^T Y, with (I + tril(B W W^T, -1)) Y = B W and B = diag(beta). It takes O(S^2)
products for S tokens, as attention does.

C channels of all heads, N tokens of a piece.
"""

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from lengthgen.schemes.base import AttentionContext, ModelDims, Part
from lengthgen.schemes.content.short_conv import convolved
from lengthgen.schemes.parameters import cast, normal

REFLECTED = 64  # keys whose reflections are multiplied at once


class PathAttention(Part):
    """Applies to each key, where a query meets it, the reflections of the tokens behind it.

    rank: of the matrix, 32 in the authors' code. kernel: tokens of the convolution, 3.
    """

    reads_qk = True
    takes_relative_keys = False
    needs_whole_text = True

    def __init__(self, shape: ModelDims, *, rank: PositiveInt, kernel: PositiveInt) -> None:
        super().__init__(shape)
        n, H, D = shape.n_layers, shape.n_heads, shape.d_model
        n_channels, std = H * shape.d_head, shape.init_std
        self.down = normal(n, rank, D, std=std)
        self.up = normal(n, n_channels, rank, std=std)
        self.kernel = normal(n, n_channels, kernel, std=std)
        self.u = normal(n, H, D, std=std)
        self.b = nn.Parameter(torch.zeros(n, H))

    def scores(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Tensor:
        x_BSD = c.x_BTD[:, c.cols].to(c.dtype)
        down, up, kernel, u, b = cast(c, self.down, self.up, self.kernel, self.u, self.b)
        w_BSC = F.silu(convolved(F.linear(F.linear(x_BSD, down), up), kernel))
        w_BSHK = F.normalize(w_BSC.unflatten(-1, (c.shape.n_heads, -1)), dim=-1)
        beta_BHS1 = 2 * F.linear(x_BSD, u, b).sigmoid().mT[..., None]
        q = q_BHQK.to(c.dtype) * c.shape.d_head**-0.5
        return c.biased(reflected(q, k_BHSK.to(c.dtype), w_BSHK.transpose(1, 2), beta_BHS1))


def reflected(q_BHQK: Tensor, k_BHSK: Tensor, w_BHSK: Tensor, beta_BHS1: Tensor) -> Tensor:
    """Returns q_i . H_i ... H_{j+1} k_j of the last Q tokens and all S, [B, H, Q, S].

    Entries of keys behind the query have no meaning.
    """
    q, first = q_BHQK, k_BHSK.shape[2] - q_BHQK.shape[2]
    columns: list[Tensor] = []
    stops = range(first, 0, -REFLECTED)
    for piece in (slice(first, None), *(slice(max(0, stop - REFLECTED), stop) for stop in stops)):
        k, w, beta = k_BHSK[:, :, piece], w_BHSK[:, :, piece], beta_BHS1[:, :, piece]
        shared = (beta * (w @ w.mT)).tril(-1)
        sides = torch.cat([beta * w, (beta * (w @ k.mT)).tril(-1)], dim=-1)
        solved = torch.linalg.solve_triangular(shared, sides, upper=False, unitriangular=True)
        Y_BHNK, Z_BHNN = solved.split([w.shape[-1], k.shape[2]], dim=-1)
        met_BHQN = q @ w.mT if columns else (q @ w.mT).tril()  # the queries' own piece is first
        columns.append(q @ k.mT - met_BHQN @ Z_BHNN)
        q = q - met_BHQN @ Y_BHNK
    return torch.cat(columns[::-1], dim=-1)
