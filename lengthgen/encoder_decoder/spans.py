"""Masked spans of text: what an encoder-decoder trains on, and how it is scored.

Span corruption makes of a window of text a row "text with spans left out, the spans", as
T5 (Raffel et al. 2020, arXiv 1910.10683, section 3.1.4) and its release: 15 % of the tokens in
spans of 3 on average, the first token and the last one on different sides. Sentinel i stands for
span i in the text and before span i in the answer. Sentinel 0 ends both of them. The sentinels are
the ids from the vocabulary's end on.

A row of n targets with m of them in k spans has n - m + k + 2 tokens that the encoder reads: the
token before the window, text, sentinels 1 to k, sentinel 0.
"""

from collections.abc import Sequence

import numpy as np

from lengthgen.config.schema import Config, TaskCorpus
from lengthgen.data.objective import Objective
from lengthgen.data.windows import IGNORED, Ints, Mask, Span, Windows, targets_of
from lengthgen.evaluation.protocols import Protocol
from lengthgen.evaluation.scored_text import Plan

MASKED = 0.15  # of the tokens
MEAN_SPAN = 3  # tokens


def n_masked(n: int) -> tuple[int, int]:
    """Returns how many of n tokens are masked, and in how many spans."""
    masked = max(1, round(n * MASKED))
    return masked, max(1, round(masked / MEAN_SPAN))


def n_read(n: int) -> int:
    """Returns how many tokens the encoder reads of a window of n targets."""
    masked, spans = n_masked(n)
    return n - masked + spans + 2


def text_length(length: int) -> int:
    """Returns the targets of the longest window of which the encoder reads `length` tokens."""
    n = max(1, length - 2)
    while n_read(n + 1) <= length:
        n += 1
    return n


def n_sentinels(length: int) -> int:
    """Returns the ids that text of which the encoder reads `length` tokens adds."""
    return 1 + n_masked(text_length(length))[1]


def noise_mask(n: int, key: tuple[int, int]) -> Mask:
    """Returns which of n tokens are masked, by a key: text and spans take turns, text first."""
    random = np.random.Generator(np.random.Philox(key=np.array(key, dtype=np.uint64)))
    masked, spans = n_masked(n)
    lengths = np.stack([_pieces(n - masked, spans, random), _pieces(masked, spans, random)], axis=1)
    return np.repeat(np.tile([False, True], spans), lengths.ravel())


def _pieces(n: int, count: int, random: np.random.Generator) -> Ints:
    """Returns the lengths of `count` pieces of n tokens, all such lengths equally likely."""
    cuts = 1 + np.sort(random.choice(max(0, n - 1), size=count - 1, replace=False))
    return np.diff(np.concatenate([[0], cuts, [n]]).astype(np.int64))


def masked_targets(span: Span) -> Mask:
    """Returns which of the scored targets are masked: the same ones in a window of any length."""
    return noise_mask(span.scored, (span.document, span.end))


def corrupted(text: Ints, masked: Mask, *, vocab_size: int) -> tuple[Ints, Ints]:
    """Returns inputs and targets of the row; `text` begins with the token before the window."""
    before, text = text[:1], text[1:]
    begins = masked & ~np.concatenate([[False], masked[:-1]])
    sentinels = vocab_size + np.cumsum(begins)
    prompt = np.where(begins, sentinels, text)[begins | ~masked]
    answer = np.insert(text[masked], np.flatnonzero(begins[masked]), sentinels[begins])
    row = np.concatenate([before, prompt, [vocab_size], answer, [vocab_size]]).astype(np.int64)
    targets = row[1:].copy()
    targets[: 1 + len(prompt)] = IGNORED
    return row[:-1], targets


def stacked(rows: Sequence[tuple[Ints, Ints]]) -> Windows:
    """Returns rows of different lengths as an array, filled with ignored targets at the end."""
    shape = len(rows), max(len(inputs) for inputs, _ in rows)
    batch = Windows(np.zeros(shape, dtype=np.int64), np.full(shape, IGNORED, dtype=np.int64))
    for b, (inputs, targets) in enumerate(rows):
        batch.inputs_BT[b, : len(inputs)] = inputs
        batch.targets_BT[b, : len(targets)] = targets
    return batch


def text_of_window(inputs: Ints, targets: Ints) -> Ints:
    """Returns the token before a window, and its targets."""
    return np.concatenate([inputs[:1], targets[targets != IGNORED]])


class MaskedSpans(Objective):
    """Spans of a window are left out of what the encoder reads; the decoder writes them."""

    learns = "masked spans"
    protocol = "spans"

    @staticmethod
    def takes(config: Config) -> bool:
        of_task = isinstance(config.corpus, TaskCorpus)
        return config.model.arch == "encoder_decoder" and not of_task

    @property
    def window_targets(self) -> int:
        return text_length(self.config.train.length)

    def batch(self, batch: Windows, *, vocab_size: int, step: int) -> Windows:
        rows: list[tuple[Ints, Ints]] = []
        for b, (inputs, targets) in enumerate(zip(*batch, strict=True)):
            text = text_of_window(inputs, targets)
            row = step * len(batch.inputs_BT) + b
            masked = noise_mask(len(text) - 1, (self.config.seed, row))
            rows.append(corrupted(text, masked, vocab_size=vocab_size))
        return stacked(rows)


class SpansProtocol(Protocol):
    """Masked ones of the targets, given the text around them."""

    objective = MaskedSpans

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


SPANS = SpansProtocol(
    name="spans",
    summary="masked spans: the same ones of the K targets at every length, for encoder-decoders",
    source="span corruption of T5, arXiv 1910.10683, on the endpoints of tail",
    block=lambda length, targets, train_length: min(targets, max(1, train_length // 8)),
    reads=("train_length",),
)
