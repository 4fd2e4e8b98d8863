"""Biases: what parts add to the logits by distance, per layer and head.

Either what `bias` gives the last query of a long window, or q.r_d / sqrt(d_head) with the rows r_d
of `relative_keys`. Means over windows where they depend on content, and over the last queries for
relative keys. What a part adds in other ways, such as by rotation, is not measured.

B windows, H heads, Q queries, S keys, N distances, K head width.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lengthgen.probes import figures
from lengthgen.probes.attach import attach_module
from lengthgen.probes.base import Probe
from lengthgen.probes.inputs import ProbeInputs, Row, numbers, spaced
from lengthgen.schemes import AttentionContext, ModelDims, Part, Rotated

QUERIES = 256  # behind the mean over queries for relative keys


class BiasRecorder(Part):
    """Records what the other parts of each layer add for the last query: [H, N] by distance."""

    def __init__(self, shape: ModelDims) -> None:
        super().__init__(shape)
        self.bias_HN: dict[int, Tensor] = {}
        self.relative_HN: dict[int, Tensor] = {}

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        part = c.hooks.relative_keys
        table_HNK = part.relative_keys(c) if part else None
        if part and table_HNK is not None:
            q_H1K = q_BHQK[:, :, -QUERIES:].mean((0, 2))[:, None].to(table_HNK.dtype)
            added_H1K = part.relative_queries(c)
            q_H1K = q_H1K if added_H1K is None else q_H1K + added_H1K
            of_row_HN = (q_H1K @ table_HNK.transpose(-1, -2))[:, 0] * self.shape.d_head**-0.5
            row_N = torch.arange(k_BHSK.shape[2], device=q_BHQK.device)
            self.relative_HN[c.layer] = of_row_HN[:, row_N.clamp(max=table_HNK.shape[1] - 1)]
        return Rotated(q_BHQK, k_BHSK)

    def bias(self, c: AttentionContext) -> None:
        if c.rows.stop == c.length:
            last = slice(c.length - 1, c.length)
            at = replace(c, q_pos=c.q_pos[..., -1:], rows=last)
            added = [
                b for b in (p.bias(at) for p in c.hooks.bias if p is not self) if b is not None
            ]
            if added:
                shape = (*c.tokens_BT.shape[:1], self.shape.n_heads, 1, c.length)
                total = sum(added[1:], start=added[0]).expand(shape)
                self.bias_HN[c.layer] = total.mean(0)[:, 0].flip(-1)


class Bias(Probe):
    """What parts add to the logits of each head by distance, up to 4T."""

    order = 4
    figure = staticmethod(figures.bias)

    def settings(self, inputs: ProbeInputs) -> Row:
        return {"lengths": inputs.lengths, "queries": QUERIES}

    @torch.no_grad()
    def rows(self, inputs: ProbeInputs) -> list[Row]:
        """Returns a row for each of `bias` and `relative_keys` that parts have, [layers][heads][n].

        A layer that adds nothing has None.
        """
        scheme = inputs.model.scheme
        if not any(layer.bias or layer.relative_keys for layer in scheme.layers):
            return [{"skipped": "no part adds to the logits by distance"}]
        there = [n for n in inputs.lengths if inputs.unsupported_reason(n) is None]
        if not there:
            return [{"skipped": inputs.unsupported_reason(inputs.train_length)}]
        length, n_layers = there[-1], len(scheme.layers)
        sums: dict[str, dict[int, Tensor]] = {}
        recorder = BiasRecorder(inputs.model.shape)
        with attach_module(inputs.model, recorder):
            for text in inputs.windows(self.name, length):
                inputs.states(text.inputs_BT)
                for kind, added in (
                    ("bias", recorder.bias_HN),
                    ("relative_keys", recorder.relative_HN),
                ):
                    for layer, b_HN in added.items():
                        of_kind, wide = sums.setdefault(kind, {}), b_HN.cpu().double()
                        of_kind[layer] = of_kind[layer] + wide if layer in of_kind else wide
        return [
            _row(kind, [of_kind.get(i) for i in range(n_layers)], len(inputs.endpoints))
            for kind, of_kind in sums.items()
        ]

    def summary(self, rows: Sequence[Row]) -> str:
        """Returns what the far end of a window gets, relative to the query itself."""
        heads = [head for layer in rows[0]["bias"] if layer is not None for head in layer]
        falls = sorted(head[-1] - head[0] for head in heads)
        return (
            f"from distance 0 to {rows[0]['distances'][-1]:,}: {falls[0]:+.3g} to {falls[-1]:+.3g} "
            f"in {len(heads)} heads"
        )


def _row(kind: str, sums: list[Tensor | None], n_windows: int) -> Row:
    length = next(total.shape[1] for total in sums if total is not None)
    distances = [n - 1 for n in spaced(length)]
    means = [None if total is None else total[:, distances] / n_windows for total in sums]
    return {
        "kind": kind,
        "length": length,
        "distances": distances,
        "bias": [None if mean is None else numbers(mean) for mean in means],
    }
