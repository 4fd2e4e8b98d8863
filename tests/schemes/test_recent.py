"""Schemes of 2025 and 2026: reference numbers, plain loops, complex numbers.

Evidence: [X] computed by running the reference implementation named, [F] from the formula as
printed. Loops run in float64 and differ by the order of sums alone, 1e-12.
"""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from parts import drawn
from repository import published
from small import bare_call, close, det, dims, layer_of, some_qkv
from torch import Tensor

from lengthgen.model.attention import attend
from lengthgen.schemes import AttentionContext, Part
from lengthgen.schemes.absolute.pose import Pose
from lengthgen.schemes.content.carope import Carope
from lengthgen.schemes.content.delta_rule import AT_ONCE, delta_rule, delta_weights
from lengthgen.schemes.content.exclusive_attention import ExclusiveAttention
from lengthgen.schemes.content.kda import Kda
from lengthgen.schemes.content.repo import Repo
from lengthgen.schemes.rotary.evq_cosh import EvqCosh
from lengthgen.schemes.rotary.rope import Rope, powers
from lengthgen.schemes.rotary.rope_pp import RopePp
from lengthgen.schemes.rotary.soft_clip import SoftClip

ROPE: dict[str, Any] = {"base": 1e4, "rotary_percentage": 1.0, "layout": "half"}


def numbers(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("case", published("evq_cosh_frequencies"))
def test_evq_cosh_has_the_published_frequencies(case: dict[str, Any]) -> None:
    shape = dims(case["d_head"], train_length=case["train_length"])
    part = EvqCosh(shape, tau=case["tau"], **{**ROPE, "base": case["base"]})
    got = part.omega(bare_call(shape, 1))[case["pairs"]]
    torch.testing.assert_close(got, numbers(case["want"]), rtol=1e-6, atol=0)


def test_evq_cosh_without_tau_is_rope_half_a_step_behind() -> None:
    shape = dims(16)
    c, half = bare_call(shape, 1), 1e4 ** (-1 / 16)
    flat, nearly = (EvqCosh(shape, tau=tau, **ROPE).omega(c) for tau in (0.0, 1e-4))
    close(flat, powers(1e4, 16, c) * half, atol=1e-12)
    close(nearly, flat, atol=1e-8)


@pytest.mark.parametrize("case", published("soft_clip_frequencies"))
def test_slow_pairs_fade_to_a_stop_as_published(case: dict[str, Any]) -> None:
    shape = dims(case["d_head"])
    c = bare_call(shape, 1)
    got = SoftClip(shape, share=case["share"]).frequencies(
        powers(case["base"], case["d_head"], c), c
    )
    torch.testing.assert_close(got[case["pairs"]], numbers(case["want"]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_heads_of_rope_pp_are_the_two_parts_of_one_complex_product(layout: str) -> None:
    shape = dims(8, n_heads=4, n_kv_heads=2)
    part, n = RopePp(shape, **{**ROPE, "layout": layout}), 9
    q, k, v = some_qkv(n, dtype=torch.float64, heads=4, width=8)
    flat = [x[:, :h].transpose(1, 2).flatten(2) for x, h in ((q, 4), (k, 2), (v, 2))]
    c = bare_call(shape, n)
    mixed = part.projections(torch.cat(flat, dim=-1), c).split(shape.qkv_widths, dim=-1)
    q, k, v = (x.unflatten(-1, (-1, 8)).transpose(1, 2) for x in mixed)
    assert torch.equal(q[:, :2], q[:, 2:])
    assert torch.equal(k[:, 0], k[:, 1])
    assert torch.equal(v[:, 0], v[:, 1])
    k = k.repeat_interleave(2, dim=1)
    turned = part.qk(q, k, c)
    got = turned.q_BHQK @ turned.k_BHSK.mT

    def pairs(x: Tensor) -> Tensor:
        a, b = (x[..., :4], x[..., 4:]) if layout == "half" else (x[..., 0::2], x[..., 1::2])
        return torch.complex(a, b)

    pos = torch.arange(n, dtype=torch.float64)
    theta = (pos[:, None] - pos)[..., None] * powers(1e4, 8, c)
    product = (pairs(q)[:, :, :, None] * pairs(k)[:, :, None].conj() * torch.exp(1j * theta)).sum(
        -1
    )
    close(got[:, :2], product.real[:, :2], atol=1e-12)
    close(got[:, 2:], product.imag[:, 2:], atol=1e-12)


def test_exclusive_outputs_have_nothing_along_the_tokens_own_value() -> None:
    shape = dims(4, n_heads=3)
    q, k, v = some_qkv(11, dtype=torch.float64, heads=3, width=4)
    c = replace(bare_call(shape, 11), hooks=layer_of(ExclusiveAttention(shape)))
    plain = attend(q, k, v, c)
    got = ExclusiveAttention(shape).outputs(plain, v, c)
    for i in range(11):
        own, y = v[:, :, i], plain[:, :, i]
        along = (y * own).sum(-1, keepdim=True) / (own * own).sum(-1, keepdim=True)
        close(got[:, :, i], y - along * own, atol=1e-12)
        close((got[:, :, i] * own).sum(-1), torch.zeros(2, 3, dtype=torch.float64), atol=1e-12)
    few = replace(c, rows=slice(8, 11), q_pos=c.pos[8:])
    close(ExclusiveAttention(shape).outputs(plain[:, :, 8:], v, few), got[:, :, 8:], atol=1e-12)


CALL = dims(4, d_model=12, n_heads=3, n_layers=2, train_length=16)


def with_inputs(part: Part, n: int, *, layer: int = 1) -> AttentionContext:
    """Returns the context of a call of n tokens in a layer of CALL, with inputs of size one."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(2, n, 12, generator=generator, dtype=torch.float64)
    tokens = torch.zeros(2, n, dtype=torch.int64)
    c = AttentionContext.of_call(CALL, tokens, x, training=False, generator=None)
    return replace(c, layer=layer, hooks=layer_of(part))


def turned_by(x: Tensor, theta: Tensor) -> Tensor:
    """Returns x [..., 4] with pairs of halves turned by theta [..., 2], as complex numbers."""
    z = torch.complex(*x.chunk(2, dim=-1)) * torch.exp(1j * theta)
    return torch.cat([z.real, z.imag], dim=-1)


def test_carope_turns_by_sums_of_powers_of_each_tokens_frequency() -> None:
    part, n = drawn(Carope(CALL, base=1e4)), 9
    c, (q, k, _) = with_inputs(part, n), some_qkv(n, dtype=torch.float64, heads=3, width=4)
    theta = torch.zeros(2, 3, n, 2, dtype=torch.float64)
    for b in range(2):
        for h in range(3):
            total = torch.zeros(2, dtype=torch.float64)
            for i in range(n):
                z = (part.w[1, h] @ c.x_BTD[b, i] + part.b[1, h]).item()
                f = 1 / (math.log(1 + math.exp(z)) + 1)
                total = total + numbers([1.0, f])
                theta[b, h, i] = total
    got = part.qk(q, k, c)
    close(got.q_BHQK, turned_by(q, theta), atol=1e-12)
    close(got.k_BHSK, turned_by(k, theta), atol=1e-12)
    few = part.qk(q[:, :, -2:], k, c.of_queries(c.x_BTD, n_queries=2))
    close(few.q_BHQK, got.q_BHQK[:, :, -2:], atol=1e-12)


@pytest.mark.parametrize("width", [2, 4, 64])
def test_carope_begins_as_rope(width: int) -> None:
    shape, n = dims(width, n_heads=3), 9
    q, k, v = some_qkv(n, dtype=torch.float64, heads=3, width=width)
    c = bare_call(shape, n)
    c = replace(c, x_BTD=torch.randn(1, n, shape.d_model, dtype=torch.float64))
    parts = Carope(shape, base=1e4).double(), Rope(shape, **ROPE)
    got, want = (attend(q, k, v, replace(c, hooks=layer_of(part))) for part in parts)
    close(got, want, atol=1e-6)  # b was drawn up in float32


def test_repo_turns_by_positions_of_a_network_behind_the_first_layers() -> None:
    part, n = drawn(Repo(CALL, base=1e4, start=0.5)), 9
    c, (q, k, _) = with_inputs(part, n), some_qkv(n, dtype=torch.float64, heads=3, width=4)
    gate, content, final = part.gate[0], part.content[0], part.final[0]
    theta = torch.zeros(2, 3, n, 2, dtype=torch.float64)
    for b in range(2):
        for i in range(n):
            g, u = gate @ c.x_BTD[b, i], content @ c.x_BTD[b, i]
            z = final @ (g / (1 + torch.exp(-g)) * u)
            theta[b, :, i] = z[:, None] * numbers([1.0, 0.01])
    assert gate.shape == (1, 12)  # an eighth of the width
    got = part.qk(q, k, c)
    close(got.q_BHQK, turned_by(q, theta), atol=1e-12)
    close(got.k_BHSK, turned_by(k, theta), atol=1e-12)
    rope = Rope(CALL, **ROPE)
    first = replace(c, layer=0)
    for one, other in zip(part.qk(q, k, first), rope.qk(q, k, first), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("case", published("kda"))
def test_kda_is_the_published_recurrence(case: dict[str, Any]) -> None:
    n = 40  # three pieces
    q, k = (F.normalize(det(1, 1, n, 4, a=a), dim=-1) for a in (0.7, 1.1))
    log_a, b = -(1 + det(1, 1, n, 4, a=0.9)) / 4, (1 + det(1, 1, n, a=0.5)) / 2
    got = delta_weights(q / 2, k, log_a, b) @ det(1, 1, n, 4, a=0.3)
    close(got[0, 0, case["row"]], numbers(case["want"]), atol=1e-8)


@pytest.mark.parametrize("queries", [1, 7, 33, 70])
def test_kda_by_pieces_is_the_recurrence_token_by_token(queries: int) -> None:
    n = 70
    part = drawn(Kda(CALL))
    c, (q, k, v) = with_inputs(part, n), some_qkv(n, dtype=torch.float64, heads=3, width=4)
    few = q[:, :, n - queries :]
    got = attend(few, k, v, c.of_queries(c.x_BTD, n_queries=queries))
    for b in range(2):
        for h in range(3):
            state = torch.zeros(4, 4, dtype=torch.float64)
            for i in range(n):
                x = c.x_BTD[b, i]
                z = part.up[1].view(3, 4, 4)[h] @ (part.down[1] @ x) + part.c[1].view(3, 4)[h]
                a = torch.exp(-part.log_A[1, h].exp() * torch.log(1 + torch.exp(z)))
                beta = 1 / (1 + torch.exp(-(part.w_b[1, h] @ x)))
                key, query = (F.normalize(F.silu(y[b, h, i]), dim=-1) for y in (k, q))
                state = a[:, None] * state
                state = state + beta * key[:, None] * (v[b, h, i] - key @ state)
                if i >= n - queries:
                    close(got[b, h, i - n + queries], query @ state / 2, atol=1e-12)


@pytest.mark.parametrize("n_decays", [1, 3])  # for all channels, for each
def test_a_memory_that_is_read_in_parts_gives_the_sum_of_the_weights(n_decays: int) -> None:
    n = AT_ONCE + 50
    q, k, v = some_qkv(n, dtype=torch.float64, heads=2, width=3)
    k, few = F.normalize(k, dim=-1), q[:, :, -100:]  # of two parts
    log_a, b = -torch.rand(2, 2, n, n_decays).double() / 50, torch.rand(2, 2, n).double()
    got, want = delta_rule(few, k, v, log_a, b), delta_weights(few, k, log_a, b) @ v
    close(got, want, atol=1e-11)


def test_pose_leaves_out_positions_in_training_alone() -> None:
    part = Pose(CALL, maximum=4.0)
    tokens, x = torch.zeros(2, 16, dtype=torch.int64), torch.zeros(2, 16, 12)
    draws = torch.Generator().manual_seed(1)
    c = AttentionContext.of_call(CALL, tokens, x, training=True, generator=draws)
    longest, starts = 0, set[int]()
    for _ in range(200):
        pos = part.positions(tokens, c)
        steps = pos.diff()
        assert pos[0] == 0
        assert int((steps != 1).sum()) <= 1
        assert int(pos[-1]) < 64
        longest = max(longest, int(pos[-1]))
        starts |= {*(1 + (steps != 1).nonzero().flatten()).tolist()}
    assert longest > 60
    assert starts == {*range(1, 9)}  # at most half of the tokens before the skip
    evaluated = replace(c, training=False, generator=None)
    assert torch.equal(part.positions(tokens, evaluated), torch.arange(16))
    assert part.largest_position(16) == 63
