"""DeBERTa's disentangled attention: He et al. 2020, arXiv 2006.03654, equations 2 to 4.

Content meets content, content meets position (c2p), and position meets content (p2c):

  a_ij = (q_i . k_j + q_i . Kr[delta(i, j)] + k_j . Qr[delta(j, i)]) / sqrt(3 d)

with Kr = P W_K and Qr = P W_Q, P a trained table [2k, D] shared by all layers, W_K and W_Q of each
layer, and delta(i, j) = i - j + k within [0, 2k - 1]. A causal model reads the rows k ... 2k-1 of
Kr, by min(i - j, k - 1), and the rows k ... 0 of Qr, by min(i - j, k). The authors' code
(microsoft/DeBERTa, disentangled_attention.py) reads Qr at delta(i, j) instead: both terms then
share the rows k ... 2k-1 of P, another function. Everything is drawn from N(0, init_std^2).

Left out, of later versions: logarithmic buckets, the norm of P, W_K and W_Q shared with content;
and the absolute positions before the softmax, which serve masked language modelling. A temperature
multiplies the two terms with q_i, not the third.

P rows.
"""

import torch
from pydantic import PositiveInt
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Part, Rotated, products
from lengthgen.schemes.parameters import normal, of_layer
from lengthgen.schemes.relative_shift import at_distance


class Deberta(Part):
    """Adds to the logits products of queries and of keys with projected relative positions.

    clip: k, the distance from which on all keys share a row; 512 in the paper.
    """

    reads_qk = True

    def __init__(self, shape: ModelDims, *, clip: PositiveInt) -> None:
        super().__init__(shape)
        self.clip = clip
        D, std = shape.d_model, shape.init_std
        size = shape.n_layers, shape.n_heads, shape.d_head, D
        self.table = normal(2 * clip, D, std=std)
        self.W_K, self.W_Q = normal(*size, std=std), normal(*size, std=std)

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        return Rotated(q_BHQK * 3**-0.5, k_BHSK)

    def relative_keys(self, c: AttentionContext) -> Tensor:
        return self.projected(self.table[self.clip :], self.W_K, c)

    def scores(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Tensor:
        rows_HNK = self.projected(self.table[: self.clip + 1].flip(0), self.W_Q, c).to(k_BHSK.dtype)
        scaled_BHSK, distance_SQ = k_BHSK * (3 * c.shape.d_head) ** -0.5, c.exact_distance().mT
        S, Q = distance_SQ.shape[-2:]
        n_far = max(0, S - Q - self.clip) if c.hooks.contiguous else 0  # k or more from all queries
        near_BHSK = scaled_BHSK[:, :, n_far:]
        p2c_BHQS = at_distance(near_BHSK, rows_HNK, distance_SQ[..., n_far:, :]).mT
        if n_far:
            far_BHQS = (scaled_BHSK[:, :, :n_far] @ rows_HNK[:, -1:].mT).mT.expand(-1, -1, Q, -1)
            p2c_BHQS = torch.cat([far_BHQS, p2c_BHQS], dim=-1)
        return c.biased(products(q_BHQK, k_BHSK, c).add_(p2c_BHQS))

    def projected(self, rows_PD: Tensor, W: Tensor, c: AttentionContext) -> Tensor:
        """Returns the rows under this layer's matrix, [H, P, K] in c.dtype."""
        return rows_PD.to(c.dtype) @ of_layer(W, c).to(c.dtype).mT
