"""Cross entropy of a linear head, in blocks of positions, with its gradient formed on the way.

Training uses it; evaluation uses `Transformer.token_nll`.

N positions, n of a block, D width, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from lengthgen.data.windows import IGNORED

CPU_BLOCK_BYTES = 8 * 2**20  # fp32 logits of a block: they stay in the caches
GPU_BLOCK_BYTES = 256 * 2**20


def sum_cross_entropy(x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
    """Returns the sum of -log softmax(x @ weight.T)[target] over positions, a scalar in fp32.

    In fp64 if x or the weight is. Positions whose target is -100 add nothing. Products are in the
    dtype of autocast where that is enabled, else in that of x; everything between them is in fp32.
    The gradient is formed together with the loss, block by block: neither logits nor their
    gradient are held for all positions.
    """
    kind = x_ND.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x_ND.dtype
    total = _SumCrossEntropy.apply(x_ND, weight_VD, targets_N, dtype)
    return total  # pyright: ignore[reportReturnType]


class _SumCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, dtype: torch.dtype
    ) -> Tensor:
        wide = torch.promote_types(torch.float32, torch.promote_types(x_ND.dtype, weight_VD.dtype))
        x, weight = x_ND.to(dtype), weight_VD.to(dtype)
        dx_ND = torch.empty_like(x)
        dweight_VD = torch.zeros_like(weight, dtype=wide)
        total = torch.zeros((), dtype=wide, device=x.device)
        limit = CPU_BLOCK_BYTES if x.device.type == "cpu" else GPU_BLOCK_BYTES
        block = max(1, limit // (4 * len(weight)))
        for lo in range(0, len(x), block):
            x_nD, targets_n1 = x[lo : lo + block], targets_N[lo : lo + block, None]
            scored_n1 = targets_n1 != IGNORED
            index_n1 = targets_n1.masked_fill(~scored_n1, 0)
            logits_nV = F.linear(x_nD, weight)
            p_nV = logits_nV.softmax(-1, dtype=wide)
            # The largest logit less log(norm) is the log of the largest p, which never underflows.
            below_n1 = logits_nV.amax(-1, keepdim=True).to(wide) - logits_nV.gather(-1, index_n1)
            nats_n1 = below_n1 - p_nV.amax(-1, keepdim=True).log()
            total += nats_n1.masked_fill(~scored_n1, 0).sum()
            p_nV.scatter_add_(-1, index_n1, -torch.ones_like(index_n1, dtype=wide))
            d_nV = p_nV.to(dtype)
            dx_ND[lo : lo + block] = (d_nV @ weight).mul_(scored_n1)
            dweight_VD += d_nV.T @ (x_nD * scored_n1)
        ctx.save_for_backward(dx_ND.to(x_ND.dtype), dweight_VD.to(weight_VD.dtype))
        return total

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor, Tensor, None, None]:
        dx_ND, dweight_VD = ctx.saved_tensors
        return dx_ND * grad, dweight_VD * grad, None, None
