"""ALiBi, attention with linear biases: Press et al. 2022, arXiv 2108.12409, section 3.

The logit of query i and key j gets -m_h (i - j), not -m_h j, which rounds to the same for
neighbouring keys in half precision beyond a few thousand tokens. Slopes of head counts that are no
power of two are the release's (fairseq/models/transformer.py, get_slopes).

`alibi_falcon` is that of Falcon-RW (Penedo et al. 2023, arXiv 2306.01116), for imported models.

`alibi_learned` is that of McGill-NLP/length-generalization (Kazemnejad et al. 2023, arXiv
2305.19466): logarithms of slopes are parameters, and begin at ALiBi's. That code has slope * j.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from lengthgen.schemes.base import AttentionContext, ModelDims, Part
from lengthgen.schemes.parameters import constant, of_layer


class Alibi(Part):
    """Adds -m_h * distance to the logits.

    beyond: extend, the same slopes at every length, as in the paper; interpolate, slopes times T/L
    in calls of L > T tokens (Al-Khateeb et al. 2023, arXiv 2310.13017). sides, of an encoder:
    symmetric, -m_h |i - j| as in NeMo; split, half of the heads see keys up to the query alone, the
    others those from it on, each half with the slopes of H/2 heads
    (ofirpress/attention_with_linear_biases, issue 5, "nonsymmetric with mask").
    """

    bidirectional = True
    distance_only = True

    def __init__(
        self,
        shape: ModelDims,
        *,
        beyond: Literal["extend", "interpolate"],
        sides: Literal["symmetric", "split"] = "symmetric",
    ) -> None:
        super().__init__(shape)
        self.split = sides == "split" and not shape.causal
        if self.split and shape.n_heads % 2:
            raise ValueError(f"sides=split needs an even model.n_heads, not {shape.n_heads}")
        self.beyond = beyond
        self.depends_on_length = beyond == "interpolate"

    def bias(self, c: AttentionContext) -> Tensor:
        if self.split:
            return self.one_sided(c)
        m_H = constant(tuple(slopes(c.shape.n_heads)), c.q_pos.device, c.dtype)
        if self.beyond == "interpolate":
            m_H = m_H * min(1, c.shape.train_length / c.length)
        return -m_H[:, None, None] * c.distance()

    def one_sided(self, c: AttentionContext) -> Tensor:
        """Returns the bias of an encoder whose heads see one side of the query, [H, Q, S]."""
        half = slopes(c.shape.n_heads // 2)
        m_H = constant((*half, *half), c.q_pos.device, c.dtype)
        after = c.k_pos[..., None, :] - c.q_pos[..., :, None]
        hidden = torch.stack([after > 0, after < 0]).repeat_interleave(len(half), dim=0)
        # Finite, as a row past the end of its prompt has no key on one of its sides.
        lowest = torch.finfo(c.dtype).min / 2
        return (-m_H[:, None, None] * c.distance()).masked_fill(hidden, lowest)


class AlibiFalcon(Part):
    """Adds m_h j / sqrt(d_head) to the logits of key j: ALiBi of Falcon, in bf16 as it was trained.

    HF transformers, models/falcon, build_alibi_tensor: m_h, j and their product are rounded to 8
    bits, so that neighbouring keys beyond the 256th may have one bias.
    """

    shift_invariant = False

    def bias(self, c: AttentionContext) -> Tensor:
        m_H = constant(tuple(slopes(c.shape.n_heads)), c.q_pos.device, c.dtype).bfloat16()
        bias = m_H[:, None, None] * c.k_pos[..., None, None, :].bfloat16()
        size = c.q_pos.shape[-1], c.k_pos.shape[-1]
        return (bias.to(c.dtype) / c.shape.d_head**0.5).expand(*bias.shape[:-2], *size)


class AlibiLearned(Part):
    """Adds -exp(log_slope) * distance to the logits.

    share_layers: one slope per head for all layers, or one in each.
    """

    bidirectional = True
    distance_only = True

    def __init__(self, shape: ModelDims, *, share_layers: bool) -> None:
        super().__init__(shape)
        n = 1 if share_layers else shape.n_layers
        self.log_slopes = nn.Parameter(torch.tensor(slopes(shape.n_heads)).log().repeat(n, 1))

    def bias(self, c: AttentionContext) -> Tensor:
        return -of_layer(self.log_slopes, c).exp()[:, None, None] * c.distance()


def slopes(n_heads: int) -> list[float]:
    """Returns the slopes m_h of all heads: 2^(-8h/H) for a power of two, h = 1 ... H."""
    below = 2 ** (n_heads.bit_length() - 1)
    first = [2 ** (-8 * h / below) for h in range(1, below + 1)]
    return first + [2 ** (-4 * h / below) for h in range(1, 2 * (n_heads - below), 2)]
