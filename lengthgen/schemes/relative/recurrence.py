"""Segment recurrence of Transformer-XL: Dai et al. 2019, arXiv 1901.02860, section 3.2.

A text is read in segments of T tokens. In every layer, keys and values also come from the last
mem_len inputs of that layer in earlier segments, kept as they were and without gradient. In
training, a sequence of the batch continues where it stopped in the step before, until its document
ends; unlike in the authors' release, the memory of another document is never seen. The model is a
RecurrentTransformer (model/recurrent.py).

It goes with relative positions only: another part would count, sum or read tokens within a segment
and its memory.
"""

from collections.abc import Mapping

from pydantic import NonNegativeFloat

from lengthgen.schemes.base import ModelDims, Part


class Recurrence(Part):
    """Keeps mem_len tokens of earlier segments visible.

    mem_len: in multiples of T; the paper trains WikiText-103 with 1.0 (150 of 150 tokens).
    """

    needs_model = True

    def __init__(self, shape: ModelDims, *, mem_len: NonNegativeFloat) -> None:
        super().__init__(shape)
        self.n_remembered = round(mem_len * shape.train_length)
        if mem_len > 0 and self.n_remembered == 0:
            raise ValueError(f"mem_len={mem_len} of T={shape.train_length} is less than a token")

    def conflict(self, others: Mapping[str, Part]) -> str | None:
        for name, part in others.items():
            if part.needs_model:
                return f"reads a text in segments, and remembers nothing of what {name} knows of it"
            of_text = part.depends_on_length or part.needs_whole_text or part.overrides("positions")
            is_turned = part.reads_qk and any(o.rotary for o in others.values() if o is not part)
            if self.n_remembered and (of_text or is_turned or not part.shift_invariant):
                return f"reads a text in segments, and {name} needs all of it, or places in it"
        return None
