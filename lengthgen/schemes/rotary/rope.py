"""RoPE, rotary position embedding: Su et al. 2021, arXiv 2104.09864, equations 15 and 34.

Channel pairs of queries and keys turn by theta_m = p * base^(-2m/r), so that q.k depends on the
distance alone. Partial rotation (r < d_head leading channels, frequencies recomputed over r) is
GPT-NeoX's `rotary_pct`. The paper pairs neighbours (`interleaved`); `half` pairs channel m with
m + r/2 as GPT-NeoX, Megatron and Llama do: the same model up to a fixed order of channels.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Part, Rotated
from lengthgen.schemes.parameters import Base, PositiveShare, head_width


class Rope(Part):
    """Rotates queries and keys by angles proportional to their positions.

    base: theta in the paper's code, 10000; a list has one for each layer, in a cycle (Gemma 3).
    rotary_percentage: share of leading channels, in (0, 1].
    """

    bidirectional = True
    rotary = True

    def __init__(
        self,
        shape: ModelDims,
        *,
        base: Base | list[Base],
        rotary_percentage: PositiveShare,
        layout: Literal["half", "interleaved"],
    ) -> None:
        super().__init__(shape)
        self.bases, self.layout = base if isinstance(base, list) else [base], layout
        if not self.bases:
            raise ValueError("base=[] has no number; give one, or one for each layer")
        self.n_rotated = int(shape.d_head * rotary_percentage)
        if self.n_rotated < 2 or self.n_rotated % 2:
            wider = math.ceil(2 * (self.n_rotated // 2 + 1) / rotary_percentage)
            raise ValueError(
                f"rotary_percentage={rotary_percentage} of a head width of {shape.d_head} leaves "
                f"{self.n_rotated} rotated channels; an even number of at least 2 is needed; "
                f"try {head_width(shape, wider)}"
            )

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        omega_R = c.frequencies(self.omega(c))
        return Rotated(
            self.rotate(q_BHQK, angles(c.q_pos, omega_R)),
            self.rotate(k_BHSK, angles(c.k_pos, omega_R)),
        )

    def omega(self, c: AttentionContext) -> Tensor:
        """Returns the angle per position of each channel pair, [R] in c.dtype."""
        return powers(self.bases[c.layer % len(self.bases)], self.n_rotated, c)

    def rotate(self, x_BHTK: Tensor, theta_TR: Tensor) -> Tensor:
        """Returns x with its leading channels turned by theta, in x's dtype."""
        cos, sin = theta_TR.cos(), theta_TR.sin()
        x = x_BHTK[..., : self.n_rotated].to(theta_TR.dtype)
        if self.layout == "half":
            turned = times(x, cos, sin)
        else:
            a, b = x[..., 0::2], x[..., 1::2]
            turned = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
        return torch.cat([turned.to(x_BHTK.dtype), x_BHTK[..., self.n_rotated :]], dim=-1)


def times(x: Tensor, real: Tensor, imaginary: Tensor) -> Tensor:
    """Returns x times complex numbers; its real parts are the first half of its channels."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * real - b * imaginary, a * imaginary + b * real], dim=-1)


def powers(base: float, n_rotated: int, c: AttentionContext) -> Tensor:
    """Returns the angle per position of each channel pair, base^(-2m/r): [R] in c.dtype."""
    m = torch.arange(0, n_rotated, 2, device=c.q_pos.device, dtype=c.dtype)
    return base ** (-m / n_rotated)


def angles(pos: Tensor, omega_R: Tensor) -> Tensor:
    """Returns pos * omega, [T, R] or [B, 1, T, R], in omega's dtype."""
    theta = pos.to(omega_R.dtype)[..., None] * omega_R
    return theta[:, None] if theta.dim() == 3 else theta
