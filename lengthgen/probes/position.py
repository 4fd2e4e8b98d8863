"""Position probe: can a token's position be read off its hidden state, layer by layer?

As Haviv et al. 2022 (arXiv 2203.16634): a network with one hidden layer of ReLU per layer of the
model, trained on hidden states at positions up to T; here it predicts the position over T as a
number and is also tested at positions from T to 4T. Layer 0 is the embedding; the states are
normalised, as the layers see them.

N layers, S samples, D width, T tokens, U hidden units.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lengthgen.probes import figures
from lengthgen.probes.attach import attach_module
from lengthgen.probes.base import Probe
from lengthgen.probes.inputs import ProbeInputs, Row, numbers
from lengthgen.schemes import AttentionContext, ModelDims, Part, Rotated

NAME = "position"
SAMPLES = 256  # positions of each window that are learned from
UNITS = 128
STEPS = 800
BATCH = 512
RATE = 3e-3
HELD_OUT = 4  # every fourth document
STRETCHES = 16  # of T tokens, in which predictions are averaged
EXTRA_WINDOWS = 3  # further windows of T tokens before every endpoint's


class Network(NamedTuple):
    """A network for every layer, of its own; inputs are standardised first."""

    mean_N1D: Tensor
    std_N1D: Tensor
    w_in_NDU: Tensor
    b_in_N1U: Tensor
    w_out_NU1: Tensor
    b_out_N11: Tensor

    def __call__(self, x_NSD: Tensor) -> Tensor:
        """Returns the predicted position over T, [N, S]."""
        x = (x_NSD - self.mean_N1D) / self.std_N1D
        hidden = torch.baddbmm(self.b_in_N1U, x, self.w_in_NDU).relu()
        return torch.baddbmm(self.b_out_N11, hidden, self.w_out_NU1)[..., 0]


class StateRecorder(Part):
    """Keeps the normalised inputs of every layer."""

    def __init__(self, shape: ModelDims) -> None:
        super().__init__(shape)
        self.kept: dict[int, list[Tensor]] = defaultdict(list)

    def qk(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Rotated:
        self.kept[c.layer].append(c.x_BTD[:, c.rows])  # the rows of a segment, not its memory
        return Rotated(q_BHQK, k_BHSK)


class Position(Probe):
    """Whether the position of a token can be predicted from its hidden state, by layer."""

    order = 6
    figure = staticmethod(figures.position)

    def settings(self, inputs: ProbeInputs) -> Row:
        text = {"lengths": inputs.lengths, "held_out": HELD_OUT, "beside": EXTRA_WINDOWS}
        learning = {"units": UNITS, "steps": STEPS, "batch": BATCH, "rate": RATE}
        return {**text, "samples": SAMPLES, **learning, "stretches": STRETCHES}

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
        texts = samples(inputs, held_out)
        network = fitted(texts.x_NSD, texts.y_S, inputs)
        within = torch.stack([network(x_NTD) for x_NTD in texts.tested], dim=1)
        longest = max(n for n in inputs.lengths if inputs.unsupported_reason(n) is None)
        predicted, beyond = within.mean(1), None
        y_T = relative_position(torch.arange(longest), T)
        if longest > T:
            after = [
                network(hidden_states(inputs, text.inputs_BT))[:, T:]
                for text in inputs.windows(NAME, longest)
                if text.document in held_out
            ]
            beyond = torch.stack(after, dim=1)
            predicted = torch.cat([predicted, beyond.mean(1)], dim=1)
        stretch = max(1, T // STRETCHES)
        return [
            {
                "length": longest,
                "error": _error(within, y_T[:T]),
                "error_beyond": None if beyond is None else _error(beyond, y_T[T:]),
                "positions": numbers(_means(y_T, stretch)),
                "predicted": numbers(_means(predicted, stretch)),
            }
        ]

    def summary(self, rows: Sequence[Row]) -> str:
        """Returns the errors of the best layer within T, and there beyond."""
        row = rows[0]
        best = min(range(len(row["error"])), key=row["error"].__getitem__)
        line = (
            f"mean absolute error {row['error'][best]:.3f} T up to T (about 0.25 T if always T/2), "
            f"least with {best} layer{'s' * (best != 1)} below"
        )
        if row["error_beyond"] is None:
            return line
        return f"{line}; {row['error_beyond'][best]:.3f} T from T to {row['length']:,}"


class Samples(NamedTuple):
    """States and positions to learn from, and all states of each window to be tested on."""

    x_NSD: Tensor
    y_S: Tensor
    tested: list[Tensor]  # [N, T, D] each


def samples(inputs: ProbeInputs, held_out: set[int]) -> Samples:
    """Returns states of windows of T tokens; documents that are held out are for testing."""
    T, draws = inputs.train_length, inputs.draws("position probe")
    learned: list[tuple[Tensor, Tensor]] = []
    tested: list[Tensor] = []
    of_each = min(1 + EXTRA_WINDOWS, inputs.reach // T)
    for text in inputs.windows(NAME, T, of_each=of_each):
        x_NTD = hidden_states(inputs, text.inputs_BT)
        if text.document in held_out:
            tested.append(x_NTD)
        else:
            at = torch.randperm(T, generator=draws)[:SAMPLES]
            learned.append((x_NTD[:, at], relative_position(at, T)))
    xs, ys = zip(*learned, strict=True)
    return Samples(torch.cat(xs, dim=1), torch.cat(ys), tested)


def _error(predicted_NWT: Tensor, y_T: Tensor) -> list[float]:
    """Returns the mean absolute error of each layer over windows W and positions, [N]."""
    return numbers((predicted_NWT - y_T).abs().mean((1, 2)))


def _means(x: Tensor, n: int) -> Tensor:
    """Returns the means of every n entries, the last of them perhaps of fewer."""
    return torch.stack([piece.mean(-1) for piece in x.split(n, dim=-1)], dim=-1)


def relative_position(index: Tensor, train_length: int) -> Tensor:
    """Returns the position over T of tokens counted from 0: 1/T for the first, 1 for the T-th."""
    return (index + 1) / train_length


def hidden_states(inputs: ProbeInputs, tokens_BT: Tensor) -> Tensor:
    """Returns the states of a window before the first layer and after each: [N, T, D] fp32."""
    kept = StateRecorder(inputs.model.shape)
    with attach_module(inputs.model, kept):
        final_BTD = inputs.states(tokens_BT)
    states = [torch.cat(kept.kept[i], dim=1) for i in range(len(kept.kept))]
    return torch.cat([*states, final_BTD]).float().cpu()


def fitted(x_NSD: Tensor, y_S: Tensor, inputs: ProbeInputs) -> Network:
    """Returns networks that predict y from x, trained by Adam on the mean absolute error."""
    draws = inputs.draws("position network")
    N, S, D = x_NSD.shape
    weights = [
        torch.randn(N, D, UNITS, generator=draws) * D**-0.5,
        torch.zeros(N, 1, UNITS),
        torch.randn(N, UNITS, 1, generator=draws) * UNITS**-0.5,
        torch.full((N, 1, 1), 0.5),
    ]
    std = x_NSD.std(1, keepdim=True).clamp(min=1e-6)
    network = Network(x_NSD.mean(1, keepdim=True), std, *weights)
    optimizer = torch.optim.Adam([w.requires_grad_() for w in weights], lr=RATE)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    inputs.show.start(f"{NAME}, learning", STEPS, "steps")
    with torch.enable_grad():
        for _ in range(STEPS):
            drawn = torch.randint(S, (BATCH,), generator=draws)
            loss = (network(x_NSD[:, drawn]) - y_S[drawn]).abs().mean(1).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            decay.step()
            inputs.show.advance(1)
    inputs.show.finish()
    return Network(*(x.detach() for x in network))
