"""Empirical receptive field: how far back the loss of the last prediction reaches, by gradients.

Cumulative normalised gradients as in Sandwich (Chi et al. 2023, arXiv 2212.10356):
s_m = ||g_m|| / sum_j ||g_j||, g_m the gradient of the last prediction's loss with respect to the
input embedding e_m, absolute positions included; c_n the mean over windows of what the nearest n
tokens have of it; ERF_q = min{n : c_n >= q}.

B windows, T tokens, D width, N numbers of tokens.
"""

import torch
from torch import Tensor

from lengthgen.probes.beside import beside
from lengthgen.probes.subject import Row, Subject, Text, numbers, spaced
from lengthgen.schemes import Ctx, Part

NAME = "receptive_field"


class Inputs(Part):
    """Keeps the input embeddings, after all parts have changed them, to be differentiated by."""

    def embed(self, x_BTD: Tensor, c: Ctx) -> Tensor:
        self.kept_BTD = x_BTD.detach().requires_grad_()
        return self.kept_BTD


def settings(subject: Subject) -> Row:
    return {"lengths": subject.lengths}


def rows(subject: Subject) -> list[Row]:
    """Returns a row per length: ERF_0.9, ERF_0.99, and c_n at some n."""
    return [_row(subject, length) for length in subject.lengths]


def _row(subject: Subject, length: int) -> Row:
    reason = subject.undefined_at(length)
    if subject.model.scheme.memory and length > subject.train_length:
        reason = "text is read in segments of T tokens, and gradients do not pass between them"
    if reason:
        return {"length": length, "skipped": reason}
    inputs = Inputs(subject.model.shape)
    total_N = torch.zeros(length, dtype=torch.float64)
    with beside(subject.model, inputs):
        for text in subject.windows(f"{NAME} {length:,}", length):
            total_N += cumulative(gradients(subject, inputs, text))
    c_N = total_N / len(subject.endpoints)
    n = spaced(length)
    return {
        "length": length,
        "erf_90": reached(c_N, 0.9),
        "erf_99": reached(c_N, 0.99),
        "n": n,
        "c": numbers(c_N[torch.tensor(n) - 1]),
    }


def gradients(subject: Subject, inputs: Inputs, text: Text) -> Tensor:
    """Returns ||g_m|| of every token of a window, [T] float64."""
    with torch.enable_grad():
        x_BTD = subject.states(text.inputs_BT, n_last=1)
        loss = subject.model.nats(x_BTD, text.targets_BT[:, -1:]).sum()
        (g_BTD,) = torch.autograd.grad(loss, inputs.kept_BTD)
    return g_BTD[0].cpu().double().norm(dim=-1)


def cumulative(norm_T: Tensor) -> Tensor:
    """Returns the share of the sum that the last n = 1 ... T tokens have, [N]."""
    return norm_T.flip(0).cumsum(0) / norm_T.sum()


def reached(c_N: Tensor, share: float) -> int:
    """Returns the least n with c_n >= share; rounding of sums aside."""
    return int((c_N < share - 1e-9).sum()) + 1


def said(found: list[Row]) -> str:
    """Says how many tokens have 99 % of the gradient, by length."""
    each = [f"{row['erf_99']:,} of {row['length']:,}" for row in found if "erf_99" in row]
    return f"99 % of the gradient in {', '.join(each)}" if each else f"n/a: {found[0]['skipped']}"
