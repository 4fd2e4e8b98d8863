"""FIRE, functional interpolation for relative positions: Li et al. 2023, arXiv 2310.04418.

The logit of query i and key j gets f(psi(i - j) / (psi(max(i, |w L|)) + 1e-6)), with psi(x) =
log(|c| x + 1) and f a network 1 -> width -> H with ReLU. c and the multiplier w of the threshold L
are learned, L is not. The ratio lies in [0, 1) at every length. Beyond the threshold it depends on
the query's own position, not on the distance alone: equal distances get smaller ratios than in
training. `beyond: clamp` counts a query's position as T at most, so that a distance keeps its
ratio, and those above T have ratios above 1; of no paper.

Values as in the code of the paper's appendix (carried by mcleish7/arithmetic,
cramming/architectures/embeddings.py): width 32, c 0.1, L 512, w 1, torch's default initialisation
of linear layers. L is given in multiples of T here. DAPE's port of FIRE halves L.

f is evaluated as what it is, piecewise linear in one variable, with a kink where a hidden unit
turns on or off: exact, gradients included, without width numbers per query and key. Consecutive
queries have most distances on one piece; without a gradient, these are one product and one sum.

N pieces of f, R hidden units, W = Q + S - 1 places (see relative_shift.py).
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from lengthgen.schemes.base import AttentionContext, ModelDims, Part
from lengthgen.schemes.bias.distance_bias import over_distances
from lengthgen.schemes.parameters import as_linear, of_layer
from lengthgen.schemes.relative_shift import skew

EPSILON = 1e-6
QUERIES_AT_ONCE = 128  # bounds what is held in addition to the bias
FEW = 1024  # entries, of which the network itself takes less time than finding its pieces


class Pieces(NamedTuple):
    """f from 0 on: piece n lies between kinks n - 1 and n."""

    kinks_R: Tensor
    slope_HN: Tensor
    offset_HN: Tensor

    def at(self, x: Tensor) -> Tensor:
        """Returns the piece of every entry of x."""
        return torch.bucketize(x, self.kinks_R, right=True)


class Fire(Part):
    """Adds f(psi(distance) / psi(max(i, threshold))) to the logits.

    width: hidden units, 32 in the paper. c: initial value of psi's factor, 0.1 in the paper.
    threshold: L in multiples of T; 1 is the paper's 512 for T = 512. share_layers: one function for
    all layers, or one in each. beyond: extend, the query's own position at every length, as in the
    paper; clamp, T at most.
    """

    shift_invariant = False

    def __init__(
        self,
        shape: ModelDims,
        *,
        width: PositiveInt,
        c: PositiveFloat,
        threshold: PositiveFloat,
        share_layers: bool,
        beyond: Literal["extend", "clamp"] = "extend",
    ) -> None:
        super().__init__(shape)
        self.last = shape.train_length if beyond == "clamp" else None
        self.initial_threshold = max(1, round(threshold * shape.train_length))
        n = 1 if share_layers else shape.n_layers
        self.c = nn.Parameter(torch.full((n,), c))
        self.w = nn.Parameter(torch.ones(n))
        self.weight_in = as_linear(n, width, fan_in=1)
        self.bias_in = as_linear(n, width, fan_in=1)
        self.weight_out = as_linear(n, shape.n_heads, width, fan_in=width)
        self.bias_out = as_linear(n, shape.n_heads, fan_in=width)

    def bias(self, c: AttentionContext) -> Tensor:
        threshold = (of_layer(self.w, c).to(c.dtype) * self.initial_threshold).abs()
        of_rows = self.by_entry
        if not torch.compiler.is_compiling():  # a graph ends where values decide what is computed
            if c.q_pos.max() < threshold:  # a function of the distance: so it is mostly in training
                return over_distances(lambda d_N: self.f(self.ratio(d_N, threshold, c), c), c)
            in_order = c.q_pos.dim() == c.k_pos.dim() == 1 < len(c.q_pos) and all(
                bool((pos.diff() == 1).all()) for pos in (c.q_pos, c.k_pos)
            )
            of_rows = self.by_place if in_order and not torch.is_grad_enabled() else of_rows
        rows = [of_rows(q_pos, threshold, c) for q_pos in c.q_pos.split(QUERIES_AT_ONCE, dim=-1)]
        return torch.cat(rows, dim=-2) if len(rows) > 1 else rows[0]

    def by_entry(self, q_pos: Tensor, threshold: Tensor, c: AttentionContext) -> Tensor:
        """Returns the bias of these queries, f of a number per query and key."""
        i, j = q_pos[..., :, None], c.k_pos[..., None, :]
        d = (i - j).clamp(min=0).to(c.dtype)
        return self.f(self.ratio(d, self.largest(i, threshold, c), c), c).movedim(0, -3)

    def by_place(self, i_Q: Tensor, threshold: Tensor, c: AttentionContext) -> Tensor:
        """Returns the bias of these consecutive queries, [H, Q, S]: a view of rows by place.

        The ratio falls from query to query: between two on one piece, all are on it.
        """
        n_places = len(i_Q) + len(c.k_pos) - 1
        place_W = torch.arange(n_places, device=i_Q.device)
        d_W = (i_Q[-1] - c.k_pos[0] - place_W).clamp(min=0).to(c.dtype)
        largest_Q = self.largest(i_Q, threshold, c)
        pieces = self.pieces(c, c.dtype)
        at_W, at_last_W = (pieces.at(self.ratio(d_W, largest_Q[n], c)) for n in (0, -1))
        slope_H1W = (pieces.slope_HN[:, at_W] * self.psi(d_W, c))[:, None]
        per_psi_Q1 = 1 / (self.psi(largest_Q, c) + EPSILON)[:, None]
        bias_HQW = torch.addcmul(pieces.offset_HN[:, None, at_W], slope_H1W, per_psi_Q1)
        several = (at_W != at_last_W).nonzero().squeeze(-1)
        exact = self.f(self.ratio(d_W[several], largest_Q[:, None], c), c)
        return skew(bias_HQW.scatter_(-1, several.expand_as(exact), exact))

    def largest(self, i: Tensor, threshold: Tensor, c: AttentionContext) -> Tensor:
        """Returns what the distances of queries are divided by, before psi."""
        if self.last is not None:
            i = i.clamp(max=self.last)
        return torch.maximum(i.to(c.dtype), threshold)

    def psi(self, x: Tensor, c: AttentionContext) -> Tensor:
        """Returns log(|c| x + 1) in x's dtype."""
        return torch.log1p(of_layer(self.c, c).to(x.dtype).abs() * x)

    def ratio(self, d: Tensor, largest: Tensor, c: AttentionContext) -> Tensor:
        """Returns psi(d) / (psi(largest) + 1e-6) in d's dtype."""
        return self.psi(d, c) / (self.psi(largest, c) + EPSILON)

    def f(self, x: Tensor, c: AttentionContext) -> Tensor:
        """Returns the network at every entry of x, which is not negative: [H, *x.shape]."""
        if x.numel() <= FEW:
            w_R, b_R, w_HR, b_H = self.network(c, x.dtype)
            hidden_RN = F.relu(torch.addmm(b_R[:, None], w_R[:, None], x.view(1, -1)))
            return torch.addmm(b_H[:, None], w_HR, hidden_RN).unflatten(1, x.shape)
        pieces = self.pieces(c, x.dtype)
        at = pieces.at(x).flatten().expand(len(pieces.slope_HN), -1)
        slope, offset = pieces.slope_HN.gather(1, at), pieces.offset_HN.gather(1, at)
        return torch.addcmul(offset, slope, x.flatten()).unflatten(1, x.shape)

    def network(self, c: AttentionContext, dtype: torch.dtype) -> list[Tensor]:
        """Returns weights and shifts of both maps: [R], [R], [H, R], [H]."""
        both = self.weight_in, self.bias_in, self.weight_out, self.bias_out
        return [of_layer(p, c).to(dtype) for p in both]

    def pieces(self, c: AttentionContext, dtype: torch.dtype) -> Pieces:
        """Returns the network by its pieces; kinks below 0 are moved there."""
        w_R, b_R, w_HR, b_H = self.network(c, dtype)
        with torch.no_grad():
            kinks_R = torch.where(w_R == 0, 0, -b_R / w_R).clamp(min=0).sort().values
            ends = torch.cat([kinks_R.new_zeros(1), kinks_R, 2 * kinks_R[-1:] + 1])
            middle_N = (ends[1:] + ends[:-1]) / 2
            on_RN = (torch.outer(w_R, middle_N) + b_R[:, None] > 0).to(dtype)
        return Pieces(kinks_R, (w_HR * w_R) @ on_RN, (w_HR * b_R) @ on_RN + b_H[:, None])
