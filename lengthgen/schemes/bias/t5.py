"""T5's relative position bias: Raffel et al. 2020, arXiv 1910.10683, section 2.1.

Distances fall into num_buckets buckets, each with a learned bias per head: one bucket for every
distance below num_buckets/2, then buckets that widen geometrically so that the last would end at
max_distance; it takes all distances beyond. With 32 and 128 it begins at 113. In an encoder, half
of the buckets are for keys up to the query, in the same way, and the other half for later keys.

Deviations. The paper's model leaves q.k unscaled; here the bias is added to q.k / sqrt(d_head), as
every bias in this project (x-transformers and GPT-NeoX multiply it by sqrt(d_head) as well). Values
are drawn from N(0, init_std^2). The first distance of each bucket is found in integer arithmetic,
so that no rounding of a logarithm decides where a distance falls.
"""

from bisect import bisect_left
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims
from lengthgen.schemes.bias.distance_bias import DistanceBias, over_distances
from lengthgen.schemes.parameters import constant, normal, of_layer


class T5(DistanceBias):
    """Adds a learned number per head and bucket of distances to the logits.

    num_buckets: 32 in the paper. max_distance: 128 in the paper. share_layers: one table for all
    layers, as in the paper, or one in each.
    """

    def __init__(
        self,
        shape: ModelDims,
        *,
        num_buckets: Annotated[int, Field(ge=2, le=512)],
        max_distance: int,
        share_layers: bool,
    ) -> None:
        super().__init__(shape)
        if max_distance <= num_buckets // 2:
            raise ValueError(
                f"max_distance={max_distance} must be above num_buckets / 2, the distances that "
                "have a bucket each"
            )
        if not shape.causal and num_buckets % 2:
            raise ValueError(f"num_buckets={num_buckets} must be even: an encoder halves it")
        per_side = num_buckets if shape.causal else num_buckets // 2
        self.starts = bucket_starts(per_side, max_distance)
        n = 1 if share_layers else shape.n_layers
        self.table = normal(n, shape.n_heads, num_buckets, std=shape.init_std)

    def bias(self, c: AttentionContext) -> Tensor:
        bias = super().bias(c)
        if c.shape.causal:
            return bias
        later = c.k_pos[..., None, :] > c.q_pos[..., :, None]
        of_later = over_distances(lambda d_N: self.bias_at(d_N, c, first=len(self.starts)), c)
        return torch.where(later.unsqueeze(-3), of_later, bias)

    def bias_at(self, d_N: Tensor, c: AttentionContext, *, first: int = 0) -> Tensor:
        return of_layer(self.table, c)[:, first + self.buckets(d_N)]

    def buckets(self, d_N: Tensor) -> Tensor:
        """Returns the bucket of each distance: the last that begins at or before it."""
        starts = constant(tuple(self.starts[1:]), d_N.device, torch.int64)
        return torch.bucketize(d_N.long(), starts, right=True)


def bucket_starts(num_buckets: int, max_distance: int) -> list[int]:
    """Returns the first distance of each bucket.

    With e = num_buckets // 2 exact buckets and n wide ones, bucket e + k begins at the least
    integer d with d/e >= (max_distance/e)^(k/n).
    """
    e = num_buckets // 2
    n = num_buckets - e
    wide = (
        bisect_left(range(max_distance), max_distance**k * e**n, key=lambda d: d**n * e**k)
        for k in range(n)
    )
    return [*range(e), *wide]
