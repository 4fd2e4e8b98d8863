"""Masks alone: which keys a query sees. Positions are left as they are."""

import torch
from pydantic import NonNegativeInt, PositiveFloat
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Part
from lengthgen.schemes.parameters import tokens


class Window(Part):
    """Sliding-window attention with sinks: hides all keys but the first and the most recent ones.

    width: keys that a query sees, itself included, in multiples of T; up to it nothing changes.
    sinks: how many of them are the first ones; 4 in StreamingLLM (Xiao et al. 2023, arXiv
    2309.17453), 0 in Longformer and Mistral. Sinks keep their true distance here.
    """

    needs_whole_text = True

    def __init__(self, shape: ModelDims, *, width: PositiveFloat, sinks: NonNegativeInt) -> None:
        super().__init__(shape)
        self.width, self.sinks = tokens(width, shape), sinks
        self.reach = None if sinks else self.width
        if sinks >= self.width:
            raise ValueError(
                f"sinks={sinks} must be below the width, which is {self.width} "
                f"tokens at train.length={shape.train_length}"
            )

    def visible(self, c: AttentionContext) -> Tensor:
        i = torch.arange(c.rows.start, c.rows.stop, device=c.q_pos.device)
        j = torch.arange(c.cols.stop, device=c.q_pos.device)
        first_recent = i - (self.width - self.sinks) + 1
        return (j >= first_recent[:, None]) | (j < self.sinks)


class Bca(Part):
    """Blockwise causal attention: Sun et al. 2022, arXiv 2212.10554, section 3.3.

    The call is cut into windows of `window` = T/2, and a query sees the keys of its own and of the
    one before. Proposed for xPos at inference. No release has it: this is our reading.
    """

    needs_whole_text = True

    def __init__(self, shape: ModelDims, *, window: PositiveFloat) -> None:
        super().__init__(shape)
        self.window = tokens(window, shape)

    def visible(self, c: AttentionContext) -> Tensor:
        i = torch.arange(c.rows.start, c.rows.stop, device=c.q_pos.device) // self.window
        j = torch.arange(c.cols.stop, device=c.q_pos.device) // self.window
        return i[:, None] - j <= 1
