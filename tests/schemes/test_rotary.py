"""Rotary parts: reference numbers, HF transformers 5 and x-transformers 2.31, loops.

Evidence: [X] computed by running the reference implementation named, [F] from the formula as
printed. Both libraries compute angles in fp32: frequencies agree to 1e-6 relative, and products of
rotated queries and keys at positions below 64 to 1e-5. What differs by intention is asserted so.
"""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from repository import published
from small import bare_call, close, det, dims, imported, layer_of, rotated, some_qkv
from torch import Tensor

from lengthgen.schemes import AttentionContext, ModelDims, Part, Rotated
from lengthgen.schemes.base import NO_PARTS
from lengthgen.schemes.mask import Bca
from lengthgen.schemes.rotary.fope import Fope
from lengthgen.schemes.rotary.grape_m import GrapeM
from lengthgen.schemes.rotary.p_rope import Hope, PRope
from lengthgen.schemes.rotary.pope import Pope
from lengthgen.schemes.rotary.rope import Rope, powers
from lengthgen.schemes.rotary.rope_scaling import (
    DynamicNtk,
    Llama3,
    Longrope,
    Longrope2,
    Ntk,
    Pi,
    RopeScaling,
    Yarn,
)
from lengthgen.schemes.rotary.xpos import Xpos

T = 512
T512 = dims(64, n_heads=4)


def scaled(part: Part, length: int, *, base: float = 1e4, n_rotated: int | None = None) -> Tensor:
    """Returns the angles per position of a head under the part, in float64."""
    c = bare_call(part.shape, length)
    return part.frequencies(powers(base, n_rotated or part.shape.d_head, c), c)


def logit_factor(part: Part, length: int) -> float:
    """Returns by how much the part multiplies q."""
    c = replace(bare_call(part.shape, length), hooks=NO_PARTS._replace(frequencies=(part,)))
    one = torch.ones(1, 1, 1, 64, dtype=torch.float64)
    return float(part.qk(one, one, c).q_BHQK[0, 0, 0, 0])


def of_transformers(
    rope_type: str, length: int, *, longest: int = T, **arguments: Any
) -> tuple[Tensor, float]:
    """Returns HF's angles per position for heads of 64, and its factor of cos and sin."""
    parameters = {"rope_type": rope_type, "rope_theta": 1e4, **arguments}
    sizes = {"hidden_size": 256, "num_attention_heads": 4, "head_dim": 64}
    given = {"max_position_embeddings": longest, "rope_parameters": parameters}
    config = imported("transformers").LlamaConfig(**sizes, **given)
    functions = imported("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
    omega, factor = functions[rope_type](config, "cpu", seq_len=length)
    return omega.double(), factor


def same(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-6, atol=0)


@pytest.mark.parametrize("s", [1.0, 2.0, 8.0, 32.0])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_scaled_angles_and_logits_are_those_of_transformers(s: float, share: float) -> None:
    n, rotated = int(s * T), int(64 * share)
    bands = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    lambdas = [1 + m / 8 for m in range(rotated // 2)]
    d = math.ceil(0.179246 * rotated)  # 3 turns within 512: 2 pi 10000^(2m/r) = 512 / 3
    lambdas_2 = [s ** min(m / d, 1) for m in range(rotated // 2)]
    long: dict[str, Any] = {"longest": 32 * T, "original_max_position_embeddings": T}

    def far(factors: list[float]) -> dict[str, Any]:
        return {**long, "short_factor": [1.0] * len(factors), "long_factor": factors}

    cases: list[tuple[Part, str, dict[str, Any]]] = [
        (Pi(T512, factor=None), "linear", {}),
        (Yarn(T512, factor=None, beta_fast=32, beta_slow=1), "yarn", long),
        (Llama3(T512, factor=None, **bands), "llama3", {**long, **bands}),
        (Longrope(T512, factor=None, lambdas=lambdas), "longrope", far(lambdas)),
        (longrope2(T512, factor=None, turns=3), "longrope", far(lambdas_2)),
    ]
    for part, kind, arguments in cases:
        want, factor = of_transformers(kind, n, partial_rotary_factor=share, factor=s, **arguments)
        same(scaled(part, n, n_rotated=rotated), want)
        assert logit_factor(part, n) == pytest.approx(factor**2, rel=1e-12)


@pytest.mark.parametrize("f", [1.0, 2.0, 8.0])
@pytest.mark.parametrize("length", [100, T, T + 1, 4 * T, 32 * T])
def test_dynamic_ntk_angles_are_those_of_transformers(f: float, length: int) -> None:
    want, factor = of_transformers("dynamic", length, factor=f)
    same(scaled(DynamicNtk(T512, factor=f), length), want)
    assert factor == 1


@pytest.mark.parametrize("share", [0.25, 0.3, 0.75, 1.0])
def test_p_rope_is_the_proportional_rope_of_transformers(share: float) -> None:
    want, _ = of_transformers("proportional", 64, partial_rotary_factor=share)
    same(scaled(PRope(T512, share=share), 64), want)


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_both_layouts_of_rope_are_those_of_transformers(share: float) -> None:
    n = 64
    q, k, _ = some_qkv(n, dtype=torch.float64, width=64)
    c = bare_call(T512, n)
    r = int(64 * share)
    theta = torch.arange(n, dtype=torch.float64)[:, None] * powers(1e4, r, c)

    half = Rope(T512, base=1e4, rotary_percentage=share, layout="half").qk(q, k, c)
    twice = theta.repeat(1, 2)
    models = ["gpt_neox"] + ["llama"] * (share == 1)
    for model in models:
        module = imported(f"transformers.models.{model}.modeling_{model}")
        theirs = module.apply_rotary_pos_emb(q, k, twice.cos()[None], twice.sin()[None])
        for got, want in zip(half, theirs, strict=True):
            close(got, want, atol=1e-12)

    interleaved = Rope(T512, base=1e4, rotary_percentage=share, layout="interleaved").qk(q, k, c)
    gptj = imported("transformers.models.gptj.modeling_gptj").apply_rotary_pos_emb
    for got, x in zip(interleaved, (q, k), strict=True):
        turned = gptj(x.transpose(1, 2)[..., :r], theta.sin()[None], theta.cos()[None])
        close(got[..., :r], turned.transpose(1, 2), atol=1e-12)
        assert torch.equal(got[..., r:], x[..., r:])


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


def plain(of: ModelDims = T512, *, base: float = 1e4) -> Tensor:
    return powers(base, of.d_head, bare_call(of, 1))


SCALINGS: dict[type[RopeScaling], dict[str, Any]] = {
    Pi: {},
    Ntk: {},
    Yarn: {"beta_fast": 32, "beta_slow": 1},
    Llama3: {"low_freq_factor": 1, "high_freq_factor": 4},
    Longrope: {"lambdas": [1 + m / 8 for m in range(32)]},
    Longrope2: {"critical_turns": 3.0, "excess": 1.5},
}


def every_scaling(factor: float | None, of: ModelDims = T512, **more: int) -> list[RopeScaling]:
    """Returns each part with a factor s."""
    return [kind(of, factor=factor, **each, **more) for kind, each in SCALINGS.items()]


def longrope2(of: ModelDims, *, factor: float | None, turns: float) -> Longrope2:
    return Longrope2(of, factor=factor, critical_turns=turns, excess=1.0)


@pytest.mark.parametrize("case", published("ntk_bases"))
def test_ntk_scaling_is_rope_with_the_published_base(case: dict[str, Any]) -> None:
    s = case["s"]
    for part, length in ((Ntk(T512, factor=s), 100), (Ntk(T512, factor=None), 512 * s)):
        want = plain(base=case["base"])
        torch.testing.assert_close(scaled(part, length), want, rtol=1e-6, atol=0)
    # The release of dynamic NTK has the same at L/T = s with factor 1.
    dynamic = scaled(DynamicNtk(T512, factor=1.0), 512 * s)
    assert torch.equal(dynamic, scaled(Ntk(T512, factor=None), 512 * s))


@pytest.mark.parametrize("case", published("yarn_bounds"))
def test_yarn_interpolates_between_the_published_pairs(case: dict[str, Any]) -> None:
    of = dims(case["d_head"], train_length=case["train_length"])
    part = Yarn(of, factor=None, beta_fast=32, beta_slow=1)
    for dtype in (torch.float32, torch.float64):
        omega = powers(case["base"], of.d_head, bare_call(of, 1, dtype=dtype))
        assert [float(bound) for bound in part.bounds(omega)] == case["want"]


def test_yarn_over_other_scaling_takes_each_pair_by_its_own_turns() -> None:
    of = dims(128, train_length=8192)  # of Llama 3
    scaling = Llama3(of, factor=8, low_freq_factor=1, high_freq_factor=4)
    omega, part = scaled(scaling, 1, base=5e5), Yarn(of, factor=2, beta_fast=32, beta_slow=1)
    ratio, turns = omega / part.frequencies(omega, bare_call(of, 1)), part.turns(omega)
    torch.testing.assert_close(ratio[turns <= 1], torch.full_like(ratio[turns <= 1], 2))
    torch.testing.assert_close(ratio[turns >= 32], torch.ones_like(ratio[turns >= 32]))
    assert min(int((turns <= 1).sum()), int((turns >= 32).sum())) > 10


@pytest.mark.parametrize("case", published("longrope2_critical_pairs"))
def test_longrope2_divides_from_the_published_pair_on_by_all_of_s(case: dict[str, Any]) -> None:
    of = dims(case["d_rotated"], train_length=case["train_length"])
    base, s = case["base"], 64.0
    part = longrope2(of, factor=s, turns=case["turns"])
    ratio = plain(of, base=base) / scaled(part, 1, base=base)
    whole = torch.isclose(ratio, torch.tensor(s, dtype=torch.float64), rtol=1e-12)
    assert int(whole.long().argmax()) == case["want"] == int((~whole).sum())


@pytest.mark.parametrize("case", published("longrope2_factors"))
def test_longrope2_has_the_published_factors_before_the_critical_pair(case: dict[str, Any]) -> None:
    of = dims(case["d_rotated"], train_length=case["train_length"])
    part = longrope2(of, factor=case["factor"], turns=case["turns"])
    ratio = plain(of, base=case["base"]) / scaled(part, 1, base=case["base"])
    want = torch.tensor(case["want"], dtype=torch.float64)
    torch.testing.assert_close(ratio[: len(want)], want, rtol=1e-8, atol=0)
    assert torch.equal(scaled(part, 1), scaled(part, 10**6))


def test_a_fixed_factor_is_that_of_every_length() -> None:
    for part, by_length in zip(every_scaling(4.0), every_scaling(None), strict=True):
        assert not part.depends_on_length
        for length in (16, 512, 5000):
            assert torch.equal(scaled(part, length), scaled(by_length, 2048))
            assert logit_factor(part, length) == logit_factor(by_length, 2048)


@pytest.mark.parametrize("factor", [4.0, None])
def test_a_model_trained_on_at_4T_is_scaled_as_of_its_original_length(factor: float | None) -> None:
    """As original_max_position_embeddings of HF transformers."""
    longer, original = dims(64, train_length=2048), {"original_max_position_embeddings": 512}
    later = [*every_scaling(factor, longer, **original), DynamicNtk(longer, factor=4.0, **original)]
    first = [*every_scaling(factor), DynamicNtk(T512, factor=4.0)]
    for ours, want in zip(later, first, strict=True):
        for length in (512, 2048, 4096):
            assert torch.equal(scaled(ours, length), scaled(want, length))
            assert logit_factor(ours, length) == logit_factor(want, length)


def test_pairs_that_stand_still_change_no_bound_of_yarn() -> None:
    yarn = Yarn(T512, factor=8.0, beta_fast=32.0, beta_slow=1.0)
    rope = Rope(T512, base=1e4, rotary_percentage=1.0, layout="half")
    whole, halved = scaled(rope, 512), scaled(Hope(T512), 512)
    assert (halved == 0).any()
    assert [*map(float, yarn.bounds(halved))] == [*map(float, yarn.bounds(whole))]


def test_hope_keeps_the_pairs_that_turn_within_t_which_are_half_of_them_at_512() -> None:
    # [F] d = 64, base 10000, T = 512: 16 of 32 pairs; p-RoPE with 0.75 keeps 24
    hope = scaled(Hope(T512), 512)
    assert int((hope > 0).sum()) == 16
    assert torch.equal(hope, scaled(PRope(T512, share=0.5), 512))
    assert int((scaled(PRope(T512, share=0.75), 512) > 0).sum()) == 24
    assert int((scaled(Hope(dims(64, train_length=7)), 7) > 0).sum()) == 1


def product(x: Rotated) -> Tensor:
    """Returns the logits before their scale."""
    return x.q_BHQK @ x.k_BHSK.mT


class Still(Part):
    """Stops all rotation."""

    def frequencies(self, omega_R: Tensor, c: AttentionContext) -> Tensor:
        return torch.zeros_like(omega_R)


def xpos(of: ModelDims, *, scale_base: float = 512.0) -> Xpos:
    return Xpos(of, base=1e4, scale_base=scale_base, gamma=0.4)


def decay(of: ModelDims, distance: int, *, scale_base: float = 512.0) -> Tensor:
    """Returns the factor of every pair in the product of a query and a key that far before it."""
    pos = {"q_pos": torch.tensor([distance]), "k_pos": torch.tensor([0])}
    c = replace(bare_call(of, 1), **pos, hooks=NO_PARTS._replace(frequencies=(Still(of),)))
    one = torch.ones(1, 1, 1, of.d_head, dtype=torch.float64)
    q, k = xpos(of, scale_base=scale_base).qk(one, one, c)
    return (q * k)[0, 0, 0, 0::2]


@pytest.mark.parametrize("case", published("xpos_decays"))
def test_xpos_pairs_decay_as_published(case: dict[str, Any]) -> None:
    got = decay(dims(case["d_head"]), case["distance"], scale_base=case["scale_base"])
    want = torch.tensor(case["want"], dtype=torch.float64)
    torch.testing.assert_close(got[case["pairs"]], want, rtol=5e-5, atol=0)  # 5 digits


def test_xpos_logits_are_those_of_torchscale() -> None:
    # [X] microsoft/torchscale 4d1e0e8 in fp32; row 5.
    q, k = (det(1, 1, 6, 8, a=a, b=0.3) for a in (0.7, 1.1))
    logits = product(xpos(dims(8)).qk(q, k, bare_call(dims(8), 6)))
    want = [2.65587, -0.859339, 1.167529, 3.330059, -2.139442, 2.429522]
    close(logits[0, 0, 5], torch.tensor(want, dtype=torch.float64), atol=2e-6)


def test_xpos_has_no_value_where_its_factors_leave_float32() -> None:
    part = xpos(T512)
    assert part.unsupported_reason(65_722) is None
    said = "xpos has factors past the range of float32 beyond 65722 tokens"
    assert part.unsupported_reason(65_723) == said
    assert xpos(T512, scale_base=1024.0).unsupported_reason(131_072) is None


def test_a_query_sees_its_window_of_half_t_and_the_one_before() -> None:
    c = bare_call(dims(8, train_length=4), 8)
    part = Bca(c.shape, window=0.5)
    want = [[j <= i and i // 2 - j // 2 <= 1 for j in range(8)] for i in range(8)]
    assert torch.equal(part.visible(c).tril(), torch.tensor(want))
    block = part.visible(replace(c, rows=slice(5, 7), cols=slice(0, 7)))
    assert torch.equal(block, part.visible(c)[5:7, :7])
    assert Bca(T512, window=0.5).window == 256


def test_pope_has_phases_of_all_layers_or_of_each() -> None:
    of = dims(4, n_heads=2, n_layers=3)
    shared, own = (Pope(of, base=1e4, share_layers=share).double() for share in (True, False))
    q, k, _ = some_qkv(5, dtype=torch.float64, heads=2, width=4)
    c = replace(bare_call(of, 5), layer=2)
    with torch.no_grad():
        own.phi.copy_(-3 * (1 + det(*own.phi.shape, a=2.3)))
        shared.phi[0] = own.phi[2]
        assert torch.equal(product(own.qk(q, k, c)), product(shared.qk(q, k, c)))


def test_fope_multiplies_channel_pairs_by_fourier_series_in_the_position() -> None:
    shape = dims(8, n_heads=3, n_layers=2, train_length=64)  # angles 1, 0.1, 0.01, 0.001
    part = Fope(shape, base=1e4, gain=0.6, draw=1).double()
    x = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(1)).double()
    pos = torch.tensor([0, 1, 7, 40, 900])
    c = replace(bare_call(shape, 5), q_pos=pos, k_pos=pos, layer=1)
    q, k = part.qk(x, 2 * x, c)
    assert part.coefficients.shape == (2, 2, 3, 2, 2)  # of 2 pi / 64 = 0.098 at least: two
    A, B = part.coefficients[:, 1]
    for h in range(3):
        for t, p in enumerate(pos.tolist()):
            for m in range(4):
                cos, sin = 1.0, 0.0
                if m < 2:
                    cos = sum(float(A[h, n, m]) * math.cos(p * 0.1**n) for n in range(2))
                    sin = sum(float(B[h, n, m]) * math.sin(p * 0.1**n) for n in range(2))
                a, b = x[:, h, t, m], x[:, h, t, m + 4]
                close(q[:, h, t, m], a * cos - b * sin, atol=1e-12)
                close(q[:, h, t, m + 4], a * sin + b * cos, atol=1e-12)
    close(k, 2 * q, atol=1e-12)


def test_grape_m_begins_as_rope_and_turns_by_its_trained_angles() -> None:
    shape = dims(8, n_heads=2, n_layers=2)
    q, k, _ = some_qkv(9, dtype=torch.float64, heads=2, width=8)
    part, c = GrapeM(shape, base=1e4).double(), bare_call(shape, 9)
    rope = Rope(shape, base=1e4, rotary_percentage=1.0, layout="half")
    got, want = rotated(layer_of(part), q, k, c), rotated(layer_of(rope), q, k, c)
    for one, other in zip(got, want, strict=True):
        close(one, other, atol=1e-6)  # the angles' logarithms were drawn up in float32
    omega = [0.7, 0.3, 2.0, 0.05]
    with torch.no_grad():
        part.log_omega[1] = torch.tensor(omega, dtype=torch.float64).log()
    got_q, got_k = rotated(layer_of(part), q, k, replace(c, layer=1))
    pos, turn = torch.arange(9.0), torch.tensor(omega, dtype=torch.float64)
    want_q, want_k = (rope.rotate(x, pos[:, None] * turn) for x in (q, k))
    close(got_q, want_q, atol=1e-12)
    close(got_k, want_k, atol=1e-12)
