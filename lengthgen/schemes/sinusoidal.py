"""Sinusoidal absolute positions: Vaswani et al. 2017, arXiv 1706.03762, section 3.5.

PE[p, 2m] = sin(p w_m), PE[p, 2m+1] = cos(p w_m), w_m = base^(-2m/D), added to the embeddings.
Two other layouts are in use and are other functions: `concat` = [sin | cos] with the same
frequencies (Transformer-XL), `concat_t2t` = [sin | cos] with w_m = base^(-m/(D/2-1))
(tensor2tensor, fairseq).

Size. PE has a root mean square of 0.707. The paper adds it to embeddings times sqrt(D), which it
draws with a standard deviation of D^-1/2, so that the two are alike; so do tensor2tensor and
fairseq. `scale: published` is that sum, sqrt(D) x + PE: embeddings that grow in training keep the
size that they have beside PE in the paper. `scale: match` is x + init_std sqrt(2) PE, alike at
initialisation only; a number is the factor of PE, beside x as it is.

B batch, T tokens, D width.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from lengthgen.schemes.base import Ctx, Part, Shape


class Sinusoidal(Part):
    """Adds sines and cosines of the position to the token embeddings.

    base: 10000 in the paper. scale: "published", "match", or the factor of PE.
    """

    shift_invariant = False

    def __init__(
        self,
        shape: Shape,
        *,
        base: float,
        layout: Literal["interleaved", "concat", "concat_t2t"],
        scale: Literal["published", "match"] | float,
    ) -> None:
        super().__init__(shape)
        if base <= 1:
            raise ValueError(f"base={base} must be above 1")
        if shape.d_model % 2:
            even = math.lcm(2, shape.n_heads) * (shape.d_model // math.lcm(2, shape.n_heads) + 1)
            raise ValueError(
                f"model.d_model={shape.d_model} must be even; try model.d_model={even}"
            )
        if layout == "concat_t2t" and shape.d_model < 4:
            raise ValueError("layout=concat_t2t needs a model.d_model of at least 4")
        self.base, self.layout = base, layout
        self.gain = math.sqrt(shape.d_model) if scale == "published" else 1.0  # of the tokens
        factors = {"published": 1.0, "match": shape.init_std * math.sqrt(2)}
        self.scale = factors[scale] if isinstance(scale, str) else scale

    def table(self, pos: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns PE at the given positions without its factor: [..., D]."""
        half = self.shape.d_model // 2
        m = torch.arange(half, device=pos.device, dtype=dtype)
        omega = self.base ** (-m / (half - 1 if self.layout == "concat_t2t" else half))
        theta = pos.to(dtype)[..., None] * omega
        if self.layout == "interleaved":
            return torch.stack([theta.sin(), theta.cos()], dim=-1).flatten(-2)
        return torch.cat([theta.sin(), theta.cos()], dim=-1)

    def embed(self, x_BTD: Tensor, c: Ctx) -> Tensor:
        return self.gain * x_BTD + self.scale * self.table(c.pos, c.dtype).to(x_BTD.dtype)
