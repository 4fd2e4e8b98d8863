"""Randomized positions: how they are drawn, and for which calls they are defined."""

from typing import Literal

import pytest
import torch
from small import small_config, small_model, some_tokens
from torch import Tensor

from lengthgen.schemes import AttentionContext
from lengthgen.schemes.absolute.randomized import Randomized

SHAPE = small_config().shape  # T = 16
Evaluation = Literal["random", "arange", "linspace"]


def draw(
    length: int,
    seed: int,
    *,
    maximum: float = 32,
    evaluation: Evaluation = "random",
    training: bool = False,
) -> Tensor:
    part = Randomized(SHAPE, maximum=maximum, evaluation=evaluation)
    tokens, x = torch.zeros(2, length, dtype=torch.long), torch.zeros(2, length, SHAPE.d_model)
    generator = torch.Generator().manual_seed(seed)
    c = AttentionContext.of_call(SHAPE, tokens, x, training=training, generator=generator)
    return part.positions(tokens, c)


def test_positions_are_distinct_sorted_and_below_the_maximum() -> None:
    for seed in range(20):
        pos = draw(40, seed)
        assert pos.dtype == torch.int64
        assert pos.shape == (40,)
        assert (pos.diff() > 0).all()
        assert pos[0] >= 0
        assert pos[-1] < 512
    assert torch.equal(draw(512, 0), torch.arange(512))


def test_every_position_is_drawn_equally_often() -> None:
    n = 1000  # draws of 8 out of 32: each position in a quarter of them, 250 +- 14
    counts = torch.zeros(32)
    for seed in range(n):
        counts[draw(8, seed, maximum=2)] += 1
    assert counts.sum() == 8 * n
    assert (counts / n - 0.25).abs().max() < 5 * (0.25 * 0.75 / n) ** 0.5


def test_a_draw_is_a_function_of_the_generators_seed() -> None:
    assert torch.equal(draw(40, 3), draw(40, 3))
    assert not torch.equal(draw(40, 3), draw(40, 4))


@pytest.mark.parametrize(
    ("evaluation", "want"),
    [
        ("arange", [0, 1, 2, 3, 4, 5, 6]),
        ("linspace", [0, 5, 10, 15, 20, 25, 31]),  # floor(31 i / 6)
    ],
)
def test_evaluation_may_have_other_positions_than_training(
    evaluation: Evaluation, want: list[int]
) -> None:
    assert draw(7, 0, maximum=2, evaluation=evaluation).tolist() == want
    drawn = draw(7, 0, maximum=2, evaluation=evaluation, training=True)
    assert torch.equal(drawn, draw(7, 0, maximum=2))
    assert draw(1, 0, evaluation=evaluation).tolist() == [0]
    longest = draw(32, 0, maximum=2, evaluation=evaluation)
    assert torch.equal(longest, torch.arange(32))


@pytest.mark.parametrize("evaluation", ["random", "linspace"])
def test_a_call_longer_than_the_maximum_has_no_positions(evaluation: Evaluation) -> None:
    part = Randomized(SHAPE, maximum=2, evaluation=evaluation)
    assert part.unsupported_reason(32) is None
    assert part.unsupported_reason(33) == "randomized has 32 positions"
    with pytest.raises(ValueError, match=r"33 tokens, but randomized has 32 positions"):
        draw(33, 0, maximum=2, evaluation=evaluation)


def test_a_model_that_draws_refuses_to_do_without_a_generator() -> None:
    with pytest.raises(ValueError, match=r"randomized draws positions; .* with a generator"):
        small_model("randomized_rope")(some_tokens(8))
    model = small_model("randomized_rope", "arange").eval()
    assert model(some_tokens(8)).shape == (2, 8, 32)
