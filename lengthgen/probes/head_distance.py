"""Distance between the attention of two trained models, by layer.

As in the NoPE paper (Kazemnejad et al. 2023, arXiv 2305.19466, section 5.2): two heads are as far
apart as the Jensen-Shannon divergence between their weights, a mean over queries, and two layers as
their nearest heads, one of each. The divergence is in nats: from 0, equal weights, to ln 2. The
means over all pairs of heads are kept as well. Windows have T tokens, here the same validation text
for both models.

H heads, Q queries, S keys.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lengthgen.evaluation.evaluator import open_run, trained_model
from lengthgen.probes import figures
from lengthgen.probes.attach import WeightsPart, attach_module
from lengthgen.probes.base import Probe
from lengthgen.probes.inputs import Other, ProbeInputs, Row, numbers
from lengthgen.runs.distributed import ALONE
from lengthgen.runs.status import last_step
from lengthgen.schemes import AttentionContext


class WeightRecorder(WeightsPart):
    """Records every layer's weights of a text: [H, Q, S]."""

    def look(self, w_BHQS: Tensor, c: AttentionContext) -> None:
        w_HQS = w_BHQS[0].cpu().double().abs()
        share_HQS = w_HQS / w_HQS.sum(-1, keepdim=True)
        around = (c.cols.start, c.length - c.cols.stop)
        self.found[c.layer].append(torch.nn.functional.pad(share_HQS, around))

    def of_layers(self) -> list[Tensor]:
        return [torch.cat(self.found[i], dim=1) for i in range(len(self.owners))]


class HeadDistance(Probe):
    """How far the attention of each layer is from that of each other run named, at T."""

    order = 7
    figure = staticmethod(figures.head_distance)

    def settings(self, inputs: ProbeInputs) -> Row:
        return {
            "others": [[other.config.run_id, last_step(other.run_dir)] for other in inputs.others]
        }

    def rows(self, inputs: ProbeInputs) -> list[Row]:
        """Returns a row for each other run: the distance of each layer, and of its heads."""
        if not inputs.others:
            return [{"skipped": "it compares runs; lengthgen probe RUN RUN names two or more"}]
        return [self._row(inputs, other) for other in inputs.others]

    @torch.no_grad()
    def _row(self, inputs: ProbeInputs, other: Other) -> Row:
        config, length = other.config, inputs.train_length
        about = {"other": config.run_id, "other_scheme": config.scheme.name}
        opened = open_run(config, other.run_dir, ranks=ALONE, show=inputs.show)
        if opened.planned.corpus.fingerprint != inputs.corpus.fingerprint:
            return {**about, "skipped": f"{config.run_id} was trained on another text"}
        model = trained_model(config, opened).requires_grad_(False)
        n_layers = (inputs.model.shape.n_layers, model.shape.n_layers)
        if n_layers[0] != n_layers[1]:
            return {**about, "skipped": f"model.n_layers={n_layers[1]}, here {n_layers[0]}"}
        reason = inputs.unsupported_reason(length) or model.scheme.unsupported_reason(length)
        if reason:
            return {**about, "skipped": reason}
        models = [inputs.model, model]
        recorders = [WeightRecorder(m.shape, m.scheme) for m in models]
        sums: list[Tensor] | None = None
        for text in inputs.windows(self.name, length):
            for m, recorder in zip(models, recorders, strict=True):
                with attach_module(m, recorder):
                    m(text.inputs_BT, generator=inputs.draws("evaluation"))
            pairs = zip(*(recorder.of_layers() for recorder in recorders), strict=True)
            found = [divergences(a_HQS, b_HQS) for a_HQS, b_HQS in pairs]
            sums = found if sums is None else [a + b for a, b in zip(sums, found, strict=True)]
        assert sums is not None, "an endpoint at least"
        means = [total / len(inputs.endpoints) for total in sums]
        nearest = [numbers(mean.min()) for mean in means]
        return {**about, "distance": nearest, "heads": [numbers(mean) for mean in means]}

    def summary(self, rows: Sequence[Row]) -> str:
        """Returns the mean over layers for each other run, the nearest first."""
        means = sorted(
            (math.fsum(row["distance"]) / len(row["distance"]), row["other"]) for row in rows
        )
        return ", ".join(f"{mean:.3f} to {other}" for mean, other in means) + " (nats, of ln 2)"


def divergences(a_HQS: Tensor, b_HQS: Tensor) -> Tensor:
    """Returns the mean Jensen-Shannon divergence over queries of every pair of heads, in nats.

    [H, H], a row for each head of a.
    """

    def entropy(w: Tensor) -> Tensor:
        return torch.special.entr(w).sum(-1).mean(-1)

    mixed_HH = torch.stack([entropy((a_QS + b_HQS) / 2) for a_QS in a_HQS])
    return (mixed_HH - (entropy(a_HQS)[:, None] + entropy(b_HQS)) / 2).clamp(min=0)
