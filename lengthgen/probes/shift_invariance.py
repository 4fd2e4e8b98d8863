"""Shift invariance: what changes if all positions are k further on, and the tokens are the same.

As in "The Curious Case of Absolute Position Embeddings" (Sinha et al. 2022, arXiv 2210.12574).
Windows are of T/2 tokens, so that shifts up to T/2 stay within trained positions. A relative scheme
changes by rounding alone.

B windows, T tokens, D width, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lengthgen.model.transformer import Transformer
from lengthgen.probes import figures
from lengthgen.probes.attach import attach_module
from lengthgen.probes.base import Probe
from lengthgen.probes.inputs import ProbeInputs, Row
from lengthgen.schemes import AttentionContext, ModelDims, Part, Scheme

POSITIONS = 256  # whose logits are formed at a time


class Shift(Part):
    """Adds a constant to the positions that a scheme gives out."""

    def __init__(self, shape: ModelDims, scheme: Scheme) -> None:
        super().__init__(shape)
        self.scheme = scheme
        self.by = 0

    def positions(self, tokens_BT: Tensor, c: AttentionContext) -> Tensor:
        return self.scheme.positions(tokens_BT, c) + self.by


class ShiftInvariance(Probe):
    """How the output changes if all positions are shifted by k and the tokens stay the same."""

    order = 1
    figure = staticmethod(figures.shift_invariance)

    def settings(self, inputs: ProbeInputs) -> Row:
        T = inputs.train_length
        shifts = sorted({k for k in (1, 16, 64, 256) if k < T} | {T, 4 * T})
        return {"shifts": shifts, "length": max(1, T // 2)}

    @torch.no_grad()
    def rows(self, inputs: ProbeInputs) -> list[Row]:
        """Returns a row per shift k: means over targets of l_k - l_0 and KL(p_0 || p_k), in nats.

        max_dlogit is the largest change of any logit.
        """
        settings = self.settings(inputs)
        length, shifts = settings["length"], settings["shifts"]
        scheme = inputs.model.scheme
        reasons = {k: unsupported_reason(scheme, length, shift=k) for k in shifts}
        shift = Shift(inputs.model.shape, scheme)
        sums = {k: [0.0, 0.0, 0.0] for k in shifts if reasons[k] is None}
        with attach_module(inputs.model, shift):
            for text in inputs.windows(self.name, length):
                shift.by = 0
                before = inputs.states(text.inputs_BT)
                for k in sums:
                    shift.by = k
                    after = inputs.states(text.inputs_BT)
                    dnll, kl, largest = changes(inputs.model, before, after, text.targets_BT)
                    sums[k] = [sums[k][0] + dnll, sums[k][1] + kl, max(sums[k][2], largest)]
        n = len(inputs.endpoints) * length
        return [
            {"k": k, "skipped": reasons[k]}
            if k not in sums
            else {"k": k, "dnll": sums[k][0] / n, "kl": sums[k][1] / n, "max_dlogit": sums[k][2]}
            for k in shifts
        ]

    def summary(self, rows: Sequence[Row]) -> str:
        """Returns the changes at the largest shift that there is, and whether all are rounding."""
        last = rows[-1]
        rounded = all(abs(row[name]) < figures.ROUNDING for row in rows for name in ("dnll", "kl"))
        verdict = "invariant up to fp32 rounding" if rounded else "not invariant"
        return f"at k={last['k']:,}: loss {last['dnll']:+.2g}, KL {last['kl']:.2g} nats ({verdict})"


def unsupported_reason(scheme: Scheme, length: int, *, shift: int) -> str | None:
    """Returns which part has no value at the positions of a shifted call, and why, or None."""
    giving = [part for part in scheme.all if part.overrides("positions")]
    largest = max([part.largest_position(length) for part in giving], default=length - 1)
    reasons = (p.unsupported_reason(largest + shift + 1) for p in scheme.all if p not in giving)
    return next(filter(None, reasons), None)


def changes(
    model: Transformer, before_BTD: Tensor, after_BTD: Tensor, targets_BT: Tensor
) -> tuple[float, float, float]:
    """Returns sum of l_k - l_0, sum of KL(p_0 || p_k), and the largest |change of a logit|."""
    found = [0.0, 0.0, 0.0]
    for x_0, x_k, target in zip(
        before_BTD.flatten(0, 1).split(POSITIONS),
        after_BTD.flatten(0, 1).split(POSITIONS),
        targets_BT.flatten().split(POSITIONS),
        strict=True,
    ):
        s_0, s_k = model.logits(x_0), model.logits(x_k)
        # Equal logits must give 0, and small changes their digits: differences before sums.
        log_0, log_k = (s.double().cpu().log_softmax(-1) for s in (s_0, s_k))
        gained = log_0 - log_k
        found[0] += gained.gather(-1, target.cpu()[:, None]).sum().item()
        found[1] += (log_0.exp() * gained).sum().item()
        found[2] = max(found[2], (s_k - s_0).abs().max().item())
    return found[0], found[1], found[2]
