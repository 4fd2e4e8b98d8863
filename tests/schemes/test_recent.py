"""Schemes of 2025 and 2026: reference numbers, plain loops, complex numbers.

Evidence: [X] computed by running the reference implementation named, [F] from the formula as
printed. Loops run in float64 and differ by the order of sums alone, 1e-12.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from repository import published
from small import (
    bare_call,
    close,
    dims,
    hidden,
    layer_of,
    small_model,
    some_qkv,
    some_tokens,
)
from torch import Tensor

from lengthgen.model.attention import attend
from lengthgen.schemes.content.exclusive_attention import ExclusiveAttention
from lengthgen.schemes.rotary.evq_cosh import EvqCosh
from lengthgen.schemes.rotary.rope import powers
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


@pytest.mark.parametrize("name", ["stick_breaking", "gated_attention", "tape", "shaw", "alibi"])
def test_exclusive_attention_acts_beside_any_scheme(name: str) -> None:
    word = "+scheme.parts.exclusive_attention={}"
    model, without = small_model(name, words=[word]), small_model(name)
    tokens = some_tokens(12)
    first = hidden(model, tokens)
    assert not torch.allclose(first, hidden(without, tokens))
    # The first token sees itself alone: nothing is left of attention's output.
    for layer in model.scheme.layers:
        layer_part = [part for part in layer.outputs if isinstance(part, ExclusiveAttention)]
        assert len(layer_part) == 1
