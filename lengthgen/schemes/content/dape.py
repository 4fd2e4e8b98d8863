"""DAPE, data-adaptive positional encoding: Zheng et al. 2024, arXiv 2405.14722 and 2410.04798 (V2).

Every logit is corrected by what all heads say of the same query and key:

  a = s + b + MLP([s; b]), s = q.k / sqrt(d), b the bias of the scheme's other parts

with MLP = Linear(2H, width), LeakyReLU(0.01), Linear(width, H) over the heads, one per layer,
initialised as PyTorch's Linear. Schemes without a bias, such as rope, take MLP(s) over H inputs
(`inputs: scores`).

V2 has two convolutions over `kernel` keys of a query in place of the two linear maps (1 x 3 in the
paper). Keys behind the query are zeros. As in the authors' code (chuanyang-Zheng/DAPE,
megatron/model/positional_embeddings.py, Kerple_DAPEV2), but that there a hidden unit behind the
last key of the call is 0, so that the last query of a text has another function than the same query
in a longer text; here all queries have that of the others.

C channels, N pairs of query and key.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lengthgen.schemes.base import AttentionContext, ModelDims, Part, products
from lengthgen.schemes.parameters import as_linear, cast


class Dape(Part):
    """Adds to every logit a small network of all heads' logits and biases.

    width: hidden units, 32 in the paper. inputs: what the network sees.
    """

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

    def conflict(self, others: Mapping[str, Part]) -> str | None:
        biased = any(part.overrides("bias") for part in others.values())
        if biased == (self.inputs == "scores_and_bias"):
            return None
        return f"has inputs={self.inputs}, and {'a' if biased else 'no'} part beside it has a bias"

    def scores(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Tensor:
        s_BHQS = products(q_BHQK, k_BHSK, c)
        if self.inputs == "scores":
            return s_BHQS + self.network(s_BHQS, c)
        bias = c.total_bias()
        bias = torch.zeros_like(s_BHQS) if bias is None else bias
        both = torch.cat([s_BHQS, bias.expand_as(s_BHQS)], dim=1)
        return s_BHQS + bias + self.network(both, c)

    def network(self, x: Tensor, c: AttentionContext) -> Tensor:
        """Returns MLP(x) over the heads, [B, H, Q, S]; the backward pass computes it again."""
        return self.recomputed(mlp, x.flatten(2), c).unflatten(-1, x.shape[2:])

    def recomputed(self, function: Callable[..., Tensor], x: Tensor, c: AttentionContext) -> Tensor:
        """Returns function(x, weights of the layer), which the backward pass calls again."""
        inputs = x, *cast(c, self.w_in, self.b_in, self.w_out, self.b_out)
        out = checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
        assert isinstance(out, Tensor)
        return out


class DapeV2(Dape):
    """Adds to every logit a small network of all heads' logits and biases of the keys around it.

    kernel: keys that a convolution spans, odd; 3 in the paper. Others: as in Dape.
    """

    needs_whole_text = True

    def __init__(
        self, shape: ModelDims, *, width: PositiveInt, kernel: PositiveInt, **others: Any
    ) -> None:
        super().__init__(shape, width=width, **others)
        if kernel % 2 == 0:
            raise ValueError(f"kernel={kernel} must be odd")
        n, H, n_in = shape.n_layers, shape.n_heads, self.w_in.shape[-1]
        self.w_in = as_linear(n, width, n_in, kernel, fan_in=n_in * kernel)
        self.b_in = as_linear(n, width, fan_in=n_in * kernel)
        self.w_out = as_linear(n, H, width, kernel, fan_in=width * kernel)
        self.b_out = as_linear(n, H, fan_in=width * kernel)

    def network(self, x: Tensor, c: AttentionContext) -> Tensor:
        return self.recomputed(convolutions, x.tril(c.rows.start), c)


def mlp(x_BCN: Tensor, w_in: Tensor, b_in: Tensor, w_out: Tensor, b_out: Tensor) -> Tensor:
    """Returns the network's output for each column of its input: [B, C, N] to [B, H, N]."""
    B = len(x_BCN)
    hidden = torch.baddbmm(b_in, w_in.expand(B, -1, -1), x_BCN)
    return torch.baddbmm(b_out, w_out.expand(B, -1, -1), F.leaky_relu_(hidden, 0.01))


def convolutions(
    x_BCQS: Tensor, w_in: Tensor, b_in: Tensor, w_out: Tensor, b_out: Tensor
) -> Tensor:
    """Returns the network's output, [B, H, Q, S]: hidden units before the first key are 0."""
    reach = w_in.shape[-1] // 2
    hidden = F.conv2d(F.pad(x_BCQS, (reach, 2 * reach)), w_in[:, :, None], b_in)
    return F.conv2d(F.pad(F.leaky_relu_(hidden, 0.01), (reach, 0)), w_out[:, :, None], b_out)
