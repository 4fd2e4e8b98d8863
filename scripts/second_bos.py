"""Probes for lengthgen probe --plugin: does NoPE need its first tokens, or a BOS in sight?

B windows, T tokens, K targets, N layers, V tokens of the vocabulary.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from lengthgen.probes.base import Panel, Probe, ProbeInputs, Row, numbers
from lengthgen.probes.position import HELD_OUT, STRETCHES, fitted, hidden_states, samples

TARGETS = 64  # K, the last predictions of a window
TEXTS = ("unchanged", "second_bos", "other_token")


def changed(tokens_BT: Tensor, inputs: ProbeInputs) -> Tensor:
    """Returns a window as it is, with a BOS in place of every T/2-th token, with another there."""
    places = slice(inputs.train_length // 2, None, inputs.train_length // 2)
    tokens_BT = tokens_BT.repeat(len(TEXTS), 1)
    [tokens_BT[1, places]] = inputs.corpus.beginning
    tokens_BT[2, places] = tokens_BT[0].flip(0)[places]
    return tokens_BT


class SecondBos(Probe):
    """The loss of the last predictions where a BOS takes the place of every T/2-th token.

    Each position then has one among the T/2 tokens before it. As a control another token of the
    window, the one as far from its end, takes the same places. Losses are in nats, by window.
    """

    shown = TEXTS

    def measure(self, inputs: ProbeInputs, length: int) -> Row:
        by_window = list[Tensor]()
        for text in inputs.windows(self.name, length):
            tokens_BT = changed(text.inputs_BT, inputs)
            logits_BKV = inputs.model.logits(inputs.states(tokens_BT, n_last=TARGETS))
            targets_BK = text.targets_BT[:, -TARGETS:].expand(len(TEXTS), -1)
            nats_BK = cross_entropy(logits_BKV.float().mT, targets_BK, reduction="none")
            by_window.append(nats_BK.mean(1))
        return dict(zip(self.shown, numbers(torch.stack(by_window, dim=1)), strict=True))

    def panels(self, rows: Sequence[Row]) -> Mapping[str, Panel]:
        x = [row["length"] for row in rows]
        return {"nats over length": {n: (x, [fmean(row[n]) for row in rows]) for n in self.shown}}


class PositionAfterBos(Probe):
    """The position over T that is read off the states of windows of T tokens, by layer and text.

    Means over stretches of T/16 tokens; networks are fitted as those of the probe `position`.
    """

    def rows(self, inputs: ProbeInputs) -> list[Row]:
        T = inputs.train_length
        held_out = {e.document for e in inputs.endpoints[HELD_OUT - 1 :: HELD_OUT]}
        x_NSD, y_S = samples(inputs, held_out)
        predict = fitted(x_NSD, y_S, inputs)
        read_NBT = list[Tensor]()
        for text in inputs.windows(self.name, T):
            if text.document in held_out:
                of_texts = changed(text.inputs_BT, inputs).split(1)
                states = [hidden_states(inputs, tokens_BT) for tokens_BT in of_texts]
                read_NBT.append(torch.stack([predict(x_NTD) for x_NTD in states], dim=1).detach())
        means_NBT = torch.stack(read_NBT).mean(0).unflatten(2, (STRETCHES, -1)).mean(3)
        by_text = dict(zip(TEXTS, map(numbers, means_NBT.unbind(1)), strict=True))
        return [{"length": T, **by_text}]

    def panels(self, rows: Sequence[Row]) -> Mapping[str, Panel]:
        x = [(n + 0.5) / STRETCHES for n in range(STRETCHES)]
        last = {name: (x, rows[0][name][-2]) for name in TEXTS}
        return {"predicted position / T over position / T": last}
