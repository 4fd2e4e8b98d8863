"""The cost table says what it measured: which scheme, at which length, against what."""

from collections.abc import Callable

import pytest
import torch
from small import small_config

from lengthgen import benchmark
from lengthgen.benchmark import Cost, Evaluated, Speed
from lengthgen.terminal import Progress

pytestmark = pytest.mark.slow


def test_calls_take_turns_and_the_first_round_does_not_count() -> None:
    order: list[str] = []

    def call(name: str) -> Callable[[], object]:
        return lambda: order.append(name)

    seconds = benchmark._alternating([call("a"), call("b")], 2, torch.device("cpu"))  # pyright: ignore[reportPrivateUsage]
    assert order == ["a", "b"] * 3
    assert len(seconds) == 2


def test_a_cost_counts_the_schemes_own_parameters_and_says_where_it_has_no_value() -> None:
    show = Progress(is_main=False)
    config = small_config("scheme=learned_absolute")
    [learned] = benchmark.costs([config], [16, 64], rounds=1, vocab_size=300, show=show)
    assert (learned.scheme, learned.parameters) == ("learned_absolute", 16 * 32)
    at_16, at_64 = learned.evaluated
    assert at_16.speed is not None
    assert at_16.skipped is None
    assert (at_64.speed, at_64.mib) == (None, None)
    assert at_64.skipped == "learned_absolute has 16 rows and beyond=na"
    assert learned.decode is None  # there are 16 rows, and 64 tokens to come
    for speed in (learned.train, at_16.speed):
        assert speed.tokens_per_s > 0
        assert speed.relative > 0


def test_the_peak_of_memory_is_that_of_the_window() -> None:
    # 16,384 states of width 32 in fp32 are 2 MiB, and a window holds several such tensors.
    [plain] = benchmark.costs(
        [small_config("scheme=nope")],
        [16_384],
        rounds=1,
        vocab_size=300,
        show=Progress(is_main=False),
    )
    [evaluated] = plain.evaluated
    assert evaluated.mib is not None
    assert 4 < evaluated.mib < 200
    assert (plain.scheme, plain.parameters) == ("nope", 0)
    assert plain.decode is not None
    assert plain.decode.tokens_per_s > 0


def test_the_table_has_a_column_for_every_number() -> None:
    cost = Cost(
        "some",
        1234,
        Speed(20_000.4, 0.912),
        Speed(130.4, 0.5),
        [
            Evaluated(512, Speed(9_000, 1.0), 12.3, None),
            Evaluated(16_384, None, None, "has no value"),
        ],
    )
    head, row = benchmark.table([cost], [512, 16_384], train_length=512)
    assert len(head) == len(row)
    assert dict(zip(head[:3], row[:3], strict=True)) == {
        "scheme": "some",
        "parameters": "1,234",
        "train tok/s at 512": "20,000",
    }
    assert head[3:6] == ["x", "decode tok/s at 512", "x"]
    assert row[3:6] == ["0.91", "130", "0.50"]
    assert row[6:] == ["9,000", "1.00", "12", "n/a", "n/a", "n/a"]
