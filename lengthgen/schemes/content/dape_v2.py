"""DAPE V2: Zheng et al. 2024, arXiv 2410.04798. DAPE whose network sees neighbouring keys too.

Logits and biases of all heads are channels of an image of queries and keys, and the correction is

  a = s + b + conv(leaky(conv([s; b])))

with two convolutions over `kernel` keys of a query (1 x 3 in the paper), of 2H to `width` and of
`width` to H channels, LeakyReLU(0.01), and both drawn as PyTorch's Conv2d. Keys behind the query
are zeros in the image. As in the authors' code (chuanyang-Zheng/DAPE,
megatron/model/positional_embeddings.py, Kerple_DAPEV2); there a hidden unit behind the last key of
the call is 0, so that the last query of a text has another function than the same query in a longer
text. Here all queries have that of the others.

C channels, N keys of the kernel.
"""

from typing import Literal

import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lengthgen.schemes.base import AttentionContext, ModelDims
from lengthgen.schemes.content.dape import Dape
from lengthgen.schemes.parameters import as_linear, of_layer


class DapeV2(Dape):
    """Adds to every logit a small network of all heads' logits and biases of the keys around it.

    width: hidden units, 32 in the paper. kernel: keys that a convolution spans, odd; 3 in the
    paper. inputs: what the network sees.
    """

    name = "dape_v2"
    needs_whole_text = True

    def __init__(
        self,
        shape: ModelDims,
        *,
        width: PositiveInt,
        kernel: PositiveInt,
        inputs: Literal["scores_and_bias", "scores"],
    ) -> None:
        super().__init__(shape, width=width, inputs=inputs)
        if kernel % 2 == 0:
            raise ValueError(f"kernel={kernel} must be odd")
        n, H, n_in = shape.n_layers, shape.n_heads, self.w_in.shape[-1]
        self.w_in = as_linear(n, width, n_in, kernel, fan_in=n_in * kernel)
        self.b_in = as_linear(n, width, fan_in=n_in * kernel)
        self.w_out = as_linear(n, H, width, kernel, fan_in=width * kernel)
        self.b_out = as_linear(n, H, fan_in=width * kernel)

    def network(self, x: Tensor, c: AttentionContext) -> Tensor:
        """Returns what is added to the logits, [B, H, Q, S]. Its hidden units are not kept."""
        weights = [
            of_layer(p, c).to(c.dtype) for p in (self.w_in, self.b_in, self.w_out, self.b_out)
        ]
        visible = x.tril(c.rows.start - c.cols.start)
        out = checkpoint(
            convolutions, visible, *weights, use_reentrant=False, preserve_rng_state=False
        )
        assert isinstance(out, Tensor)
        return out


def convolutions(
    x_BCQS: Tensor, w_in: Tensor, b_in: Tensor, w_out: Tensor, b_out: Tensor
) -> Tensor:
    """Returns the network's output, [B, H, Q, S]: hidden units before the first key are 0.

    Behind the last key there are as many as the second convolution reaches.
    """
    reach = w_in.shape[-1] // 2
    hidden = F.conv2d(F.pad(x_BCQS, (reach, 2 * reach)), w_in[:, :, None], b_in)
    return F.conv2d(F.pad(F.leaky_relu_(hidden, 0.01), (reach, 0)), w_out[:, :, None], b_out)
