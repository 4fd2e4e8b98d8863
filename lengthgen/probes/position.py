"""Position probe: can a token's position be read off its hidden state, layer by layer?

As Haviv et al. 2022 (arXiv 2203.16634): a network with one hidden layer of ReLU per layer of the
model, trained on hidden states at positions up to T; here it predicts the position over T as a
number and is also tested at positions from T to 4T. Layer 0 is the embedding; the states are
normalised, as the layers see them.

N layers, S samples, D width, T tokens.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from lengthgen.probes.attach import attached
from lengthgen.probes.base import Probe, ProbeInputs, Row, numbers
from lengthgen.probes.figures import Panel
from lengthgen.schemes import AttentionContext, Rotated

SAMPLES = 256  # positions of each window that are learned from
UNITS = 128
STEPS = 800
BATCH = 512
RATE = 3e-3
HELD_OUT = 4  # every fourth document
STRETCHES = 16  # of T tokens, in which predictions are averaged
EXTRA_WINDOWS = 3  # further windows of T tokens before every endpoint's


class Position(Probe):
    """Whether the position of a token can be predicted from its hidden state, by layer."""

    shown, columns = ("error", "error_beyond"), 2

    @torch.no_grad()
    def rows(self, inputs: ProbeInputs) -> list[Row]:
        """Returns one row: mean absolute errors [N], and mean predictions [N] by position, over T.

        error: at positions up to T; error_beyond: from T to the longest length there is, None if
        that is T. Positions are the middles of stretches of T/16 tokens.
        """
        T = inputs.train_length
        documents = list(dict.fromkeys(e.document for e in inputs.endpoints))
        held_out = set(documents[HELD_OUT - 1 :: HELD_OUT] or documents[1:][-1:])
        reason = inputs.unsupported_reason(T)
        if not held_out:
            reason = "all endpoints lie in one document; another is needed to test on"
        if reason:
            return [{"skipped": reason}]
        x_NSD, y_S, tested = samples(inputs, held_out)
        predict = fitted(x_NSD, y_S, inputs)
        longest = max(n for n in inputs.lengths if inputs.unsupported_reason(n) is None)
        y_T = torch.arange(1, longest + 1) / T
        within_NWT = torch.stack([predict(x_NTD) for x_NTD in tested], dim=1)
        predicted_NT, stretch = within_NWT.mean(1), max(1, T // STRETCHES)
        row: Row = {"length": longest, "error_beyond": None}
        row["error"] = numbers((within_NWT - y_T[:T]).abs().mean((1, 2)))
        if longest > T:
            after = [
                predict(hidden_states(inputs, text.inputs_BT))[:, T:]
                for text in inputs.windows(self.name, longest)
                if text.document in held_out
            ]
            beyond_NWT = torch.stack(after, dim=1)
            row["error_beyond"] = numbers((beyond_NWT - y_T[T:]).abs().mean((1, 2)))
            predicted_NT = torch.cat([predicted_NT, beyond_NWT.mean(1)], dim=1)
        row["positions"] = numbers(_means(y_T, stretch))
        row["predicted"] = numbers(_means(predicted_NT, stretch))
        return [row]

    def panels(self, rows: Sequence[Row]) -> Mapping[str, Panel]:
        [row] = rows
        by_layer = {str(n): (row["positions"], y) for n, y in enumerate(row["predicted"])}
        errors = {name: row[name] for name in self.shown if row[name] is not None}
        return {"mean error / T by layers below": errors, "position / T as predicted": by_layer}


def samples(inputs: ProbeInputs, held_out: set[int]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Returns states and positions to learn from, and all states of each window to be tested on.

    Windows have T tokens; documents that are held out are for testing.
    """
    T, draws = inputs.train_length, inputs.draws("position probe")
    xs, ys, tested = list[Tensor](), list[Tensor](), list[Tensor]()
    of_each = min(1 + EXTRA_WINDOWS, inputs.max_context // T)
    for text in inputs.windows("position", T, of_each=of_each):
        x_NTD = hidden_states(inputs, text.inputs_BT)
        if text.document in held_out:
            tested.append(x_NTD)
        else:
            at = torch.randperm(T, generator=draws)[:SAMPLES]
            xs.append(x_NTD[:, at])
            ys.append((at + 1) / T)
    return torch.cat(xs, dim=1), torch.cat(ys), tested


def hidden_states(inputs: ProbeInputs, tokens_BT: Tensor) -> Tensor:
    """Returns the states of a window before the first layer and after each: [N, T, D] fp32."""
    by_layer: dict[int, list[Tensor]] = defaultdict(list)

    def qk(q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        by_layer[c.layer].append(c.x_BTD[:, c.rows])  # the rows of a segment, not its memory
        return Rotated(q_BHQK, k_BHSK)

    with attached(inputs.model, qk=qk):
        final_BTD = inputs.states(tokens_BT)
    states = [torch.cat(by_layer[i], dim=1) for i in sorted(by_layer)]
    return torch.cat([*states, final_BTD]).float().cpu()


def fitted(x_NSD: Tensor, y_S: Tensor, inputs: ProbeInputs) -> Callable[[Tensor], Tensor]:
    """Returns networks [N, S, D] -> [N, S] that predict y, trained on the mean absolute error."""
    draws = inputs.draws("position network")
    N, S, D = x_NSD.shape
    mean_N1D, std_N1D = x_NSD.mean(1, keepdim=True), x_NSD.std(1, keepdim=True).clamp(min=1e-6)
    w_in = torch.randn(N, D, UNITS, generator=draws) * D**-0.5
    b_in = torch.zeros(N, 1, UNITS)
    w_out = torch.randn(N, UNITS, 1, generator=draws) * UNITS**-0.5
    b_out = torch.full((N, 1, 1), 0.5)
    weights = [w.requires_grad_() for w in (w_in, b_in, w_out, b_out)]

    def predict(x_NSD: Tensor) -> Tensor:
        hidden = torch.baddbmm(b_in, (x_NSD - mean_N1D) / std_N1D, w_in).relu()
        return torch.baddbmm(b_out, hidden, w_out)[..., 0]

    optimizer = torch.optim.Adam(weights, lr=RATE)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    inputs.show.start("position, learning", STEPS, "steps")
    with torch.enable_grad():
        for _ in range(STEPS):
            drawn = torch.randint(S, (BATCH,), generator=draws)
            loss = (predict(x_NSD[:, drawn]) - y_S[drawn]).abs().mean(1).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            decay.step()
            inputs.show.advance(1)
    inputs.show.finish()
    return predict


def _means(x: Tensor, n: int) -> Tensor:
    """Returns the means of every n entries, the last of them perhaps of fewer."""
    return torch.stack([piece.mean(-1) for piece in x.split(n, dim=-1)], dim=-1)
