"""Span corruption: what a row holds, and that it is a function of the seed and the step alone."""

import numpy as np
import pytest

from lengthgen.data.spans import Span
from lengthgen.data.windows import IGNORED, Ints, Windows
from lengthgen.encoder_decoder.span_corruption import (
    SHORTEST,
    corrupted,
    corrupted_batch,
    masked_targets,
    n_masked,
    n_read,
    n_sentinels,
    noise_mask,
    text_length,
)

VOCAB = 10_000
SIZES = [*range(1, 40), 114, 568, 4000]
EVERY_SIZE = pytest.mark.parametrize("n", SIZES)


def mask_of(n: int, *, seed: int = 0) -> np.ndarray:
    return noise_mask(n, np.random.Generator(np.random.Philox(seed)))


def row_of(n: int) -> tuple[list[int], list[int], list[int]]:
    """Returns the text of a window, and what encoder and decoder are given of it."""
    text = np.arange(n + 1)
    inputs, targets = corrupted(text, mask_of(n), vocab_size=VOCAB)
    prompt = int((targets == IGNORED).sum())
    assert (targets[prompt:] != IGNORED).all()
    return text.tolist(), inputs[: prompt + 1].tolist(), targets[prompt:].tolist()


@EVERY_SIZE
def test_spans_put_back_where_their_sentinels_stand_give_the_text(n: int) -> None:
    text, prompt, answer = row_of(n)
    spans: dict[int, list[int]] = {}
    for token in answer[:-1]:
        if token >= VOCAB:
            spans[token] = []
        else:
            spans[max(spans)].append(token)
    assert [t for token in prompt[:-1] for t in spans.get(token, [token])] == text


@EVERY_SIZE
def test_sentinels_are_in_order_on_both_sides_and_the_first_one_ends_them(n: int) -> None:
    _, prompt, answer = row_of(n)
    k = n_masked(n)[1]
    for side in (prompt, answer):
        assert [t - VOCAB for t in side if t >= VOCAB] == [*range(1, k + 1), 0]
        assert side[-1] == VOCAB


@EVERY_SIZE
def test_the_spans_hold_the_share_of_t5_and_never_touch(n: int) -> None:
    masked = mask_of(n)
    m, k = n_masked(n)
    begins = np.flatnonzero(np.diff(masked.astype(int), prepend=0) == 1)
    assert (len(masked), masked.sum(), len(begins)) == (n, m, k)
    assert masked[-1]
    assert n == 1 or not masked[0]
    assert abs(m - 0.15 * n) < 1
    assert abs(k - m / 3) < 1


def test_the_sizes_are_those_of_the_release_of_t5() -> None:
    # 568 raw tokens give 512 inputs and 114 targets there, an end token on each side included;
    # sentinel 0 is that token here, and the token before the window is one more.
    assert n_masked(568) == (85, 28)
    assert n_read(568) - 1 == 512
    assert text_length(513) == 568


@pytest.mark.parametrize("length", [*range(SHORTEST, 70), 512, 2048])
def test_the_encoder_reads_the_trained_length_and_no_window_has_more_sentinels(length: int) -> None:
    n = text_length(length)
    assert n_read(n) <= length < n_read(n + 1)
    assert all(1 + n_masked(one)[1] <= n_sentinels(length) for one in range(1, n + 1))


def windows(seed: int, *, rows: int, n: int) -> Windows:
    tokens: Ints = np.random.default_rng(seed).integers(VOCAB, size=(rows, n + 1))
    targets = tokens[:, 1:].copy()
    targets[-1, n // 2 :] = IGNORED  # the end of a document
    return Windows(tokens[:, :-1].copy(), targets)


def test_a_row_is_the_same_at_every_resume_and_another_in_every_step() -> None:
    batch = windows(1, rows=4, n=40)
    made = [corrupted_batch(batch, vocab_size=VOCAB, seed=3, step=step) for step in (5, 5, 6)]
    other_seed = corrupted_batch(batch, vocab_size=VOCAB, seed=4, step=5)
    assert np.array_equal(made[0].inputs_BT, made[1].inputs_BT)
    assert np.array_equal(made[0].targets_BT, made[1].targets_BT)
    for other in (made[2], other_seed):
        assert not np.array_equal(made[0].inputs_BT, other.inputs_BT)


def test_masked_targets_do_not_depend_on_the_length_of_the_window() -> None:
    masks = [masked_targets(Span(2, 900, length, 32)) for length in (32, 64, 800)]
    assert all(np.array_equal(masks[0], mask) for mask in masks)
    assert not np.array_equal(masks[0], masked_targets(Span(2, 932, 64, 32)))
