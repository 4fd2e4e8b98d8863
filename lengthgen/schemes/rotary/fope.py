"""FoPE, Fourier position embedding: Hua et al. 2024, arXiv 2412.17739.

Each channel pair of queries and keys is multiplied by a Fourier series instead of one wave: RoPE's
cos(p omega_m) and sin(p omega_m) become

  sum_n A_nm cos(p omega_n)        sum_n B_nm sin(p omega_n)

over the M angles omega_n of at least 2 pi / T; the pairs of slower ones, which complete no turn
within T, do not depend on the position. Products of series are no function of i - j. A and B are
the identity plus numbers drawn once, for each layer and head, and not trained. As in the authors'
code (TsinghuaC3I/Fourier-Position-Embedding,
olmo/model.py) these have the deviation gain sqrt(2 / (M (M + H))), what Xavier's rule gives for a
tensor [H, M, M].

Deviations from that code, which follow the paper: pairs without position keep cos = 1, sin = 0,
where it has sin = 1, so that their products double; and all M pairs have a series, where it allows
d/4 of them, the same for d = 64, T = 512 and base 10000.

M angles.
"""

import math

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Part, Rotated
from lengthgen.schemes.parameters import Base, head_width
from lengthgen.schemes.rotary.rope import angles, powers, times


class Fope(Part):
    """Multiplies channel pairs by fixed random Fourier series in the position.

    base: 10000. gain: of the random coefficients; 0.3, 0.4 and 0.6 in the authors' models of 60M,
    180M and 1.2G parameters. draw: which ones; the same number gives the same coefficients.
    """

    bidirectional = True
    shift_invariant = False
    coefficients: Tensor  # [2, layers, H, M, M]: A, B

    def __init__(self, shape: ModelDims, *, base: Base, gain: NonNegativeFloat, draw: int) -> None:
        super().__init__(shape)
        if shape.d_head % 2:
            wider = head_width(shape, shape.d_head + 1)
            raise ValueError(f"head width of {shape.d_head} must be even; try {wider}")
        omega = [base ** (-2 * m / shape.d_head) for m in range(shape.d_head // 2)]
        M = sum(w >= 2 * math.pi / shape.train_length for w in omega)
        if M == 0:
            raise ValueError(
                f"train.length={shape.train_length} is shorter than one turn of the fastest pair; "
                "at least 7 is needed"
            )
        self.base = base
        generator = torch.Generator().manual_seed(draw)
        size = 2, shape.n_layers, shape.n_heads, M, M
        noise = torch.randn(size, generator=generator, device="cpu")
        std = gain * math.sqrt(2 / (M * (M + shape.n_heads)))
        coefficients = torch.eye(M, device="cpu") + std * noise
        self.register_buffer("coefficients", coefficients, persistent=False)

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        return Rotated(self.turned(q_BHQK, c.q_pos, c), self.turned(k_BHSK, c.k_pos, c))

    def turned(self, x_BHTK: Tensor, pos: Tensor, c: AttentionContext) -> Tensor:
        """Returns x with its first M channel pairs multiplied by their series, in x's dtype."""
        A_HMM, B_HMM = self.coefficients[:, c.layer].to(pos.device, c.dtype)
        M = A_HMM.shape[-1]
        theta_TM = angles(pos, powers(self.base, c.shape.d_head, c)[:M])
        cos, sin = theta_TM.cos() @ A_HMM, theta_TM.sin() @ B_HMM
        a, b = x_BHTK.to(c.dtype).chunk(2, dim=-1)
        pairs = torch.cat([a[..., :M], b[..., :M]], dim=-1)
        real, imaginary = times(pairs, cos, sin).chunk(2, dim=-1)
        return torch.cat([real, a[..., M:], imaginary, b[..., M:]], dim=-1).to(x_BHTK.dtype)
