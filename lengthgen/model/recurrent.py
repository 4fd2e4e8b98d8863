"""The Transformer that reads a text in segments, and remembers those before: Transformer-XL.

The part `recurrence` asks for it. B batch, T tokens of a segment, M remembered tokens, S = M + T
keys, N layers, D width.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from lengthgen.model.transformer import Transformer
from lengthgen.schemes.relative.recurrence import Recurrence


class Memory(NamedTuple):
    """The inputs of every layer for the M tokens before a segment.

    The first left_padding_B[b] tokens of sequence b hold nothing: its text began later.
    """

    x_NBMD: Tensor
    left_padding_B: Tensor


class RecurrentTransformer(Transformer):
    """A Transformer whose keys are also the layers' inputs in earlier segments, kept as they were.

    A segment has as many tokens as a training window.
    """

    @property
    def n_remembered(self) -> int:
        """M at most; 0: a text is one segment."""
        return max(part.n_remembered for part in self.scheme.all if isinstance(part, Recurrence))

    def forward(
        self,
        tokens_BT: Tensor,
        *,
        n_last: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        if not self.n_remembered:
            return super().forward(tokens_BT, n_last=n_last, generator=generator)
        length = tokens_BT.shape[1]
        n_last = length if n_last is None else n_last
        memory = self.empty_memory(len(tokens_BT), size=0)
        out: list[Tensor] = []
        for piece_BT in tokens_BT.split(self.shape.train_length, dim=1):
            length -= piece_BT.shape[1]  # tokens behind the segment
            n = min(piece_BT.shape[1], max(0, n_last - length))
            x_BTD, memory = self.segment(piece_BT, memory, n_last=n, generator=generator)
            out.append(x_BTD)
        return torch.cat(out, dim=1)

    def segment(
        self,
        tokens_BT: Tensor,
        memory: Memory,
        *,
        n_last: int,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Memory]:
        """Returns the final hidden states of the last n_last tokens, and the memory behind them."""
        T, S = tokens_BT.shape[1], memory.x_NBMD.shape[2] + tokens_BT.shape[1]
        x_BTD, c = self.embedded(tokens_BT, generator=generator)
        pos = torch.arange(S, device=tokens_BT.device)
        c = replace(c, length=S, pos=pos, q_pos=pos, k_pos=pos, cols=slice(0, S))
        if memory.left_padding_B.any():
            c = replace(c, key_padding_BS=pos < memory.left_padding_B[:, None])
        inputs: list[Tensor] = []
        for i, remembered_BMD in enumerate(memory.x_NBMD):
            inputs.append(x_BTD)
            n = n_last if i == len(self.blocks) - 1 else T
            if n:
                x_BSD = torch.cat([remembered_BMD, x_BTD], dim=1)
                x_BTD = self.through_block(i, x_BSD, c, n_last=n)
        x_NBSD = torch.cat([memory.x_NBMD, torch.stack(inputs).detach()], dim=2)
        n = max(0, S - self.n_remembered)  # forgotten
        memory = Memory(x_NBSD[:, :, n:], (memory.left_padding_B - n).clamp(min=0))
        return self.norm(x_BTD if n_last else x_BTD[:, :0]), memory

    def empty_memory(self, batch: int, *, size: int) -> Memory:
        """Returns a memory of `size` tokens that hold nothing."""
        weight = self.embedding.weight
        return Memory(
            weight.new_zeros(len(self.blocks), batch, size, weight.shape[1]),
            torch.full((batch,), size, device=weight.device),
        )
