"""Sinusoidal absolute positions: Vaswani et al. 2017, arXiv 1706.03762, section 3.5.

PE[p, 2m] = sin(p w_m), PE[p, 2m+1] = cos(p w_m), w_m = base^(-2m/D), added to the embeddings.
Two other layouts are in use and are other functions: `concat` = [sin | cos] with the same
frequencies (Transformer-XL), `concat_t2t` = [sin | cos] with w_m = base^(-m/(D/2-1))
(tensor2tensor, fairseq).

Size. PE has a root mean square (RMS) of 0.707; the paper adds it to embeddings of RMS 1. In a model
initialised as GPT-2, with 0.02 and no multiplier, it would drown the tokens 35-fold at first, and
any fixed factor is soon wrong, as small embeddings grow several-fold. `scale: published` is the
paper's sum up to a common factor: x + RMS(E) PE, E the table of token embeddings at present, no
gradient through its RMS. `match` is RMS(E) PE sqrt(2) as it is at initialisation; `learned` begins
with it, and trains the factor.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from lengthgen.errors import UserError
from lengthgen.schemes.base import AttentionContext, ModelDims, Part
from lengthgen.schemes.parameters import Base


class Sinusoidal(Part):
    """Adds sines and cosines of the position to the token embeddings.

    base: 10000 in the paper. scale: "published", the RMS of the tokens' table; "match", that at
    initialisation times sqrt(2); "learned", a trained factor; or a number: the factor of PE.
    """

    bidirectional = True
    shift_invariant = False

    def __init__(
        self,
        shape: ModelDims,
        *,
        base: Base,
        layout: Literal["interleaved", "concat", "concat_t2t"],
        scale: Literal["published", "match", "learned"] | float,
    ) -> None:
        super().__init__(shape)
        if shape.d_model % 2:
            even = math.lcm(2, shape.n_heads)
            even *= shape.d_model // even + 1
            D = shape.d_model
            raise ValueError(f"model.d_model={D} must be even; try model.d_model={even}")
        if layout == "concat_t2t" and shape.d_model < 4:
            raise ValueError("layout=concat_t2t needs a model.d_model of at least 4")
        self.base, self.layout = base, layout
        match = shape.init_std * math.sqrt(2)
        if scale == "learned":
            self.scale = nn.Parameter(torch.tensor(match))
        else:
            self.scale = match if scale == "match" else scale

    def table(self, pos: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns PE at these positions, [..., D]."""
        half = self.shape.d_model // 2
        m = torch.arange(half, device=pos.device, dtype=dtype)
        omega = self.base ** (-m / (half - 1 if self.layout == "concat_t2t" else half))
        theta = pos.to(dtype)[..., None] * omega
        if self.layout == "interleaved":
            return torch.stack([theta.sin(), theta.cos()], dim=-1).flatten(-2)
        return torch.cat([theta.sin(), theta.cos()], dim=-1)

    def embed(self, x_BTD: Tensor, c: AttentionContext) -> Tensor:
        scale = self.scale
        if isinstance(scale, str):
            if c.embedding_VD is None:
                raise UserError(
                    "scheme.parts.sinusoidal.scale=published: it is the size of token embeddings "
                    "that model.embedding_norm=true changes; give scale=1.0, or another number"
                )
            size = math.sqrt(c.embedding_VD.numel())
            scale = torch.linalg.vector_norm(c.embedding_VD.detach()) / size
        return x_BTD + scale * self.table(c.pos, c.dtype).to(x_BTD.dtype)
