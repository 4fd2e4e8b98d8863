"""Masked spans of text: what an encoder-decoder trains on, and how it is scored."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lengthgen.config.schema import Config, TaskCorpus
from lengthgen.data.objective import Objective
from lengthgen.data.spans import Span
from lengthgen.data.windows import Ints, Windows, targets_of
from lengthgen.encoder_decoder.span_corruption import (
    SHORTEST,
    corrupted,
    corrupted_batch,
    masked_targets,
    n_read,
    stacked,
    text_length,
    text_of_window,
)
from lengthgen.errors import UserError
from lengthgen.evaluation.protocols import Protocol
from lengthgen.evaluation.scored_text import Plan


class MaskedSpans(Objective):
    """Spans of a window are left out of what the encoder reads; the decoder writes them."""

    learns = "masked spans"
    protocol = "spans"

    @staticmethod
    def takes(config: Config) -> bool:
        of_task = isinstance(config.corpus, TaskCorpus)
        return config.model.arch == "encoder_decoder" and not of_task

    def check(self) -> None:
        super().check()
        if self.config.train.length < SHORTEST:
            raise UserError(
                f"train.length={self.config.train.length}: text with a masked span has {SHORTEST} "
                f"tokens or more; set train.length={SHORTEST} or more"
            )

    @property
    def window_targets(self) -> int:
        return text_length(self.config.train.length)

    def batch(self, batch: Windows, *, vocab_size: int, step: int) -> Windows:
        return corrupted_batch(batch, vocab_size=vocab_size, seed=self.config.seed, step=step)


@dataclass(frozen=True, kw_only=True)
class SpansProtocol(Protocol):
    """Masked ones of the targets, given the text around them."""

    def batch(self, spans: Sequence[Span], batch: Windows, *, vocab_size: int) -> Windows:
        """Masks scored targets, which become spans to be filled in.

        Tokens behind the first one are left out until the encoder reads no more than the window.
        """
        rows: list[tuple[Ints, Ints]] = []
        for span, inputs, targets in zip(spans, *batch, strict=True):
            masked = np.zeros(span.length, dtype=bool)
            masked[-span.scored :] = masked_targets(span)
            excess = n_read(span.scored) - span.scored
            first = min(max(0, excess), int(masked.argmax()))
            text = np.delete(text_of_window(inputs, targets), slice(1, 1 + first))
            rows.append(corrupted(text, masked[first:], vocab_size=vocab_size))
        return stacked(rows)

    def targets(self, span: Span, plan: Plan) -> Ints:
        return targets_of(span, plan.corpus)[masked_targets(span)]


def spans_block(length: int, targets: int, train_length: int) -> int:
    """Returns how many targets share a window of masked spans: those of the shortest default."""
    return min(targets, max(1, train_length // 8))


SPANS = SpansProtocol(
    name="spans",
    summary="masked spans: the same ones of the K targets at every length, for encoder-decoders",
    source="span corruption of T5, arXiv 1910.10683, on the endpoints of tail",
    block=spans_block,
    objective=MaskedSpans,
    reads=("train_length",),
)
