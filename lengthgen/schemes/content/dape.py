"""DAPE, data-adaptive positional encoding: Zheng et al. 2024, arXiv 2405.14722.

Every logit is corrected by what all heads say of the same query and key:

  a = s + b + MLP([s; b]), s = q.k / sqrt(d), b the bias of the scheme's other parts

with MLP = Linear(2H, width), LeakyReLU(0.01), Linear(width, H) over the heads, one per layer,
initialised as PyTorch's Linear. Schemes without a bias, such as rope, take MLP(s) over H inputs
(`inputs: scores`). The second version, with convolutions over neighbouring keys, is `dape_v2`.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lengthgen.errors import UserError
from lengthgen.schemes.base import AttentionContext, ModelDims, Part, products
from lengthgen.schemes.parameters import as_linear, of_layer


class Dape(Part):
    """Adds to every logit a small network of all heads' logits and biases.

    width: hidden units, 32 in the paper. inputs: what the network sees.
    """

    name = "dape"

    def __init__(
        self, shape: ModelDims, *, width: PositiveInt, inputs: Literal["scores_and_bias", "scores"]
    ) -> None:
        super().__init__(shape)
        self.inputs = inputs
        n_in = shape.n_heads * (2 if inputs == "scores_and_bias" else 1)
        n, H = shape.n_layers, shape.n_heads
        self.w_in = as_linear(n, width, n_in, fan_in=n_in)
        self.b_in = as_linear(n, width, 1, fan_in=n_in)
        self.w_out = as_linear(n, H, width, fan_in=width)
        self.b_out = as_linear(n, H, 1, fan_in=width)

    def scores(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Tensor:
        s_BHQS = products(q_BHQK, k_BHSK, c)
        bias = c.total_bias()
        self.refuse_other_inputs(bias, c)
        if bias is None:
            return s_BHQS + self.network(s_BHQS, c)
        both = torch.cat([s_BHQS, bias.expand_as(s_BHQS)], dim=1)
        return s_BHQS + bias + self.network(both, c)

    def network(self, x: Tensor, c: AttentionContext) -> Tensor:
        """Returns MLP(x) over the heads, [B, H, Q, S]. Its hidden units are not kept.

        They are `width` numbers per query and key; the backward pass computes them again.
        """
        weights = [
            of_layer(p, c).to(c.dtype) for p in (self.w_in, self.b_in, self.w_out, self.b_out)
        ]
        out = checkpoint(mlp, x.flatten(2), *weights, use_reentrant=False, preserve_rng_state=False)
        assert isinstance(out, Tensor)
        return out.unflatten(-1, x.shape[2:])

    def refuse_other_inputs(self, bias: Tensor | None, c: AttentionContext) -> None:
        """Raises UserError if `inputs` promises a bias that the layer lacks, or the reverse."""
        where, has_one = f"scheme.parts.{self.name}.inputs", f"part of layer {c.layer} has a bias"
        if bias is None and self.inputs == "scores_and_bias":
            raise UserError(
                f"{where}=scores_and_bias, and no {has_one}; add one, such as kerple, or use scores"
            )
        if bias is not None and self.inputs == "scores":
            raise UserError(f"{where}=scores, and a {has_one}; use scores_and_bias")


def mlp(x_BCN: Tensor, w_in: Tensor, b_in: Tensor, w_out: Tensor, b_out: Tensor) -> Tensor:
    """Returns the network's output for each column of its input: [B, C, N] to [B, H, N]."""
    B = len(x_BCN)
    hidden = torch.baddbmm(b_in, w_in.expand(B, -1, -1), x_BCN)
    return torch.baddbmm(b_out, w_out.expand(B, -1, -1), F.leaky_relu_(hidden, 0.01))
