"""The kernels of attention.py on inputs of their own."""

import math
from dataclasses import replace

import pytest
import torch
from parts import textbook
from small import close, context, dims, layer_of, small_model, some_qkv
from torch import Tensor

from lengthgen.model.attention import BLOCK, attend, distance_table, eager
from lengthgen.model.kernels import flex, fused, max_attended_distance, sdpa_nearest_keys
from lengthgen.schemes import AttentionContext, Part
from lengthgen.schemes.bias.alibi import Alibi
from lengthgen.schemes.mask import Window
from lengthgen.schemes.remap import StreamingLlm
from lengthgen.schemes.rotary.rope import Rope

SHAPE = dims(n_heads=4, train_length=16)


class LearnedBias(Part):
    """A bias of every entry, with a gradient."""

    def __init__(self, length: int) -> None:
        super().__init__(SHAPE)
        self.table = torch.nn.Parameter(torch.randn(4, length, length, dtype=torch.float64))

    def bias(self, c: AttentionContext) -> Tensor:
        return self.table[:, c.rows, c.cols]


class Doubled(Part):
    """Owner of all three explicit hooks: logits doubled, weights halved, values negated."""

    def scores(self, q_BHQK: Tensor, k_BHSK: Tensor, c: AttentionContext) -> Tensor:
        return 2 * super().scores(q_BHQK, k_BHSK, c)

    def weights(self, s_BHQS: Tensor, c: AttentionContext) -> Tensor:
        return super().weights(s_BHQS, c) / 2

    def values(self, w_BHQS: Tensor, v_BHSK: Tensor, c: AttentionContext) -> Tensor:
        return -super().values(w_BHQS, v_BHSK, c)


class Lowered(Part):
    """The same number for all keys, which a softmax does not see."""

    distance_only = True

    def __init__(self, value: float) -> None:
        super().__init__(SHAPE)
        self.value = value

    def bias(self, c: AttentionContext) -> Tensor:
        return torch.full_like(c.distance(), self.value).expand(c.shape.n_heads, -1, -1)


# Parts under which attend() picks each of its kernels for the CPU.
KINDS = {
    "no parts": (),
    "over distances": (Alibi(SHAPE, beyond="extend"),),
    "masked": (Alibi(SHAPE, beyond="extend"), Window(SHAPE, width=2.5, sinks=0)),
    "owners": (Alibi(SHAPE, beyond="extend"), Doubled(SHAPE)),
    "remapped": (
        Alibi(SHAPE, beyond="extend"),
        Rope(SHAPE, base=10000, rotary_percentage=1, layout="half"),
        StreamingLlm(SHAPE, width=30, sinks=2),
    ),
}
GRAD = pytest.mark.parametrize("grad", [True, False])


@pytest.mark.parametrize("length", [20, BLOCK + 20])
def test_owners_of_scores_weights_and_values_replace_them_and_see_biases(length: int) -> None:
    bias, owner = LearnedBias(length), Doubled(SHAPE)
    q, k, v = some_qkv(length, dtype=torch.float64)
    c = context(small_model("nope"), length, dtype=torch.float64)
    want = -textbook(q * 2, k, v, 2 * bias.table) / 2
    torch.testing.assert_close(attend(q, k, v, replace(c, hooks=layer_of(bias, owner))), want)


@pytest.mark.parametrize("queries", [1500, 300])
def test_leaving_out_keys_of_weight_zero_changes_no_bit(queries: int) -> None:
    length, scale = 1500, 8**-0.5
    model = small_model("alibi", dtype=torch.float32)
    c = context(model, length, dtype=torch.float32)
    c = replace(c, hooks=model.scheme.layers[0])
    q, k, v = some_qkv(length, dtype=torch.float32)
    q, rows = q[:, :, -queries:], slice(length - queries, length)
    table = distance_table(c)
    reach_H = max_attended_distance(table, q, k, scale=scale)
    assert reach_H[0] < 800 < reach_H[3] == length
    near = sdpa_nearest_keys(table, q, k, v, reach_H=reach_H, scale=scale, block=512)
    all_keys = sdpa_nearest_keys(table, q, k, v, reach_H=[length] * 4, scale=scale, block=512)
    assert torch.equal(near, all_keys)
    at = replace(c, q_pos=c.q_pos[rows], rows=rows)
    full = eager(q, k, v, at, block=512)
    close(near, full, atol=2e-6)


def test_reach_is_the_distance_at_which_the_bound_falls_104_below_the_own_key() -> None:
    # Largest |q||k| is 2 * 5, own keys give q.k = 2 * 3, so an unknown key may lead by 4:
    # with a bias of -distance, distances up to 104 + 4 count, and 0 is the first of them.
    k = torch.tensor([5.0, *[0.0] * 297, 3.0, 3.0]).view(1, 1, 300, 1)
    q = torch.full((1, 1, 2, 1), 2.0)
    table = -torch.arange(300.0)[None]
    assert max_attended_distance(table, q, k, scale=1.0) == [109]
    assert max_attended_distance(table, q, k, scale=0.5) == [107]
    every_q = q[:, :, :1].expand(-1, -1, 300, -1)  # own keys: 0
    assert max_attended_distance(table, every_q, k, scale=1.0) == [115]


@pytest.mark.parametrize("where", ["q", "k"])
def test_no_key_is_left_out_where_a_query_or_key_is_not_a_number(where: str) -> None:
    q, k, _ = some_qkv(600, dtype=torch.float32)
    table = -10.0 * torch.arange(600.0).expand(4, 600)
    {"q": q, "k": k}[where][1, 2, 300, 0] = math.nan
    reach_H = max_attended_distance(table, q, k, scale=1.0)
    assert reach_H[2] == 600
    assert max(reach_H[0], reach_H[1], reach_H[3]) < 100


@GRAD
@pytest.mark.parametrize("kind", ["over distances", "masked", "owners", "learned"])
def test_a_number_added_to_all_biases_changes_nothing_in_bf16(kind: str, grad: bool) -> None:
    parts = (LearnedBias(600).float(),) if kind == "learned" else KINDS[kind]
    q, k, v = some_qkv(600, dtype=torch.bfloat16)
    c = context(small_model("nope"), 600, dtype=torch.bfloat16)
    with torch.set_grad_enabled(grad):
        want = attend(q, k, v, replace(c, hooks=layer_of(*parts))).float()
        got = attend(q, k, v, replace(c, hooks=layer_of(*parts, Lowered(-30.0)))).float()
    # In bf16 a bias of -30 is a multiple of 1/8: weights would be off by 6 percent.
    assert (got - want).norm() < 1e-3 * want.norm()


@pytest.mark.parametrize("kind", KINDS)
@GRAD
def test_bf16_attention_is_within_rounding_of_fp64(kind: str, grad: bool) -> None:
    layer = layer_of(*KINDS[kind])
    q, k, v = some_qkv(600, dtype=torch.bfloat16)
    c = context(small_model("nope"), 600, dtype=torch.bfloat16)
    exact = replace(c, dtype=torch.float64)
    want = eager(q.double(), k.double(), v.double(), replace(exact, hooks=layer), block=600)
    with torch.set_grad_enabled(grad):
        got = attend(q, k, v, replace(c, hooks=layer)).double()
    # Logits, weights and outputs are rounded once each, at random, to at most 2^-8 relative.
    assert (got - want).norm() < 1.5 * 2**-8 * want.norm()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_with_a_distance_table_equals_the_blocks_and_has_their_gradient() -> None:
    q, k, v = some_qkv(128, dtype=torch.float32, width=16)
    table = torch.randn(4, 128, requires_grad=True)
    far = (torch.arange(128)[:, None] - torch.arange(128)).clamp(min=0)
    weight = torch.randn_like(v)
    got = flex(table, q, k, v, scale=0.25)
    want = textbook(q, k, v, table[:, far])
    close(got, want, atol=1e-5)
    ours, theirs = (torch.autograd.grad((x * weight).sum(), table)[0] for x in (got, want))
    close(ours, theirs, atol=1e-4)


@pytest.mark.parametrize("width", [4, 8, 16])  # of values, next to queries of 8
def test_one_fused_kernel_takes_values_of_any_width(width: int) -> None:
    draws, length = torch.Generator().manual_seed(0), 150
    q, k = torch.randn(2, 1, 2, length, 8, generator=draws)
    v = torch.randn(1, 2, length, width, generator=draws)
    with torch.profiler.profile() as profile:
        got = fused(q, k, v, is_causal=True, scale=8**-0.5)
    called = {event.name for event in profile.events() or ()}
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in called
    close(got, textbook(q, k, v, torch.zeros(())), atol=1e-5)
