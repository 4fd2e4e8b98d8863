"""Position probe: can a token's position be read off its hidden state, layer by layer?

As Haviv et al. 2022 (arXiv 2203.16634): a network with one hidden layer of ReLU per layer of the
model, trained on hidden states at positions up to T; here it predicts the position over T as a
number and is also tested at positions from T to 4T. Layer 0 is the embedding; the states are
normalised, as the layers see them.

N layers, S samples, W windows, D width, T tokens.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from lengthgen.model.build import generator_of
from lengthgen.probes.base import Panel, Probe, ProbeInputs, ProbeRow, ProbeText, attached, numbers
from lengthgen.schemes import AttentionContext, Rotated

SAMPLES = 256  # positions of each window that are learned from
UNITS = 128
STEPS = 800
SAMPLED = 512
RATE = 3e-3
HELD_OUT = 4  # every fourth document
STRETCHES = 16  # of T tokens, in which predictions are averaged
EXTRA_WINDOWS = 3  # further windows of T tokens before every endpoint's


class Position(Probe):
    """Whether the position of a token can be predicted from its hidden state, by layer."""

    shown = ("error", "error_beyond")

    @torch.no_grad()
    def rows(self, inputs: ProbeInputs) -> list[ProbeRow]:
        """Returns one row: mean absolute errors [N], and mean predictions [N] by position, over T.

        error: at positions up to T; error_beyond: from T to the longest length there is, None if
        that is T. Positions are the middles of stretches of T/16 tokens.
        """
        T, reasons = inputs.train_length, inputs.reasons
        documents = list(dict.fromkeys(e.document for e in inputs.endpoints))
        held_out = set(documents[HELD_OUT - 1 :: HELD_OUT] or documents[1:][-1:])
        if not held_out:
            return [{"skipped": "all endpoints lie in one document; another is needed to test on"}]
        if reasons[T]:
            return [{"skipped": reasons[T]}]
        predict = fitted(*samples(inputs, held_out), inputs)
        longest = max(n for n, why in reasons.items() if why is None)
        y_T = torch.arange(1, longest + 1) / T

        def predicted_at(texts: Iterator[ProbeText]) -> Tensor:  # a window's states at a time
            states = (hidden_states(inputs, x.inputs_BT) for x in texts if x.document in held_out)
            return torch.stack([predict(x_NTD) for x_NTD in states], dim=1)

        pieces_NWT = [predicted_at(near_windows(inputs))]
        if longest > T:
            pieces_NWT.append(predicted_at(inputs.windows(self.name, longest))[:, :, T:])
        pairs = zip(pieces_NWT, (y_T[:T], y_T[T:]), strict=False)
        errors = [numbers((x_NWT - y).abs().mean((1, 2))) for x_NWT, y in pairs]
        curves_T = [y_T[None], torch.cat([x_NWT.mean(1) for x_NWT in pieces_NWT], dim=1)]
        stretches = torch.cat(curves_T).split(max(1, T // STRETCHES), dim=-1)
        positions, *predicted = numbers(torch.stack([x.mean(-1) for x in stretches], dim=-1))
        row = {"length": longest, **dict(zip(self.shown, [*errors, None], strict=False))}
        return [{**row, "positions": positions, "predicted": predicted}]

    def panels(self, rows: Sequence[ProbeRow]) -> Mapping[str, Panel]:
        [row] = rows
        by_layer = {
            f"after layer {n}" if n else "embedding": (row["positions"], y)
            for n, y in enumerate(row["predicted"])
        }
        errors = {name: row[name] for name in self.shown if row[name] is not None}
        return {
            "mean error / T over layers below": errors,
            "predicted position / T over position / T": by_layer,
        }


def near_windows(inputs: ProbeInputs) -> Iterator[ProbeText]:
    """Yields the windows of T tokens before every endpoint, as many as there are of 1 + EXTRA."""
    T = inputs.train_length
    return inputs.windows("position", T, of_each=min(1 + EXTRA_WINDOWS, inputs.max_context // T))


def samples(inputs: ProbeInputs, held_out: set[int]) -> tuple[Tensor, Tensor]:
    """Returns states and positions to learn from, of documents that are not held out."""
    T, draws = inputs.train_length, generator_of("position probe", inputs.seed)
    xs, ys = list[Tensor](), list[Tensor]()
    for text in near_windows(inputs):
        if text.document not in held_out:
            at = torch.randperm(T, generator=draws)[:SAMPLES]
            xs.append(hidden_states(inputs, text.inputs_BT)[:, at])
            ys.append((at + 1) / T)
    return torch.cat(xs, dim=1), torch.cat(ys)


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
    draws = generator_of("position network", inputs.seed)
    N, S, D = x_NSD.shape
    mean_N1D, std_N1D = x_NSD.mean(1, keepdim=True), x_NSD.std(1, keepdim=True).clamp(min=1e-6)
    w_in = torch.randn(N, D, UNITS, generator=draws) * D**-0.5
    w_out = torch.randn(N, UNITS, 1, generator=draws) * UNITS**-0.5
    b_in, b_out = torch.zeros(N, 1, UNITS), torch.full((N, 1, 1), 0.5)
    weights = [w.requires_grad_() for w in (w_in, b_in, w_out, b_out)]

    def predict(x_NSD: Tensor) -> Tensor:
        hidden = torch.baddbmm(b_in, (x_NSD - mean_N1D) / std_N1D, w_in).relu()
        return torch.baddbmm(b_out, hidden, w_out)[..., 0]

    optimizer = torch.optim.Adam(weights, lr=RATE)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    with torch.enable_grad():
        for _ in range(STEPS):
            drawn = torch.randint(S, (SAMPLED,), generator=draws)
            optimizer.zero_grad()
            (predict(x_NSD[:, drawn]) - y_S[drawn]).abs().mean(1).sum().backward()
            optimizer.step()
            decay.step()
    return predict
