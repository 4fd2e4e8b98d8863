"""The Transformer that reads a text in segments, and remembers those before: Transformer-XL.

The part `recurrence` asks for it. B batch, T tokens of a segment, M remembered tokens, S = M + T
keys, N layers, D width.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from lengthgen.config.schema import Draft
from lengthgen.model.transformer import Transformer
from lengthgen.schemes import Design
from lengthgen.schemes.relative.recurrence import Recurrence


class Memory(NamedTuple):
    """The inputs of every layer for the M tokens before a segment.

    The first left_padding_B[b] tokens of sequence b hold nothing: its text began later.
    """

    x_NBMD: Tensor
    left_padding_B: Tensor


class RecurrentTransformer(Transformer):
    """A Transformer whose keys are also the layers' inputs in earlier segments, kept as they were.

    A segment has as many tokens as a training window. In training, it also keeps the memory of the
    rows of the global batch from step to step; each process that of the rows that it trains.
    """

    def __init__(self, config: Draft, design: Design, *, vocab_size: int) -> None:
        super().__init__(config, design, vocab_size=vocab_size)
        self.n_rows = config.train.batch
        self.row_memory: Memory | None = None
        # Those that this process trains: no buffer, which DDP would make those of the first one.
        self.own_rows = torch.zeros(self.n_rows, dtype=torch.bool, device="cpu")

    @property
    def continues_rows(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True unless a text is one segment."""
        return self.n_remembered > 0

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
        rows_B: Tensor | None = None,
        begins_B: Tensor | None = None,
    ) -> Tensor:
        """As Transformer.forward(); with rows_B, a segment of these rows of the training batch.

        They follow what was read of them before, but for those that begin again: begins_B, bool.
        """
        if not self.n_remembered:
            return super().forward(tokens_BT, n_last=n_last, generator=generator)
        if rows_B is not None and begins_B is not None:
            return self._continued(tokens_BT, rows_B, begins_B, generator)
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

    def _continued(
        self,
        tokens_BT: Tensor,
        rows_B: Tensor,
        begins_B: Tensor,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Returns the hidden states of rows of the training batch, and updates their memory."""
        if self.row_memory is None:
            self.row_memory = self.empty_memory(self.n_rows, size=self.n_remembered)
        x_NBMD, left_padding_B = self.row_memory
        known_B = left_padding_B[rows_B].masked_fill(begins_B, self.n_remembered)
        before, T = Memory(x_NBMD[:, rows_B], known_B), tokens_BT.shape[1]
        x_BTD, after = self.segment(tokens_BT, before, n_last=T, generator=generator)
        x_NBMD[:, rows_B] = after.x_NBMD.to(x_NBMD.dtype)
        left_padding_B[rows_B] = after.left_padding_B
        self.own_rows = self.own_rows.to(rows_B.device)  # once
        self.own_rows[rows_B] = True
        return x_BTD

    def carried(self) -> tuple[Tensor, ...]:
        if self.row_memory is None:
            return ()
        x_NBMD, left_padding_B = self.row_memory
        if torch.distributed.is_initialized():
            own_B = self.own_rows.to(x_NBMD.device)
            x_NBMD = torch.where(own_B[:, None, None], x_NBMD, 0)
            left_padding_B = torch.where(own_B, left_padding_B, 0)
            for tensor in (x_NBMD, left_padding_B):
                torch.distributed.all_reduce(tensor)
        return x_NBMD, left_padding_B

    def carry_on(self, carried: tuple[Tensor, ...]) -> None:
        if carried:
            device = self.embedding.weight.device
            self.row_memory = Memory(*(tensor.to(device) for tensor in carried))

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
        pos = c.pos[:1] + torch.arange(S, device=tokens_BT.device)
        c = replace(c, length=S, pos=pos, q_pos=pos, k_pos=pos, cols=slice(0, S))
        if memory.left_padding_B.any():
            c = replace(c, key_padding_BS=pos - pos[0] < memory.left_padding_B[:, None])
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
