"""Relative position representations: Shaw et al. 2018, arXiv 1803.02155, equations 3 and 4.

  a_ij = q_i . (k_j + aK[min(i-j, k)]) / sqrt(d)        o_i = sum_j w_ij (v_j + aV[min(i-j, k)])

Heads share the tables. A causal model reads the rows of the past alone, so that k+1 are held
where tensor2tensor holds 2k+1: its row k-r is row r here.

Rows are drawn from N(0, 1/d), as in tensor2tensor's second version; in its first, from the
initialiser of the whole model. That second version reads zeros past the clip, another function;
here, as in the paper, all distances from k on share row k.
"""

from pydantic import PositiveInt
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Part
from lengthgen.schemes.parameters import normal, of_layer


class Shaw(Part):
    """Adds to every key and value a trained row, chosen by the clipped distance.

    clip: k, the distance from which on all keys share a row.
    """

    reads_qk = True

    def __init__(self, shape: ModelDims, *, clip: PositiveInt, share_layers: bool) -> None:
        super().__init__(shape)
        n, K = 1 if share_layers else shape.n_layers, shape.d_head
        self.aK = normal(n, clip + 1, K, std=K**-0.5)
        self.aV = normal(n, clip + 1, K, std=K**-0.5)

    def relative_keys(self, c: AttentionContext) -> Tensor:
        return of_layer(self.aK, c)[None]

    def relative_values(self, c: AttentionContext) -> Tensor:
        return of_layer(self.aV, c)[None]
