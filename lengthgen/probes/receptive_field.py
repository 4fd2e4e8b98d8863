"""Empirical receptive field: how far back the loss of the last prediction reaches, by gradients.

Cumulative normalised gradients as in Sandwich (Chi et al. 2023, arXiv 2212.10356):
s_m = ||g_m|| / sum_j ||g_j||, g_m the gradient of the last prediction's loss with respect to the
input embedding e_m, absolute positions included; c_n the mean over windows of what the nearest n
tokens have of it; ERF_q = min{n : c_n >= q}.

B windows, T tokens, D width, N numbers of tokens.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lengthgen.probes.base import (
    Panel,
    Probe,
    ProbeInputs,
    ProbeRow,
    ProbeText,
    attached,
    numbers,
    spaced,
)
from lengthgen.schemes import AttentionContext


class ReceptiveField(Probe):
    """How many of the nearest tokens carry 90 and 99 % of the gradient of the loss, by length."""

    shown = ("erf_90", "erf_99")

    def measure(self, inputs: ProbeInputs, length: int) -> ProbeRow:
        """Returns ERF_0.9, ERF_0.99, and c_n at some n."""
        if inputs.model.continues_rows and length > inputs.train_length:
            reason = "text is read in segments of T tokens, and gradients do not pass between them"
            return {"skipped": reason}
        c_N = inputs.mean(self.name, length, lambda text: shares(inputs, text))
        n = spaced(length)
        fields = {f"erf_{q}": int((c_N < q / 100 - 1e-9).sum()) + 1 for q in (90, 99)}
        return {**fields, "n": n, "c": numbers(c_N[torch.tensor(n) - 1])}

    def panels(self, rows: Sequence[ProbeRow]) -> Mapping[str, Panel]:
        lines = {f"of {row['length']:,} tokens": (row["n"], row["c"]) for row in rows}
        return {"share of the gradient over nearest tokens": lines}


def shares(inputs: ProbeInputs, text: ProbeText) -> Tensor:
    """Returns the share of sum_m ||g_m|| that the last n = 1 ... T tokens have, [N] float64."""
    embedded: list[Tensor] = []  # after all parts have changed it

    def embed(x_BTD: Tensor, c: AttentionContext) -> Tensor:
        embedded.append(x_BTD.detach().requires_grad_())
        return embedded[0]

    with torch.enable_grad(), attached(inputs.model, embed=embed):
        x_BTD = inputs.states(text.inputs_BT, n_last=1)
        loss = inputs.model.token_nll(x_BTD, text.targets_BT[:, -1:]).sum()
        (g_BTD,) = torch.autograd.grad(loss, embedded)
    norm_T = g_BTD[0].cpu().double().norm(dim=-1)
    return norm_T.flip(0).cumsum(0) / norm_T.sum()
