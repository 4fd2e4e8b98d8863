"""Sliding-window attention with attention sinks, as a mask alone.

A query sees the first `sinks` keys, which StreamingLLM (Xiao et al. 2023, arXiv 2309.17453) found
to take up weight that has nowhere else to go, and its most recent ones, itself included: `width`
keys in all. At lengths up to the width nothing changes. With no sinks this is the plain window of
Longformer and Mistral.

The mask leaves positions alone: sinks keep their true distance, which grows past the trained ones.
StreamingLLM gives them another one (part `streaming_llm`).
"""

import torch
from pydantic import NonNegativeInt, PositiveFloat
from torch import Tensor

from lengthgen.schemes.base import AttentionContext, ModelDims, Part
from lengthgen.schemes.parameters import tokens


class Window(Part):
    """Hides all keys but the first and the most recent ones.

    width: keys that a query sees, in multiples of T. sinks: how many of them are the first ones, in
    tokens; 4 in StreamingLLM.
    """

    needs_whole_text = True

    def __init__(self, shape: ModelDims, *, width: PositiveFloat, sinks: NonNegativeInt) -> None:
        super().__init__(shape)
        self.width, self.sinks = tokens(width, shape), sinks
        if sinks >= self.width:
            raise ValueError(
                f"sinks={sinks} must be below the width, which is {self.width} "
                f"tokens at train.length={shape.train_length}"
            )

    def visible(self, c: AttentionContext) -> Tensor:
        i = torch.arange(c.rows.start, c.rows.stop, device=c.q_pos.device)
        j = torch.arange(c.cols.start, c.cols.stop, device=c.q_pos.device)
        first_recent = i - (self.width - self.sinks) + 1
        return (j >= first_recent[:, None]) | (j < self.sinks)
