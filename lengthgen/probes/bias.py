"""Biases: what parts add to the logits by distance, per layer and head.

Either what `bias` gives the last query of a long window, or q.r_d / sqrt(d_head) with the rows r_d
of `relative_keys`. Means over windows where they depend on content, and over the last queries for
relative keys. What a part adds in other ways, such as by rotation, is not measured.

B windows, H heads, Q queries, S keys, N distances, K head width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lengthgen.probes.base import Panel, Probe, ProbeInputs, ProbeRow, attached, numbers, spaced
from lengthgen.schemes import AttentionContext, Rotated

AVERAGED = 256  # behind the mean over queries for relative keys


class Bias(Probe):
    """What parts add to the logits of each head by distance, up to 4T."""

    key, shown = "layer", ("far_less_near",)

    @torch.no_grad()
    def rows(self, inputs: ProbeInputs) -> list[ProbeRow]:
        """Returns a row for each layer and kind, `bias` or `relative_keys`, [heads][distances]."""
        if not any(layer.bias or layer.relative_keys for layer in inputs.model.scheme.layers):
            return [{"skipped": "no part adds to the logits by distance"}]
        lengths = [n for n, why in inputs.reasons.items() if why is None]
        if not lengths:
            return [{"skipped": inputs.reasons[inputs.train_length]}]
        sums_HN: dict[tuple[str, int], Tensor] = {}
        for text in inputs.windows(self.name, lengths[-1]):
            for where, x_HN in added(inputs, text.inputs_BT).items():
                sums_HN[where] = x_HN + sums_HN.get(where, 0)
        rows: list[ProbeRow] = []
        for (kind, layer), sum_HN in sorted(sums_HN.items(), key=lambda item: item[0]):
            distances = [n - 1 for n in spaced(sum_HN.shape[1])]  # in a segment those of one call
            mean_HN = sum_HN[:, distances] / len(inputs.endpoints)
            about = {"layer": layer, "kind": kind, "length": sum_HN.shape[1]}
            ends = numbers(mean_HN[:, -1] - mean_HN[:, 0])
            lines = {"distances": distances, "bias": numbers(mean_HN), "far_less_near": ends}
            rows.append(about | lines)
        return rows

    def panels(self, rows: Sequence[ProbeRow]) -> Mapping[str, Panel]:
        return {
            f"layer {row['layer']}: {row['kind']} over distance": {
                f"head {h}": (row["distances"], y) for h, y in enumerate(row["bias"])
            }
            for row in rows
        }


def added(inputs: ProbeInputs, tokens_BT: Tensor) -> dict[tuple[str, int], Tensor]:
    """Returns what a text's last query gets by distance, [H, N] float64, by kind and layer."""
    by_kind: dict[tuple[str, int], Tensor] = {}
    shape = inputs.model.shape

    def qk(q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        part = c.hooks.relative_keys
        table_HNK = part.relative_keys(c) if part else None
        if part and table_HNK is not None:
            q_H1K = q_BHQK[:, :, -AVERAGED:].mean((0, 2))[:, None].to(table_HNK.dtype)
            added_H1K = part.relative_queries(c)
            q_H1K = q_H1K if added_H1K is None else q_H1K + added_H1K
            of_row_HN = (q_H1K @ table_HNK.transpose(-1, -2))[:, 0] * shape.d_head**-0.5
            row_N = torch.arange(k_BHSK.shape[2], device=q_BHQK.device)
            row_N = row_N.clamp(max=table_HNK.shape[1] - 1)
            by_kind["relative_keys", c.layer] = of_row_HN[:, row_N].cpu().double()
        return Rotated(q_BHQK, k_BHSK)

    def bias(c: AttentionContext) -> Tensor:
        if c.rows.stop == c.length:
            hooks = c.hooks._replace(bias=c.hooks.bias[:-1])  # without this one
            last = slice(c.length - 1, c.length)
            total = replace(c, q_pos=c.q_pos[..., -1:], rows=last, hooks=hooks).total_bias()
            if total is not None:
                of_each = total.expand(len(c.tokens_BT), shape.n_heads, 1, c.length)
                by_kind["bias", c.layer] = of_each.mean(0)[:, 0].flip(-1).cpu().double()
        return torch.zeros_like(c.distance())

    with attached(inputs.model, qk=qk, bias=bias):
        inputs.states(tokens_BT)
    return by_kind
