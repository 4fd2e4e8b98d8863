"""Memories with the delta rule, Yang et al. 2024, arXiv 2406.06484: `gated_delta` and `kda`.

Each head keeps a matrix of K x K numbers instead of all keys. A token lets its rows decay, erases
what its key would read, and writes its value:

  M_t = (I - b_t k_t k_t^T) Diag(a_t) M_{t-1} + b_t k_t v_t^T        o_t = M_t^T q_t / sqrt(K)

with queries and keys scaled to length 1 after SiLU. Outputs are computed by pieces of N tokens
(section 3.2), in time linear in the tokens. Where something hides keys or reads weights, these are
formed instead. Those of a query come from its vector r, which passes all tokens, from its own back
to the first: w_t = b_t r . k_t, then r becomes a_t (r - w_t k_t).

N tokens of a piece, P pieces, V width of values, A decays of a token and head: K, or 1 for all.
"""

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, Part
from lengthgen.schemes.parameters import running_sum

AT_ONCE = 2048  # tokens; bounds what long texts hold


class DeltaRule(Part, ABC):
    """Replaces softmax attention by a recurrent memory with the delta rule."""

    reads_qk = True
    takes_bias = False
    takes_relative_keys = False

    @abstractmethod
    def gates(self, x_BSD: Tensor, c: AttentionContext) -> tuple[Tensor, Tensor]:
        """Returns log a, [B, H, S, A], and b, [B, H, S], in c.dtype."""

    def recurrence(
        self, q_BHQK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, c: AttentionContext
    ) -> Tensor:
        q, k, log_a, b = self.inputs(q_BHQK, k_BHSK, c)
        return delta_rule(q, k, v_BHSK.to(c.dtype), log_a, b).to(v_BHSK.dtype)

    def scores(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Tensor:
        return delta_weights(*self.inputs(q_BHQK, k_BHSK, c))

    def weights(self, s_BHQS: Tensor, c: AttentionContext) -> Tensor:
        return s_BHQS.masked_fill(s_BHQS == -math.inf, 0)

    def inputs(
        self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns queries over sqrt(K), keys, log a and b, in c.dtype."""
        q, k = (F.normalize(F.silu(x.to(c.dtype)), dim=-1) for x in (q_BHQK, k_BHSK))
        return q * c.shape.d_head**-0.5, k, *self.gates(c.x_BTD[:, c.cols].to(c.dtype), c)


def delta_rule(
    q_BHQK: Tensor, k_BHSK: Tensor, v_BHSV: Tensor, log_a: Tensor, b_BHS: Tensor
) -> Tensor:
    """Returns what the last Q queries read of the memory, [B, H, Q, V]."""
    before, S = k_BHSK.shape[2] - q_BHQK.shape[2], k_BHSK.shape[2]
    memory = k_BHSK.new_zeros(*k_BHSK.shape[:2], k_BHSK.shape[3], v_BHSV.shape[3])
    out: list[Tensor] = []
    for lo in range(0, S, AT_ONCE):
        hi = min(lo + AT_ONCE, S)
        k, v, a, b = (x[:, :, lo:hi] for x in (k_BHSK, v_BHSV, log_a, b_BHS[..., None]))
        q = q_BHQK[:, :, max(0, lo - before) : max(0, hi - before)]
        read, memory = _advanced(q, k, v, a, b, memory)
        out.append(read)
    return torch.cat(out, dim=2)


def _advanced(
    q_BHQK: Tensor, k_BHSK: Tensor, v_BHSV: Tensor, log_a: Tensor, b_BHS1: Tensor, M_BHKV: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns what the last Q queries read, and the memory behind all tokens."""
    Q, S, N = q_BHQK.shape[2], k_BHSK.shape[2], piece_of(log_a)

    def pieces(x_BHSC: Tensor) -> Tensor:
        return F.pad(x_BHSC, (0, 0, S - x_BHSC.shape[2], -S % N)).unflatten(2, (-1, N))

    q, k, v, log_a, b = map(pieces, (q_BHQK, k_BHSK, v_BHSV, log_a, b_BHS1))
    since_start, to_end, met = decayed(torch.stack([k, q], dim=-2), k, log_a)
    met_k, met_q = met.unbind(-2)
    sides = torch.cat([b * v, b * since_start * k], dim=-1)
    solved = torch.linalg.solve_triangular(b * met_k, sides, upper=False, unitriangular=True)
    written, erased = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    # A piece takes the memory M to (D - E erased) M + E written, E its keys as they decay.
    E_KN, D_K = (to_end * k).mT, since_start[..., -1, :].expand(k[..., -1, :].shape)
    steps = (torch.diag_embed(D_K) - E_KN @ erased).flatten(0, 1).unbind(1)
    added = (E_KN @ written).flatten(0, 1).unbind(1)
    M = [M_BHKV.flatten(0, 1)]
    for step, new in zip(steps, added, strict=True):
        M.append(torch.baddbmm(new, step, M[-1]))
    M_BHPKV = torch.stack(M[:-1], dim=1).unflatten(0, k.shape[:2])
    read = (since_start * q) @ M_BHPKV + met_q.tril() @ (written - erased @ M_BHPKV)
    return read.flatten(2, 3)[:, :, S - Q : S], M[-1].view_as(M_BHKV)


def delta_weights(q_BHQK: Tensor, k_BHSK: Tensor, log_a: Tensor, b_BHS: Tensor) -> Tensor:
    """Returns the weights of all S keys for the last Q queries, [B, H, Q, S]; 0 for later keys."""
    r, S, N = q_BHQK, k_BHSK.shape[2], piece_of(log_a)
    before, columns = S - r.shape[2], list[Tensor]()
    for lo in reversed(range(0, S, N)):
        piece = slice(lo, min(lo + N, S))
        k, b = k_BHSK[:, :, piece], b_BHS[:, :, None, piece]
        start, stop = (max(i - before, 0) for i in (lo, piece.stop))  # queries of the piece
        in_piece, later, earlier = r[:, :, start:stop], r[:, :, stop:], k.shape[2] - (stop - start)
        both = torch.stack([k, F.pad(in_piece, (0, 0, earlier, 0))], dim=-2)
        since_start, to_end, met = decayed(both, k, log_a[:, :, piece])
        met_k, met_own = met.unbind(-2)
        met_later = later @ (to_end * k).mT
        met = torch.cat([met_own.tril()[:, :, earlier:], met_later], dim=2) * b
        w = torch.linalg.solve_triangular(
            met_k * b, met, upper=False, left=False, unitriangular=True
        )
        columns.append(F.pad(w, (0, 0, start, 0)))
        passed = since_start[:, :, -1:].expand(*later.shape[:3], -1)
        left = torch.cat([since_start[:, :, earlier:], passed], dim=2)
        r = torch.cat([r[:, :, :start], left * r[:, :, start:] - w @ (since_start * k)], dim=2)
    return torch.cat(columns[::-1], dim=-1)


def piece_of(log_a: Tensor) -> int:
    """Returns N: decays of each channel are held pairwise, N x N x K numbers."""
    return 32 if log_a.shape[-1] == 1 else 8


def decayed(x_NXK: Tensor, k_NK: Tensor, log_a_NA: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the decay of a piece up to each token, from each on, and of products between them.

    The first two are [..., N, A]. The third is x_t . k_j, x_t as it decays from t on to j, for each
    of the X vectors of a token: [..., N, X, N]. It means nothing for j > t.
    """
    wide = log_a_NA.shape[-1] > 1
    G = log_a_NA.cumsum(-2) if wide else running_sum(log_a_NA.mT).mT
    apart = (G[..., :, None, :] - G[..., None, :, :]).clamp(max=0).to(k_NK.dtype).exp()
    if wide:
        met = x_NXK @ (apart * k_NK[..., None, :, :]).mT
    else:
        met = (x_NXK.flatten(-3, -2) @ k_NK.mT).unflatten(-2, x_NXK.shape[-3:-1])
        met = met * apart.mT
    since_start, to_end = (x.to(k_NK.dtype).exp() for x in (G, G[..., -1:, :] - G))
    return since_start, to_end, met
