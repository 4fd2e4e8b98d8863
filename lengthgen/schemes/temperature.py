"""Factors of the queries that grow with the number of keys, i + 1.

Biases are left as they are, but for those of `cope` and `grape_a`, whose gates read the queries.
"""

import math
from abc import ABC, abstractmethod

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from lengthgen.schemes.base import AttentionContext, ModelDims, Part, Rotated
from lengthgen.schemes.parameters import of_layer, tokens


class QueryFactor(Part, ABC):
    """Queries times a factor of their own."""

    needs_whole_text = True
    scales_logits = True

    @abstractmethod
    def factor(self, c: AttentionContext) -> Tensor:
        """Returns the factor of each query, [Q], [H, Q] or [B, H, Q] in c.dtype."""

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        return Rotated(q_BHQK * self.factor(c)[..., None], k_BHSK)


class Logn(QueryFactor):
    """Log-n scaling: queries times max(1, ln n / ln T), n the number of keys up to the query.

    Su's ReRoPE release has it built in (github.com/bojone/rerope), SelfExtend's as an option. Up to
    T it is exactly 1; BiPE's `log_scale` has no maximum with 1: another function.
    """

    def factor(self, c: AttentionContext) -> Tensor:
        T = self.shape.train_length
        beyond = (c.n_visible().to(c.dtype) / T).clamp(min=1)  # ln 1 = 0: no rounding up to T
        return 1 + beyond.log() / math.log(T)


class LogScaling(QueryFactor):
    """SWAN's scaling: Puvvada et al. 2025, arXiv 2504.08719, appendix D. Only in evaluation.

    The query with n keys before it is multiplied by log_a(a + n), at least 1. a: in multiples of T;
    the paper fits it to a trained model, and does not state it. There in layers without positions.
    """

    def __init__(self, shape: ModelDims, *, a: PositiveFloat) -> None:
        super().__init__(shape)
        self.a = tokens(a, shape)
        if self.a < 2:
            raise ValueError(f"a={a} is {self.a} token; the base of a logarithm is 2 at least")

    def factor(self, c: AttentionContext) -> Tensor:
        n = (c.n_visible() - 1).to(c.dtype)
        return torch.ones_like(n) if c.training else (self.a + n).log() / math.log(self.a)


class Ssmax(QueryFactor):
    """SSMax, scalable softmax: Nakanishi 2025, arXiv 2501.19399. Queries times s_h ln n.

    s is trained per head, in each layer or, with share_layers, once. init: s at first; 1 in the
    release of BAM (models/nope_ssmax.py), where also biases enter the product (`ssmax_prior`): here
    they do not.
    """

    def __init__(self, shape: ModelDims, *, init: float, share_layers: bool) -> None:
        super().__init__(shape)
        layers = 1 if share_layers else shape.n_layers
        self.s = nn.Parameter(torch.full((layers, shape.n_heads), float(init)))

    def factor(self, c: AttentionContext) -> Tensor:
        s_H = of_layer(self.s, c).to(c.dtype)
        return s_H[:, None] * c.n_visible().to(c.dtype).log()


class Llama4Temperature(QueryFactor):
    """The temperature of Llama 4: Meta 2025; transformers, models/llama4/modeling_llama4.py.

    The query with n keys is multiplied by 1 + scale ln(1 + floor(n / floor)). scale: 0.1 there;
    floor: in multiples of T, 8192 tokens there, where only layers without positions have it.
    """

    def __init__(self, shape: ModelDims, *, scale: PositiveFloat, floor: PositiveFloat) -> None:
        super().__init__(shape)
        self.scale, self.floor = scale, tokens(floor, shape)

    def factor(self, c: AttentionContext) -> Tensor:
        steps = c.n_visible() // self.floor
        return 1 + self.scale * steps.to(c.dtype).log1p()


class Temperature(Part):
    """Logits times 1 + c ln(L/T) beyond T, in all of a call of length L.

    The form that DroPE (Gelberg et al. 2025, arXiv 2512.12167) uses for models whose positions were
    dropped, c (`coefficient`) tuned per model. YaRN's (1 + 0.1 ln(L/T))^2 has c = 0.2 to first
    order.
    """

    depends_on_length = True
    scales_logits = True

    def __init__(self, shape: ModelDims, *, coefficient: PositiveFloat) -> None:
        super().__init__(shape)
        self.coefficient = coefficient

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        beyond = max(1, c.length / self.shape.train_length)
        return Rotated(q_BHQK * (1 + self.coefficient * math.log(beyond)), k_BHSK)
