"""xPos: Sun et al. 2022, arXiv 2212.10554, section 3.2. RoPE whose pairs decay with the distance.

q_i and k_j are rotated as in RoPE (neighbouring channels), then pair m of q_i is multiplied by
zeta_m^((i-c)/B) and that of k_j by zeta_m^(-(j-c)/B), so that q.k has zeta_m^((i-j)/B) in it:
zeta_m = (2m/d + gamma) / (1 + gamma). Parts that change frequencies never change this decay.

c cancels. Here it is the middle of the keys' coordinates, which keeps the factors near to 1;
microsoft/torchscale has floor(-L/2), x-transformers L//2. With B = 512 they reach zeta_0^(-L/2B) =
2^(1.81 L/1024): 7e34 at 65,536 tokens. Up to 65,722 tokens, float32 and bfloat16 hold them times
queries and keys of 2^-10 to 2^10. Beyond, the scheme has no value.

NeMo has B = 2048 by default (and takes its offset from the number of heads, which makes it 0);
x-transformers rotates half of each head by default.
"""

import math

import torch
from pydantic import PositiveFloat
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Rotated
from lengthgen.schemes.parameters import Base
from lengthgen.schemes.rotary.rope import Rope, angles

RANGE = 116  # of float32's 126 powers of two on either side of 1; 10 are left to q and k


class Xpos(Rope):
    """Rotates queries and keys, and shrinks their product by zeta_m^(distance / scale_base).

    base: of the angles, 10000. scale_base: B, 512. gamma: 0.4.
    """

    bidirectional = False
    owns_qk = "has factors of q and k that cancel in q.k alone"

    def __init__(
        self, shape: ModelDims, *, base: Base, scale_base: PositiveFloat, gamma: PositiveFloat
    ) -> None:
        super().__init__(shape, base=base, rotary_percentage=1.0, layout="interleaved")
        self.scale_base, self.gamma = scale_base, gamma
        self.limit = int(2 * scale_base * RANGE / math.log2((1 + gamma) / gamma))

    def unsupported_reason(self, length: int) -> str | None:
        if length > self.limit:
            return f"xpos has factors past the range of float32 beyond {self.limit} tokens"
        return None

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        omega_R = c.frequencies(self.omega(c))
        m = torch.arange(0, c.shape.d_head, 2, device=c.k_pos.device, dtype=c.dtype)
        zeta_R = (m / c.shape.d_head + self.gamma) / (1 + self.gamma)
        centre = (c.k_pos.min() + c.k_pos.max()).to(c.dtype) / 2

        def decaying(x_BHTK: Tensor, pos: Tensor, sign: int) -> Tensor:
            turned = self.rotate(x_BHTK.to(c.dtype), angles(pos, omega_R))
            exponent = sign * (pos.to(c.dtype) - centre) / self.scale_base
            factor = zeta_R ** exponent[..., None]
            factor = factor[:, None] if factor.dim() == 3 else factor
            return (turned * factor.repeat_interleave(2, dim=-1)).to(x_BHTK.dtype)

        return Rotated(decaying(q_BHQK, c.q_pos, 1), decaying(k_BHSK, c.k_pos, -1))
