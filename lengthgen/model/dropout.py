"""Dropout that is a function of seed, step and row: the same in every division of a batch.

B batch, T tokens, D width.
"""

import torch
from torch import Tensor, nn


class Dropout(nn.Module):
    """Sets a share of the entries to 0 in training, and scales up the others.

    The mask is that of the keys which `seed_dropout` gave; without keys nothing is dropped.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self.keys_B: Tensor | None = None

    def forward(self, x_BTD: Tensor) -> Tensor:
        if self.keys_B is None or not self.training:
            return x_BTD
        i_T, i_D = (torch.arange(n, device=x_BTD.device).int() for n in x_BTD.shape[1:])
        key_BTD = mixed(self.keys_B[:, None] + i_T)[..., None] + i_D * 0x3504F333
        lowest = round(self.share * 2**32) - 2**31  # of the int32 that are kept
        return x_BTD * (mixed(key_BTD) >= lowest).to(x_BTD.dtype) / (1 - self.share)


def seed_dropout(model: nn.Module, *, seed: int, rows_B: Tensor) -> None:
    """Gives every Dropout of a model a key for each row; rows_B numbers them in the whole batch."""
    rows_B = mixed(rows_B.int() + (seed - 2**31))
    for i, layer in enumerate(m for m in model.modules() if isinstance(m, Dropout)):
        layer.keys_B = mixed(rows_B + i) if layer.share else None


def mixed(x: Tensor) -> Tensor:
    """Returns a new int32 that looks random for each one: lowbias32 (Wellons 2018).

    Without its first step, which mixes high bits into low ones.
    """
    x = x * 0x21F0AAAD
    x ^= (x >> 15) & 0x1FFFF  # a shift keeps the sign
    x *= 0x735A2D97
    x ^= (x >> 15) & 0x1FFFF
    return x
