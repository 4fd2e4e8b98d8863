"""Shift invariance: what changes if all positions are k further on, and the tokens are the same.

As in "The Curious Case of Absolute Position Embeddings" (Sinha et al. 2022, arXiv 2210.12574).
Windows are of T/2 tokens, less where endpoints are not so deep, so that shifts up to T/2 stay
within trained positions. A relative scheme changes by rounding alone.

B windows, T tokens, D width.
"""

import torch
from torch import Tensor

from lengthgen.model.transformer import Transformer
from lengthgen.probes.base import Probe, ProbeInputs, ProbeRow, ProbeText, attached
from lengthgen.schemes import AttentionContext, Scheme

POSITIONS = 256  # whose logits are formed at a time


class ShiftInvariance(Probe):
    """How the output changes if all positions are shifted by k and the tokens stay the same."""

    key, shown = "k", ("dnll", "kl", "max_dlogit")

    @torch.no_grad()
    def rows(self, inputs: ProbeInputs) -> list[ProbeRow]:
        """Returns a row per shift k: means over targets of l_k - l_0 and KL(p_0 || p_k), in nats.

        max_dlogit is the largest change of any logit.
        """
        model, T = inputs.model, inputs.train_length
        length = max(1, min(T // 2, inputs.max_context))
        shifts = sorted({k for k in (1, 16, 64, 256) if k < T} | {T, 4 * T})
        reasons = {k: unsupported_reason(model.scheme, length, shift=k) for k in shifts}
        totals = {k: torch.zeros(3, dtype=torch.float64) for k, why in reasons.items() if not why}
        for text in inputs.windows(self.name, length):
            before_BTD = shifted(inputs, text, 0)
            for k, total in totals.items():
                added = changes(model, before_BTD, shifted(inputs, text, k), text.targets_BT)
                total += added * torch.tensor([1, 1, 0])
                total[2] = max(total[2], added[2])
        n = torch.tensor([len(inputs.endpoints) * length] * 2 + [1])
        values = {
            k: dict(zip(self.shown, (x / n).tolist(), strict=True)) for k, x in totals.items()
        }
        return [{"k": k, **(values.get(k) or {"skipped": why})} for k, why in reasons.items()]


def unsupported_reason(scheme: Scheme, length: int, *, shift: int) -> str | None:
    """Returns which part has no value at the positions of a shifted call, and why, or None."""
    giving = [part for part in scheme.all if part.overrides("positions")]
    largest = max([part.largest_position(length) for part in giving], default=length - 1)
    reasons = (p.unsupported_reason(largest + shift + 1) for p in scheme.all if p not in giving)
    return next(filter(None, reasons), None)


def shifted(inputs: ProbeInputs, text: ProbeText, k: int) -> Tensor:
    """Returns the final hidden states if the scheme's positions are all k further on."""
    scheme = inputs.model.scheme

    def positions(tokens_BT: Tensor, c: AttentionContext) -> Tensor:
        return scheme.positions(tokens_BT, c) + k

    with attached(inputs.model, positions=positions):
        return inputs.states(text.inputs_BT)


def changes(
    model: Transformer, before_BTD: Tensor, after_BTD: Tensor, targets_BT: Tensor
) -> Tensor:
    """Returns sum of l_k - l_0, sum of KL(p_0 || p_k), and the largest |change of a logit|, [3]."""
    sums, largest = torch.zeros(2, dtype=torch.float64), 0.0
    by_token = (before_BTD.flatten(0, 1), after_BTD.flatten(0, 1), targets_BT.flatten())
    for x_0, x_k, target in zip(*(x.split(POSITIONS) for x in by_token), strict=True):
        s_0, s_k = model.logits(x_0), model.logits(x_k)
        # Equal logits must give 0, and small changes their digits: differences before sums.
        log_0, log_k = (s.cpu().double().log_softmax(-1) for s in (s_0, s_k))
        gained = log_0 - log_k
        sums[0] += gained.gather(-1, target.cpu()[:, None]).sum()
        sums[1] += (log_0.exp() * gained).sum()
        largest = max(largest, float((s_k - s_0).abs().max()))
    return torch.tensor([*sums, largest], dtype=torch.float64)
