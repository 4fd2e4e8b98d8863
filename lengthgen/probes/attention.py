"""Attention: how far and how widely each head attends.

Mean attention distance as in the NoPE paper (Kazemnejad et al. 2023, arXiv 2305.19466, section
6.1): i - j + 1 of query i and key j, over the length. Entropy and the weight of the first keys
(sinks: Xiao et al. 2023, arXiv 2309.17453) show how attention dilutes. Only the last queries of a
window are measured.

B windows, H heads, Q queries, S keys.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lengthgen.probes.base import Panel, Probe, ProbeInputs, ProbeRow, ProbeText, attached, numbers
from lengthgen.schemes import AttentionContext, Part

QUERIES = 256  # at most, and no more than half of T
SINKS = 4
MEASURES = ("distance", "entropy", "relative_entropy", "sink")


class Attention(Probe):
    """How far and how widely each head attends, and how much to the first keys, by length."""

    shown = ("distance", "relative_entropy", "sink")

    @torch.no_grad()
    def measure(self, inputs: ProbeInputs, length: int) -> ProbeRow:
        """Returns each of MEASURES, [layers][heads]; distances over the length."""
        unit = torch.tensor([length, 1, 1, 1])[:, None, None]
        means = inputs.mean(self.name, length, lambda text: of_heads(inputs, text) / unit)
        return {name: numbers(mean) for name, mean in zip(MEASURES, means, strict=True)}

    def panels(self, rows: Sequence[ProbeRow]) -> Mapping[str, Panel]:
        return {f"{n} at {row['length']:,}": row[n] for n in self.shown for row in rows}


def of_heads(inputs: ProbeInputs, text: ProbeText) -> Tensor:
    """Returns the means of `measured` over the last queries of a text, [4, layers, H].

    A text that is read in segments has them in the last one.
    """
    n_queries = max(1, min(QUERIES, inputs.train_length // 2))
    owners = [layer.weights or Part(inputs.model.shape) for layer in inputs.model.scheme.layers]
    blocks: list[list[Tensor]] = [[] for _ in owners]

    def embed(x_BTD: Tensor, c: AttentionContext) -> Tensor:  # a segment begins
        for of_layer in blocks:
            of_layer.clear()
        return x_BTD

    def weights(s_BHQS: Tensor, c: AttentionContext) -> Tensor:
        w_BHQS = owners[c.layer].weights(s_BHQS, c)
        n = c.rows.stop - max(c.rows.start, c.length - n_queries)
        if n > 0:
            blocks[c.layer].append(measured(w_BHQS[:, :, -n:], c))
        return w_BHQS

    with attached(inputs.model, embed=embed, weights=weights):
        inputs.states(text.inputs_BT, n_last=n_queries)
    return torch.stack([torch.cat(of_layer, dim=-1).mean((1, 3)) for of_layer in blocks], dim=1)


def measured(w_BHQS: Tensor, c: AttentionContext) -> Tensor:
    """Returns distance in tokens, entropy in nats and over ln(i), and sink weight: [4, B, H, Q].

    The queries are the last of the block, i - 1 keys stand before each. Weights that do not sum to
    one are taken as shares of their sum, and negative ones by their size.
    """
    w = w_BHQS.cpu().double().abs()
    w = w / w.sum(-1, keepdim=True)
    i = torch.arange(c.rows.stop - w.shape[2], c.rows.stop)
    j = torch.arange(c.cols.start, c.cols.stop)
    distance = (w * (i[:, None] - j + 1)).sum(-1)
    entropy = torch.special.entr(w).sum(-1)
    relative = entropy / (i + 1.0).log().clamp(min=1e-9)
    return torch.stack([distance, entropy, relative, w[..., :SINKS].sum(-1)])
