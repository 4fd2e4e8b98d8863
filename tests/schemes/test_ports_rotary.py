"""Rotary parts against two libraries: HF transformers 5 and x-transformers 2.31.

Both compute angles in fp32, so that frequencies agree to 1e-6 relative, and products of rotated
queries and keys at positions below 64 to 1e-5. What differs by intention is asserted as such.
"""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from small import bare_call, close, dims, imported, some_qkv
from torch import Tensor

from lengthgen.schemes import Part
from lengthgen.schemes.base import NO_PARTS
from lengthgen.schemes.rotary.p_rope import PRope
from lengthgen.schemes.rotary.pope import Pope
from lengthgen.schemes.rotary.rope import Rope, powers
from lengthgen.schemes.rotary.rope_scaling import (
    DynamicNtk,
    Llama3,
    Longrope,
    Longrope2,
    Ntk,
    Pi,
    Yarn,
)
from lengthgen.schemes.rotary.xpos import Xpos

T = 512
OF = dims(64, n_heads=4)


def scaled(part: Part, length: int, *, n_rotated: int = 64) -> Tensor:
    c = bare_call(part.shape, length)
    return part.frequencies(powers(1e4, n_rotated, c), c)


def logit_factor(part: Part, length: int) -> float:
    """Returns by how much the part multiplies q."""
    c = replace(bare_call(part.shape, length), hooks=NO_PARTS._replace(frequencies=(part,)))
    one = torch.ones(1, 1, 1, 64, dtype=torch.float64)
    return float(part.qk(one, one, c).q_BHQK[0, 0, 0, 0])


def llama_config(rope_type: str, *, longest: int, **arguments: Any) -> Any:
    """Returns the configuration of a Llama with heads of 64 and that kind of RoPE."""
    parameters = {"rope_type": rope_type, "rope_theta": 1e4, **arguments}
    return imported("transformers").LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        head_dim=64,
        max_position_embeddings=longest,
        rope_parameters=parameters,
    )


def of_transformers(
    rope_type: str, length: int, *, longest: int = T, **arguments: Any
) -> tuple[Tensor, float]:
    """Returns HF's angles per position, and its factor of cos and sin."""
    functions = imported("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
    config = llama_config(rope_type, longest=longest, **arguments)
    omega, factor = functions[rope_type](config, "cpu", seq_len=length)
    return omega.double(), factor


def same(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-6, atol=0)


LONG: dict[str, Any] = {"longest": 32 * T, "original_max_position_embeddings": T}


@pytest.mark.parametrize("s", [1.0, 2.0, 8.0, 32.0])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_scaled_angles_and_logits_are_those_of_transformers(s: float, share: float) -> None:
    n, rotated = int(s * T), int(64 * share)
    partial: dict[str, Any] = {"partial_rotary_factor": share, "factor": s}

    want, factor = of_transformers("linear", n, **partial)
    same(scaled(Pi(OF, factor=None), n, n_rotated=rotated), want)
    assert factor == 1

    want, factor = of_transformers("yarn", n, **LONG, **partial)
    yarn = Yarn(OF, factor=None, beta_fast=32, beta_slow=1)
    same(scaled(yarn, n, n_rotated=rotated), want)
    assert logit_factor(yarn, n) == pytest.approx(factor**2, rel=1e-12)

    bands: dict[str, Any] = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    want, factor = of_transformers("llama3", n, **LONG, **bands, **partial)
    part = Llama3(OF, factor=None, **bands)
    same(scaled(part, n, n_rotated=rotated), want)
    assert factor == 1

    lambdas = [1 + m / 8 for m in range(rotated // 2)]
    by_length = {"short_factor": [1.0] * len(lambdas), "long_factor": lambdas}
    want, factor = of_transformers("longrope", n, **LONG, **by_length, **partial)
    part = Longrope(OF, factor=None, lambdas=lambdas)
    same(scaled(part, n, n_rotated=rotated), want)
    assert logit_factor(part, n) == pytest.approx(factor**2, rel=1e-12)

    d = math.ceil(0.179246 * rotated)  # 3 turns within 512: 2 pi 10000^(2m/r) = 512 / 3
    by_length["long_factor"] = [s ** min(m / d, 1) for m in range(rotated // 2)]
    want, factor = of_transformers("longrope", n, **LONG, **by_length, **partial)
    part = Longrope2(OF, factor=None, critical_turns=3, excess=1)
    same(scaled(part, n, n_rotated=rotated), want)
    assert logit_factor(part, n) == pytest.approx(factor**2, rel=1e-12)


@pytest.mark.parametrize("f", [1.0, 2.0, 8.0])
@pytest.mark.parametrize("length", [100, T, T + 1, 4 * T, 32 * T])
def test_dynamic_ntk_angles_are_those_of_transformers(f: float, length: int) -> None:
    want, factor = of_transformers("dynamic", length, factor=f)
    same(scaled(DynamicNtk(OF, factor=f), length), want)
    assert factor == 1


def test_dynamic_ntk_of_transformers_remembers_its_longest_call_and_ours_does_not() -> None:
    # It goes back only for a call shorter than T.
    module = imported("transformers.models.llama.modeling_llama").LlamaRotaryEmbedding(
        llama_config("dynamic", longest=T, factor=1.0)
    )
    angles: dict[int, Tensor] = {}
    for length in (1024, 4096, 1024, 100):
        module(torch.zeros(1), torch.arange(length)[None])
        if length not in angles:
            angles[length] = module.inv_freq.double()
        else:
            same(module.inv_freq.double(), angles[4096])
    for length, want in angles.items():
        same(scaled(DynamicNtk(OF, factor=1.0), length), want)


@pytest.mark.parametrize("share", [0.25, 0.3, 0.75, 1.0])
def test_p_rope_is_the_proportional_rope_of_transformers(share: float) -> None:
    want, _ = of_transformers("proportional", 64, partial_rotary_factor=share)
    same(scaled(PRope(OF, share=share), 64), want)


def test_yarn_scales_all_of_a_partly_rotated_head_and_transformers_its_rotated_part() -> None:
    # The paper's temperature is the logit's; a factor of cos and sin reaches rotated channels only.
    n = 16
    rope = Rope(OF, base=1e4, rotary_percentage=0.5, layout="half")
    yarn = Yarn(OF, factor=8.0, beta_fast=32, beta_slow=1)
    c = replace(bare_call(OF, n), hooks=NO_PARTS._replace(frequencies=(yarn,)))
    q, k, _ = some_qkv(n, dtype=torch.float64, width=64)
    ours = yarn.qk(*rope.qk(q, k, c), c)
    angles, mscale = of_transformers("yarn", n, factor=8.0, partial_rotary_factor=0.5, **LONG)
    theta = torch.arange(n)[:, None] * angles.repeat(2)
    apply = imported("transformers.models.gpt_neox.modeling_gpt_neox").apply_rotary_pos_emb
    theirs = apply(q, k, theta.cos()[None] * mscale, theta.sin()[None] * mscale)
    rotated, rest = slice(0, 32), slice(32, 64)

    def product(qk: tuple[Tensor, Tensor], channels: slice) -> Tensor:
        return qk[0][..., channels] @ qk[1][..., channels].mT

    close(product(ours, rotated), product(theirs, rotated), atol=1e-5)
    close(product(ours, rest), product(theirs, rest) * mscale**2, atol=1e-5)
    assert mscale == pytest.approx(0.1 * math.log(8) + 1)


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_both_layouts_of_rope_are_those_of_transformers(share: float) -> None:
    n = 64
    q, k, _ = some_qkv(n, dtype=torch.float64, width=64)
    c = bare_call(OF, n)
    r = int(64 * share)
    theta = torch.arange(n, dtype=torch.float64)[:, None] * powers(1e4, r, c)

    half = Rope(OF, base=1e4, rotary_percentage=share, layout="half").qk(q, k, c)
    twice = theta.repeat(1, 2)
    models = ["gpt_neox"] + ["llama"] * (share == 1)
    for model in models:
        module = imported(f"transformers.models.{model}.modeling_{model}")
        theirs = module.apply_rotary_pos_emb(q, k, twice.cos()[None], twice.sin()[None])
        for got, want in zip(half, theirs, strict=True):
            close(got, want, atol=1e-12)

    interleaved = Rope(OF, base=1e4, rotary_percentage=share, layout="interleaved").qk(q, k, c)
    gptj = imported("transformers.models.gptj.modeling_gptj").apply_rotary_pos_emb
    for got, x in zip(interleaved, (q, k), strict=True):
        turned = gptj(x.transpose(1, 2)[..., :r], theta.sin()[None], theta.cos()[None])
        close(got[..., :r], turned.transpose(1, 2), atol=1e-12)
        assert torch.equal(got[..., r:], x[..., r:])


def of_x_transformers(q: Tensor, k: Tensor, **arguments: Any) -> tuple[Tensor, Tensor]:
    """Returns q and k as x-transformers rotates them, in fp32."""
    module = imported("x_transformers.x_transformers")
    rotary = module.RotaryEmbedding(q.shape[-1], **arguments)
    angles, factor = rotary.forward_from_seq_len(q.shape[2])
    inverse = factor**-1 if isinstance(factor, Tensor) else factor
    return (
        module.apply_rotary_pos_emb(q.float(), angles, factor).double(),
        module.apply_rotary_pos_emb(k.float(), angles, inverse).double(),
    )


@pytest.mark.parametrize("n", [63, 64])
def test_rope_scalings_and_xpos_are_those_of_x_transformers(n: int) -> None:
    of = dims(32, n_heads=4)
    q, k, _ = some_qkv(n, dtype=torch.float64, width=32)
    c = bare_call(of, n)
    rope = Rope(of, base=1e4, rotary_percentage=1.0, layout="interleaved")
    acting: list[tuple[dict[str, Any], tuple[Part, ...]]] = [
        ({}, ()),
        ({"interpolation_factor": 4.0}, (Pi(of, factor=4.0),)),
        ({"base_rescale_factor": 4.0}, (Ntk(of, factor=4.0),)),
    ]
    for arguments, parts in acting:
        at = replace(c, hooks=NO_PARTS._replace(frequencies=parts))
        theirs = of_x_transformers(q, k, **arguments)
        for got, want in zip(rope.qk(q, k, at), theirs, strict=True):
            close(got, want, atol=3e-5)

    xpos = Xpos(of, base=1e4, scale_base=16.0, gamma=0.4)
    ours, theirs = xpos.qk(q, k, c), of_x_transformers(q, k, use_xpos=True, scale_base=16)
    # Its centre is L//2, ours (L-1)/2: other queries and keys, but the same logits.
    off = (n - 1) / 2 - n // 2
    zeta = ((torch.arange(0, 32, 2) + 0.4 * 32) / (1.4 * 32)).double().repeat_interleave(2)
    torch.testing.assert_close(ours.q_BHQK * zeta ** (off / 16), theirs[0], rtol=1e-5, atol=1e-4)
    logits = (ours.q_BHQK @ ours.k_BHSK.mT).tril()
    torch.testing.assert_close(logits, (theirs[0] @ theirs[1].mT).tril(), rtol=1e-5, atol=1e-4)


def test_pope_is_the_polar_embedding_of_x_transformers() -> None:
    n, of = 64, dims(32, n_heads=4)
    module = imported("x_transformers.x_transformers")
    polar = module.PolarEmbedding(32, 4)
    part = Pope(of, base=1e4, share_layers=True)
    # Also past the bounds: it clamps the phase whenever it is used, we after every step.
    phi = torch.linspace(-8, 2, 4 * 32).view(4, 1, 32)
    q, k, _ = some_qkv(n, dtype=torch.float64, width=32)
    with torch.no_grad():
        polar.learned_bias.copy_(phi)
        part.phi.copy_(phi.transpose(0, 1))
        part.clamp_parameters()
        angles, bias = polar(torch.arange(n))
        ours = part.qk(q, k, bare_call(of, n))
        close(ours.q_BHQK, module.apply_polar_pos_emb(q, angles), atol=3e-5)
        close(ours.k_BHSK, module.apply_polar_pos_emb(k, angles + bias), atol=3e-5)
