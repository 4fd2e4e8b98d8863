"""What several parts use: bounds of arguments, stacked parameters, initial values, lengths."""

from functools import cache
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from lengthgen.schemes.base import AttentionContext, ModelDims

Base = Annotated[float, Field(gt=1)]  # of frequencies that fall geometrically
AtLeastOne = Annotated[float, Field(ge=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]


def of_layer(stacked: Tensor, c: AttentionContext) -> Tensor:
    """Returns this layer's entry of a parameter stacked over layers: [1, ...] is shared by all."""
    return stacked[c.layer % len(stacked)]


def cast(c: AttentionContext, *stacked: Tensor) -> list[Tensor]:
    """Returns this layer's entries of parameters stacked over layers, in c.dtype."""
    return [of_layer(parameter, c).to(c.dtype) for parameter in stacked]


def head_width(shape: ModelDims, d_head: int) -> str:
    """Returns the override that makes heads this wide."""
    apart = shape.n_heads * shape.d_head != shape.d_model  # model.d_head is given
    return f"model.d_head={d_head}" if apart else f"model.d_model={shape.n_heads * d_head}"


def widest(device: torch.device) -> torch.dtype:
    """Returns float64, or float32 on MPS, which has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def running_sum(x: Tensor) -> Tensor:
    """Returns the cumulative sum over the last dimension, in the widest type of the device."""
    return x.to(widest(x.device)).cumsum(-1)


def normal(*sizes: int, std: float) -> nn.Parameter:
    """Returns a parameter drawn from N(0, std^2)."""
    return nn.Parameter(torch.empty(sizes).normal_(std=std))


def as_linear(*sizes: int, fan_in: int) -> nn.Parameter:
    """Returns a parameter drawn as torch.nn.Linear draws its own: U(-1, 1) / sqrt(fan_in)."""
    bound = fan_in**-0.5
    return nn.Parameter(torch.empty(sizes).uniform_(-bound, bound))


def tokens(multiple: float, shape: ModelDims) -> int:
    """Returns multiple * T as a number of tokens, rounded, at least 1."""
    return max(1, round(multiple * shape.train_length))


def constant(numbers: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Returns the numbers on the device, sent there once; not to be changed in place.

    kernels.compiled marks it: torch.compile would build it again in every call.
    """
    return _constant(numbers, device, dtype)


@cache
def _constant(numbers: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):  # else none could be kept for a backward pass
        return torch.tensor(numbers, device=device, dtype=dtype)
