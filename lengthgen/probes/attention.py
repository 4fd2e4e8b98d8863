"""Attention: how far and how widely each head attends, and how far models are apart in that.

Mean attention distance as in the NoPE paper (Kazemnejad et al. 2023, arXiv 2305.19466, section
6.1): i - j + 1 of query i and key j, over the length. Entropy and the weight of the first keys
(sinks: Xiao et al. 2023, arXiv 2309.17453) show how attention dilutes. Only the last queries of a
window are measured.

Distance of two models as in section 5.2 of the NoPE paper: two heads are as far apart as the
Jensen-Shannon divergence between their weights, a mean over queries, and two layers as their
nearest heads, one of each. It is in nats: from 0, equal weights, to ln 2. The means over all pairs
of heads are kept as well. Windows have T tokens, the same validation text for both models.

B windows, H heads, Q queries, S keys.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from lengthgen.config.schema import Config
from lengthgen.evaluation.evaluator import open_run, trained_model
from lengthgen.model.transformer import Transformer
from lengthgen.probes.attach import seen_weights
from lengthgen.probes.base import Probe, ProbeInputs, Row, Text, numbers
from lengthgen.probes.figures import Panel
from lengthgen.runs.distributed import ALONE
from lengthgen.runs.status import checkpoint_folders
from lengthgen.schemes import AttentionContext

QUERIES = 256  # at most, and no more than half of T
SINKS = 4
MEASURES = ("distance", "entropy", "relative_entropy", "sink")


class Attention(Probe):
    """How far and how widely each head attends, and how much to the first keys, by length."""

    shown = ("distance", "relative_entropy", "sink")

    @torch.no_grad()
    def measure(self, inputs: ProbeInputs, length: int) -> Row:
        """Returns each of MEASURES, [layers][heads]; distances over the length."""
        n_queries = max(1, min(QUERIES, inputs.train_length // 2))

        def look(w_BHQS: Tensor, c: AttentionContext) -> Tensor | None:
            n = c.rows.stop - max(c.rows.start, c.length - n_queries)
            return measured(w_BHQS[:, :, -n:], c) if n > 0 else None

        def of_text(text: Text) -> Tensor:  # [4, layers, H]
            by_layer = seen_weights(
                inputs.model, look, lambda: inputs.states(text.inputs_BT, n_last=n_queries)
            )
            layers = [torch.cat(blocks, dim=-1).mean((1, 3)) for blocks in by_layer]
            return torch.stack(layers, dim=1) / torch.tensor([length, 1, 1, 1])[:, None, None]

        means = inputs.mean(self.name, length, of_text)
        return {name: numbers(mean) for name, mean in zip(MEASURES, means, strict=True)}

    def panels(self, rows: Sequence[Row]) -> Mapping[str, Panel]:
        return {f"{n} at {row['length']:,}": row[n] for n in self.shown for row in rows}


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


class HeadDistance(Probe):
    """How far the attention of each layer is from that of each other run named, at T."""

    shown, columns = ("distance",), 1

    def settings(self, inputs: ProbeInputs) -> Row:
        return {"others": [[c.run_id, checkpoint_folders(f)[-1].name] for c, f in inputs.others]}

    def rows(self, inputs: ProbeInputs) -> list[Row]:
        """Returns a row for each other run: the distance of each layer, and of its heads."""
        if not inputs.others:
            return [{"skipped": "it compares runs; lengthgen probe RUN RUN names two or more"}]
        return [self._row(inputs, *other) for other in inputs.others]

    @torch.no_grad()
    def _row(self, inputs: ProbeInputs, config: Config, run_dir: Path) -> Row:
        length = inputs.train_length
        row: Row = {"other": config.run_id, "other_scheme": config.scheme.name}
        opened = open_run(config, run_dir, ranks=ALONE, show=inputs.show)
        if opened.planned.corpus.fingerprint != inputs.corpus.fingerprint:
            return {**row, "skipped": f"{config.run_id} was trained on another text"}
        models = [inputs.model, trained_model(config, opened).requires_grad_(False)]
        own_depth, depth = (model.shape.n_layers for model in models)
        if own_depth != depth:
            return {**row, "skipped": f"model.n_layers={depth}, here {own_depth}"}
        reason = inputs.unsupported_reason(length) or models[1].scheme.unsupported_reason(length)
        if reason:
            return {**row, "skipped": reason}

        def of_text(text: Text) -> Tensor:  # [layers, H, H]
            weights = (layer_weights(model, inputs, text.inputs_BT) for model in models)
            return torch.stack([divergences(*pair) for pair in zip(*weights, strict=True)])

        means = inputs.mean(self.name, length, of_text)
        return {**row, "distance": numbers(means.amin((1, 2))), "heads": numbers(means)}

    def panels(self, rows: Sequence[Row]) -> Mapping[str, Panel]:
        return {"distance over layers (nats)": {row["other"]: row["distance"] for row in rows}}


def layer_weights(model: Transformer, inputs: ProbeInputs, tokens_BT: Tensor) -> list[Tensor]:
    """Returns each layer's attention weights of one text as shares of 1, [H, Q, S] float64."""

    def look(w_BHQS: Tensor, c: AttentionContext) -> Tensor:
        w_HQS = w_BHQS[0].cpu().double().abs()
        around = (c.cols.start, c.length - c.cols.stop)
        return torch.nn.functional.pad(w_HQS / w_HQS.sum(-1, keepdim=True), around)

    draws = inputs.draws("evaluation")
    by_layer = seen_weights(model, look, lambda: model(tokens_BT, generator=draws))
    return [torch.cat(blocks, dim=1) for blocks in by_layer]


def divergences(a_HQS: Tensor, b_HQS: Tensor) -> Tensor:
    """Returns the mean Jensen-Shannon divergence over queries of every pair of heads, in nats.

    [H, H], a row for each head of a.
    """

    def entropy(w: Tensor) -> Tensor:
        return torch.special.entr(w).sum(-1).mean(-1)

    mixed_HH = torch.stack([entropy((a_QS + b_HQS) / 2) for a_QS in a_HQS])
    return (mixed_HH - (entropy(a_HQS)[:, None] + entropy(b_HQS)) / 2).clamp(min=0)
