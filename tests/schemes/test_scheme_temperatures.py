"""Factors of the scores: the published numbers, and that biases are left alone."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from parts import Sloped, head_numbers
from repository import published
from small import close, context, dims, layer_of, small_config, small_model, some_qkv

from lengthgen.model.attention import attend
from lengthgen.schemes import AttentionContext, Part, registry
from lengthgen.schemes.temperature import Llama4Temperature, Logn, Ssmax, Temperature

SHAPE = small_config().shape  # T = 16
LONG = dims(n_layers=2, n_heads=3)  # T = 512
LENGTH = 40


def at_rows(*rows: int, dtype: torch.dtype = torch.float64) -> list[AttentionContext]:
    """Returns the contexts of single queries, that of row i with i + 1 keys."""
    c = context(small_model("nope"), 1, dtype=dtype)
    return [replace(c, shape=LONG, rows=slice(i, i + 1), cols=slice(0, i + 1)) for i in rows]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", published("temperatures"), ids=lambda case: case["scheme"])
def test_factors_are_the_published_ones(case: dict[str, Any], dtype: torch.dtype) -> None:
    part: Any = registry()[case["scheme"]](LONG, **case["arguments"])
    got = [float(part.factor(c)) for c in at_rows(*case["rows"], dtype=dtype)]
    assert got == pytest.approx(case["want"], abs=2e-7)
    assert [one for one in got if one < 1 + 1e-6] == [1.0] * case["want"].count(1.0)  # to the bit


def test_ssmax_multiplies_by_s_of_the_head_and_layer_and_the_log_of_the_keys() -> None:
    part = Ssmax(LONG, init=0.5, share_layers=False)
    assert torch.equal(part.s, torch.full((2, 3), 0.5))
    with torch.no_grad():
        part.s.copy_(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    first, row_99 = at_rows(0, 99)
    assert part.factor(first).flatten().tolist() == [0, 0, 0]  # ln 1
    for layer, s in enumerate(([1, 2, 3], [4, 5, 6])):
        got = part.factor(replace(row_99, layer=layer)).flatten().tolist()
        assert got == pytest.approx([n * math.log(100) for n in s], abs=1e-12)
    shared = Ssmax(LONG, init=1, share_layers=True)
    assert shared.s.shape == (1, 3)
    assert torch.equal(shared.factor(row_99), shared.factor(replace(row_99, layer=1)))


FACTORS: dict[str, tuple[Part, Callable[[int], float]]] = {  # of query i in a call of 40 tokens
    "logn": (Logn(SHAPE), lambda i: max(1.0, math.log(i + 1) / math.log(16))),
    "ssmax": (Ssmax(SHAPE, init=0.5, share_layers=True), lambda i: 0.5 * math.log(i + 1)),
    "temperature": (Temperature(SHAPE, coefficient=0.3), lambda i: 1 + 0.3 * math.log(40 / 16)),
    "llama4_temperature": (
        Llama4Temperature(SHAPE, scale=0.1, floor=0.5),
        lambda i: 1 + 0.1 * math.log(1 + (i + 1) // 8),
    ),
}


@pytest.mark.parametrize("name", FACTORS)
def test_a_temperature_multiplies_scores_and_never_biases(name: str) -> None:
    part, factor = FACTORS[name]
    layer = layer_of(Sloped(SHAPE), part)
    q, k, v = some_qkv(LENGTH, dtype=torch.float64)
    c = context(small_model("nope"), LENGTH, dtype=torch.float64)
    logits = torch.full((2, 4, LENGTH, LENGTH), -torch.inf, dtype=torch.float64)
    for i in range(LENGTH):
        scores = (q[:, :, i, None] * k[:, :, : i + 1]).sum(-1) / 8**0.5
        biases = -(i - torch.arange(i + 1)).double() / 10 * head_numbers(4)[..., 0]
        logits[:, :, i, : i + 1] = factor(i) * scores + biases
    want = logits.softmax(-1) @ v
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            close(attend(layer, q, k, v, c), want, atol=1e-12)
    last = replace(c, q_pos=c.q_pos[-3:], rows=slice(LENGTH - 3, LENGTH))
    close(attend(layer, q[:, :, -3:], k, v, last), want[:, :, -3:], atol=1e-12)
