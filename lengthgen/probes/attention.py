"""Attention: how far and how widely each head attends, and how much to the first keys, by length.

Mean attention distance as in the NoPE paper (Kazemnejad et al. 2023, arXiv 2305.19466, section
6.1): i - j + 1 of query i and key j, over the length. Entropy and the weight of the first keys
(sinks: Xiao et al. 2023, arXiv 2309.17453) show how attention dilutes. Only the last queries of a
window are measured.

B windows, H heads, Q queries, S keys.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lengthgen.probes import figures
from lengthgen.probes.attach import WeightsPart, attach_module
from lengthgen.probes.base import LengthProbe
from lengthgen.probes.inputs import ProbeInputs, Row, numbers
from lengthgen.schemes import AttentionContext, ModelDims, Scheme

QUERIES = 256  # at most, and no more than half of T
SINKS = 4
MEASURES = ("distance", "entropy", "relative_entropy", "sink")


class AttentionRecorder(WeightsPart):
    """Measures the weights of every layer's last queries."""

    def __init__(self, shape: ModelDims, scheme: Scheme, *, n_queries: int) -> None:
        super().__init__(shape, scheme)
        self.n_queries = n_queries

    def look(self, w_BHQS: Tensor, c: AttentionContext) -> None:
        n = c.rows.stop - max(c.rows.start, c.length - self.n_queries)
        if n > 0:
            self.found[c.layer].append(measured(w_BHQS[:, :, -n:], c))

    def means(self, length: int) -> Tensor:
        """Returns the measures of every layer and head over the last queries, [4, layers, H]."""
        found = [torch.cat(self.found[i], dim=-1).mean((1, 3)) for i in range(len(self.owners))]
        return torch.stack(found, dim=1) / torch.tensor([length, 1, 1, 1])[:, None, None]


class Attention(LengthProbe):
    """How far and how widely each head attends, and how much to the first keys, by length."""

    order = 3
    figure = staticmethod(figures.attention)

    def settings(self, inputs: ProbeInputs) -> Row:
        n_queries = max(1, min(QUERIES, inputs.train_length // 2))
        return {**super().settings(inputs), "queries": n_queries, "sinks": SINKS}

    @torch.no_grad()
    def measure(self, inputs: ProbeInputs, length: int) -> Row:
        """Returns each of MEASURES, [layers][heads]; distances over the length."""
        n_queries = self.settings(inputs)["queries"]
        model, total = inputs.model, torch.zeros((), dtype=torch.float64)
        recorder = AttentionRecorder(model.shape, model.scheme, n_queries=n_queries)
        with attach_module(model, recorder):
            for text in inputs.windows(self.name, length):
                inputs.states(text.inputs_BT, n_last=n_queries)
                total = total + recorder.means(length)
        means = total / len(inputs.endpoints)
        return {name: numbers(mean) for name, mean in zip(MEASURES, means, strict=True)}

    def summary(self, rows: Sequence[Row]) -> str:
        """Returns the means over heads at the shortest length and at the longest."""
        names = {
            "distance": "mean distance / length",
            "relative_entropy": "entropy / its maximum ln i (i keys)",
            "sink": f"share of attention on the first {SINKS} keys",
        }
        ends = [*rows[:1], *rows[1:][-1:]]
        each = [
            f"{label} " + " -> ".join(f"{torch.tensor(row[name]).mean():.2f}" for row in ends)
            for name, label in names.items()
        ]
        lengths = " -> ".join(f"{row['length']:,}" for row in ends)
        return f"{', '.join(each)} at {lengths} tokens"


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
