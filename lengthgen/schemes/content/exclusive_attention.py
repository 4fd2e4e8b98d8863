"""Exclusive self-attention (XSA): Zhai 2026, arXiv 2603.09078, equation 2.

The output of each head loses what is along the token's own value:

  z_i = y_i - (y_i . v_i) v_i / |v_i|^2,  y_i = sum_j w_ij v_j

Attention then adds only what comes from other tokens; the network has the token's own. It has no
parameters and acts behind the weights, so that it stands beside any scheme. As in Algorithm 1,
before heads are mixed.
"""

import torch.nn.functional as F
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, Part


class ExclusiveAttention(Part):
    """Makes the output of attention orthogonal to the value of the query's token."""

    bidirectional = True

    def outputs(self, out_BHQK: Tensor, v_BHSK: Tensor, c: AttentionContext) -> Tensor:
        own_BHQK = F.normalize(v_BHSK[:, :, c.rows].to(c.dtype), dim=-1)
        wide = out_BHQK.to(c.dtype)
        return (wide - (wide * own_BHQK).sum(-1, keepdim=True) * own_BHQK).to(out_BHQK.dtype)
