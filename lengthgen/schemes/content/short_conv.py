"""Short causal convolutions of queries, keys and values: Canon layers (Canon-B).

Allen-Zhu 2025, Physics of Language Models: Part 4.1, arXiv 2512.17351, section 4. Each channel of
the projections becomes a sum over the token and the kernel - 1 tokens before it, zeros before the
text:

  y_t = x_t + w_1 x_{t-kernel+1} + ... + w_kernel x_t

As in the authors' code (facebookresearch/PhysicsLM4, huggingface/modeling_llama_canon.py): before
rotations, no activation, no bias, weights drawn as torch.nn.Conv1d draws them, U(-1, 1) /
sqrt(kernel). Without the residual term x_t it is the convolution of Mamba (arXiv 2312.00752),
less its activation. Canon-A, C and D, on the inputs of attention and in the network, are left out.

E channels of queries, keys and values, N tokens of the kernel, C channels of any kind.
"""

from typing import Annotated

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Part
from lengthgen.schemes.parameters import as_linear, of_layer


class ShortConv(Part):
    """Convolves queries, keys and values over the last few tokens.

    kernel: tokens, 4 in the paper. residual: whether the token itself is added, as in the paper.
    """

    needs_whole_text = True
    at_network_rate = True

    def __init__(
        self, shape: ModelDims, *, kernel: Annotated[int, Field(ge=2)], residual: bool
    ) -> None:
        super().__init__(shape)
        self.residual = residual
        self.kernel = as_linear(shape.n_layers, sum(shape.qkv_widths), kernel, fan_in=kernel)

    def projections(self, qkv_BTE: Tensor, c: AttentionContext) -> Tensor:
        y_BTE = convolved(qkv_BTE, of_layer(self.kernel, c).to(qkv_BTE.dtype))
        return qkv_BTE + y_BTE if self.residual else y_BTE


def convolved(x_BTC: Tensor, kernel_CN: Tensor) -> Tensor:
    """Returns each channel's sum over the last N tokens by its kernel, whose last is the own."""
    C, N = kernel_CN.shape
    before_BCT = F.pad(x_BTC.mT, (N - 1, 0))
    return F.conv1d(before_BCT, kernel_CN[:, None], groups=C).mT
