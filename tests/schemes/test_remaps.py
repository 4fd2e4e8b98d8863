"""Remaps of rotary positions, windows, and factors of the queries."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from parts import Scattered, Sloped, head_numbers
from repository import published
from small import bare_call, close, context, dims, layer_of, rotated, small_model, some_qkv
from torch import Tensor

from lengthgen.config.conf import load_choice
from lengthgen.model.attention import attend, eager
from lengthgen.schemes import AttentionContext, Part, Scheme, part_classes
from lengthgen.schemes.mask import Window
from lengthgen.schemes.remap import DualChunk, LeakyRerope, Remap, Rerope, Selfextend, StreamingLlm
from lengthgen.schemes.rotary.rope import Rope
from lengthgen.schemes.rotary.string import String
from lengthgen.schemes.temperature import (
    Llama4Temperature,
    Logn,
    LogScaling,
    Ssmax,
    Temperature,
)

SHAPE = small_model("nope").shape  # T = 16
LENGTH = 40


def relative(part: Part, c: AttentionContext) -> Tensor:
    """Returns the distance at which each pair is rotated; asserts that one branch has the pair."""
    assert isinstance(part, Remap)
    distance = torch.full((), math.nan, dtype=torch.float64)
    users = torch.zeros((), dtype=torch.int64)
    for branch in part.branches(c):
        apart = branch.q_pos[..., :, None] - branch.k_pos[..., None, :]
        apart = apart[:, None] if apart.dim() == 3 else apart
        distance = torch.where(branch.used, apart.double(), distance)
        users = users + branch.used
    assert torch.equal(users, torch.ones_like(users))
    return distance


@pytest.mark.parametrize("case", published("remapped_distances"), ids=lambda case: case["part"])
def test_distances_are_the_published_ones(case: dict[str, Any]) -> None:
    part, row = part_classes()[case["part"]](SHAPE, **case["arguments"]), case["row"]
    got = relative(part, context(small_model("nope"), 20, dtype=torch.float64))
    assert got[row, : row + 1].tolist() == case["want"]


def dual_chunk_distance(i: int, j: int, _n: int) -> float:
    """Chunks of 10 numbers, none above 12."""
    chunks = i // 10 - j // 10
    if chunks == 0:
        return i - j
    return (min(i % 10 + 10, 12) if chunks == 1 else 12) - j % 10


# The distance of tokens at coordinates i and j, which count from the first; key j is the n-th.
REMAPS: dict[str, tuple[Part, Callable[[int, int, int], float]]] = {
    "rerope": (Rerope(SHAPE, window=0.5), lambda i, j, n: min(i - j, 8)),
    "leaky_rerope": (
        LeakyRerope(SHAPE, window=0.5, slowdown=3),
        lambda i, j, n: i - j if i - j < 8 else 8 + (i - j - 8) / 3,
    ),
    "selfextend": (
        Selfextend(SHAPE, neighbours=0.3, group=3),  # 0.3 * 16 is 5 tokens
        lambda i, j, n: i - j if i - j < 5 else i // 3 - j // 3 + 5 - 1,
    ),
    "dual_chunk": (DualChunk(SHAPE, chunk=0.75, local=0.125), dual_chunk_distance),
    "string": (
        String(SHAPE, shift=0.5, local=0.125, mscale=1.0),
        lambda i, j, n: i - j if i - j < 8 else i - j - 8 + 2,
    ),
    "streaming_llm": (  # its sinks are the first tokens, whatever their coordinates
        StreamingLlm(SHAPE, width=1, sinks=3),
        lambda i, j, n: min(i, 15) - j if n < 3 else i - j,
    ),
}


def attended(logits: Tensor, v: Tensor) -> Tensor:
    later = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
    return logits.masked_fill(later, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("name", REMAPS)
def test_a_remap_uses_the_coordinates_of_each_sequence(name: str) -> None:
    part, distance = REMAPS[name]
    model, (q, k, v) = small_model("nope"), some_qkv(LENGTH, dtype=torch.float64)
    rope = Rope(SHAPE, base=100, rotary_percentage=1, layout="half")
    parts = {"scattered": Scattered(SHAPE), "rope": rope, "remap": part}
    model.scheme = Scheme(parts, layers=None, n_layers=2)
    c = context(model, LENGTH, dtype=torch.float64)
    assert c.pos.shape == (2, LENGTH)
    places = (c.pos - c.pos[:, :1]).tolist()
    apart = [[[distance(i, j, n) for n, j in enumerate(row)] for i in row] for row in places]
    omega = 100.0 ** -(torch.arange(4).double() / 4)
    theta = torch.tensor(apart, dtype=torch.float64)[..., None] * omega
    q_c, k_c = (torch.complex(x[..., :4], x[..., 4:]) for x in (q, k))
    turn = torch.polar(torch.ones_like(theta), theta)
    logits = torch.einsum("bhqm,bhsm,bqsm->bhqs", q_c, k_c.conj(), turn).real / 8**0.5
    seen = part.visible(c)
    want = attended(logits if seen is None else logits.masked_fill(~seen, -torch.inf), v)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            got = attend(q, k, v, replace(c, hooks=model.scheme.layers[0]))
        close(got, want, atol=1e-12)


def test_what_follows_a_rotation_still_follows_it_under_a_remap() -> None:
    # PoPE's softplus is not linear: a factor on queries before it is another function.
    pope, logn = small_model("pope").scheme.all[0], Logn(SHAPE)
    c = context(small_model("nope"), LENGTH, dtype=torch.float64)
    q, k, v = some_qkv(LENGTH, dtype=torch.float64)
    idle = Rerope(SHAPE, window=float(LENGTH))
    remapped = attend(q, k, v, replace(c, hooks=layer_of(pope=pope, logn=logn, rerope=idle)))
    close(remapped, attend(q, k, v, replace(c, hooks=layer_of(pope=pope, logn=logn))), atol=1e-12)


def largest_distance(variant: str, length: int) -> float:
    """Returns the largest distance that the last query of a call rotates by, at T = 512."""
    arguments = load_choice("variant", variant)[variant]
    part = part_classes()[variant](dims(train_length=512), **arguments)
    c = bare_call(part.shape, length, dtype=torch.float32)
    c = replace(c, q_pos=c.pos[-1:], rows=slice(length - 1, length))
    seen = part.visible(c)
    distance = relative(part, c)
    return float((distance if seen is None else distance[seen]).max())


@pytest.mark.parametrize(
    ("variant", "longest", "largest"),
    [  # [F] the last one for 32 T, 16384 tokens
        ("rerope", None, 256),
        ("leaky_rerope", 4337, 256 + (16_383 - 256) / 16),
        ("selfextend", 28_736, 255 + 63),
        ("dual_chunk", None, 384),
        ("streaming_llm", None, 511),
    ],
)
def test_the_shipped_values_keep_distances_inside_the_trained_ones_as_their_comments_say(
    variant: str, longest: int | None, largest: float
) -> None:
    assert largest_distance(variant, 16_384) == pytest.approx(largest, abs=1e-3)
    if longest is None:
        assert largest_distance(variant, 2**17) == largest
    else:
        assert largest_distance(variant, longest) == pytest.approx(511, abs=1e-3)
        assert largest_distance(variant, longest + 33) > 511


@pytest.mark.parametrize("sinks", [0, 1, 15])
def test_a_query_sees_the_first_and_the_most_recent_keys_and_its_own(sinks: int) -> None:
    c = context(small_model("nope"), LENGTH, dtype=torch.float64)
    for i, row in enumerate(Window(SHAPE, width=1, sinks=sinks).visible(c).tril()):
        keys = range(i + 1)
        want = {*keys[:sinks], *keys[-(16 - sinks) :]}
        assert set(row.nonzero().flatten().tolist()) == want
        assert len(want) == min(i + 1, 16)


@pytest.mark.parametrize("scheme", ["rope", "alibi", "fox"])
def test_keys_that_no_query_of_a_block_sees_are_left_out_without_a_trace(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window of 16 keys is far narrower than a block of 32 queries and the keys before it."""
    monkeypatch.setattr("lengthgen.model.attention.NEAR_BLOCK", 32)
    model = small_model(scheme, "window")
    layer, (q, k, v) = model.scheme.layers[0], some_qkv(180, dtype=torch.float64)
    c = replace(context(model, 180, dtype=torch.float64), hooks=layer)
    with torch.no_grad():
        got = attend(q, k, v, c)
        close(got, eager(*rotated(layer, q, k, c), v, c, block=180), atol=1e-12)
        far = k.clone()
        far[:, :, 4:80] += 100  # hidden from the last 80 queries, and no sinks
        moved = attend(q, far, v, c)
        close(moved[:, :, 100:], got[:, :, 100:], atol=1e-12)
        assert not torch.equal(moved[:, :, :80], got[:, :, :80])


LONG = dims(n_layers=2, n_heads=3)  # T = 512


def at_rows(*rows: int, dtype: torch.dtype = torch.float64) -> list[AttentionContext]:
    """Returns the contexts of single queries, that of row i with i + 1 keys."""
    c = context(small_model("nope"), 1, dtype=dtype)
    return [replace(c, shape=LONG, rows=slice(i, i + 1), cols=slice(0, i + 1)) for i in rows]


def test_log_scaling_is_a_logarithm_to_the_base_a_in_evaluation_alone() -> None:
    part = LogScaling(SHAPE, a=0.5)  # of 16 tokens
    c = bare_call(SHAPE, LENGTH)
    want = [math.log(8 + n, 8) for n in range(LENGTH)]
    close(part.factor(c), torch.tensor(want, dtype=torch.float64), atol=1e-12)
    assert float(part.factor(c)[0]) == 1
    assert torch.equal(part.factor(replace(c, training=True)), torch.ones(LENGTH).double())
    few = replace(c, rows=slice(30, LENGTH), q_pos=c.pos[30:])
    assert torch.equal(part.factor(few), part.factor(c)[30:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", published("temperatures"), ids=lambda case: case["scheme"])
def test_factors_are_the_published_ones(case: dict[str, Any], dtype: torch.dtype) -> None:
    part: Any = part_classes()[case["scheme"]](LONG, **case["arguments"])
    got = [float(part.factor(c)) for c in at_rows(*case["rows"], dtype=dtype)]
    assert got == pytest.approx(case["want"], abs=2e-7)
    assert [one for one in got if one < 1 + 1e-6] == [1.0] * case["want"].count(1.0)  # to the bit


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
    far = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)).double()
    factors = torch.tensor([[factor(i)] for i in range(LENGTH)], dtype=torch.float64)
    want = attended(factors * (q @ k.mT) / 8**0.5 - far / 10 * head_numbers(4), v)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            close(attend(q, k, v, replace(c, hooks=layer)), want, atol=1e-12)
    last = replace(c, q_pos=c.q_pos[-3:], rows=slice(LENGTH - 3, LENGTH))
    close(attend(q[:, :, -3:], k, v, replace(last, hooks=layer)), want[:, :, -3:], atol=1e-12)


def test_streaming_llm_is_its_mask_in_a_layer_that_does_not_rotate() -> None:
    rope = Rope(SHAPE, base=100, rotary_percentage=1, layout="half")
    parts = {"rope": rope, "streaming_llm": StreamingLlm(SHAPE, width=1, sinks=3)}
    rotating, other = Scheme(parts, layers=[["rope"], []], n_layers=2).layers
    assert rotating.scores is parts["streaming_llm"]
    assert (other.scores, other.visible) == (None, (parts["streaming_llm"],))
