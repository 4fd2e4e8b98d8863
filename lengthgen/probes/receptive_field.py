"""Empirical receptive field: how far back the loss of the last prediction reaches, by gradients.

Cumulative normalised gradients as in Sandwich (Chi et al. 2023, arXiv 2212.10356):
s_m = ||g_m|| / sum_j ||g_j||, g_m the gradient of the last prediction's loss with respect to the
input embedding e_m, absolute positions included; c_n the mean over windows of what the nearest n
tokens have of it; ERF_q = min{n : c_n >= q}.

B windows, T tokens, D width, N numbers of tokens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lengthgen.model.recurrent import RecurrentTransformer
from lengthgen.probes import figures
from lengthgen.probes.attach import attach_module
from lengthgen.probes.base import LengthProbe
from lengthgen.probes.inputs import ProbeInputs, Row, Text, numbers, spaced
from lengthgen.schemes import AttentionContext, Part


class EmbeddingRecorder(Part):
    """Keeps the input embeddings, after all parts have changed them, to be differentiated by."""

    def embed(self, x_BTD: Tensor, c: AttentionContext) -> Tensor:
        self.kept_BTD = x_BTD.detach().requires_grad_()
        return self.kept_BTD


class ReceptiveField(LengthProbe):
    """How many of the nearest tokens carry 90 and 99 % of the gradient of the loss, by length."""

    order = 2
    figure = staticmethod(figures.receptive_field)

    def unsupported_reason(self, inputs: ProbeInputs, length: int) -> str | None:
        model = inputs.model
        recurs = isinstance(model, RecurrentTransformer) and model.n_remembered > 0
        if recurs and length > inputs.train_length:
            return "text is read in segments of T tokens, and gradients do not pass between them"
        return super().unsupported_reason(inputs, length)

    def measure(self, inputs: ProbeInputs, length: int) -> Row:
        """Returns ERF_0.9, ERF_0.99, and c_n at some n."""
        recorder = EmbeddingRecorder(inputs.model.shape)
        total_N = torch.zeros(length, dtype=torch.float64)
        with attach_module(inputs.model, recorder):
            for text in inputs.windows(self.name, length):
                total_N += cumulative(gradients(inputs, recorder, text))
        c_N = total_N / len(inputs.endpoints)
        n = spaced(length)
        return {
            "erf_90": reached(c_N, 0.9),
            "erf_99": reached(c_N, 0.99),
            "n": n,
            "c": numbers(c_N[torch.tensor(n) - 1]),
        }

    def summary(self, rows: Sequence[Row]) -> str:
        """Returns how many tokens have 99 % of the gradient, by length."""
        each = [f"{row['erf_99']:,} of {row['length']:,}" for row in rows]
        return f"99 % of the gradient in {', '.join(each)}"


def gradients(inputs: ProbeInputs, recorder: EmbeddingRecorder, text: Text) -> Tensor:
    """Returns ||g_m|| of every token of a window, [T] float64."""
    with torch.enable_grad():
        x_BTD = inputs.states(text.inputs_BT, n_last=1)
        loss = inputs.model.token_nll(x_BTD, text.targets_BT[:, -1:]).sum()
        (g_BTD,) = torch.autograd.grad(loss, recorder.kept_BTD)
    return g_BTD[0].cpu().double().norm(dim=-1)


def cumulative(norm_T: Tensor) -> Tensor:
    """Returns the share of the sum that the last n = 1 ... T tokens have, [N]."""
    return norm_T.flip(0).cumsum(0) / norm_T.sum()


def reached(c_N: Tensor, share: float) -> int:
    """Returns the least n with c_n >= share; rounding of sums aside."""
    return int((c_N < share - 1e-9).sum()) + 1
