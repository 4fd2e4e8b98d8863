"""A probe for lengthgen probe --plugin: does NoPE need its first tokens, or a BOS in sight?

B windows, T tokens, K targets, V tokens of the vocabulary.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

import torch
from torch.nn.functional import cross_entropy

from lengthgen.probes.base import Panel, Probe, ProbeInputs, Row, numbers

TARGETS = 64  # K, the last predictions of a window


class SecondBos(Probe):
    """The loss of the last predictions where a BOS takes the place of every T/2-th token.

    Each position then has one among the T/2 tokens before it. As a control another token of the
    window, the one as far from its end, takes the same places. Losses are in nats, by window.
    """

    shown = ("unchanged", "second_bos", "other_token")

    def measure(self, inputs: ProbeInputs, length: int) -> Row:
        places = slice(inputs.train_length // 2, None, inputs.train_length // 2)
        [bos] = inputs.corpus.beginning
        by_window = list[torch.Tensor]()
        for text in inputs.windows(self.name, length):
            tokens_BT = text.inputs_BT.repeat(len(self.shown), 1)
            tokens_BT[1, places] = bos
            tokens_BT[2, places] = tokens_BT[0].flip(0)[places]
            logits_BKV = inputs.model.logits(inputs.states(tokens_BT, n_last=TARGETS))
            targets_BK = text.targets_BT[:, -TARGETS:].expand(len(self.shown), -1)
            nats_BK = cross_entropy(logits_BKV.float().mT, targets_BK, reduction="none")
            by_window.append(nats_BK.mean(1))
        return dict(zip(self.shown, numbers(torch.stack(by_window, dim=1)), strict=True))

    def panels(self, rows: Sequence[Row]) -> Mapping[str, Panel]:
        x = [row["length"] for row in rows]
        return {"nats over length": {n: (x, [fmean(row[n]) for row in rows]) for n in self.shown}}
