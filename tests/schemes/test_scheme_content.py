"""Attention that depends on the content: reference numbers, plain loops, gradients.

Evidence: [X] computed by running the reference implementation named, [F] from the formula as
printed. Tolerance 2e-6 where numbers have six decimals. The loops are in float64, one query and
one key at a time; what they are compared with differs by the order of sums alone, 1e-12.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import pytest
import torch
from parts import Sloped
from small import close, det, dims, hidden, small_config, some_qkv, some_tokens
from torch import Tensor
from torch.autograd import gradcheck

from lengthgen.errors import UserError
from lengthgen.model.attention import attend
from lengthgen.model.build import create
from lengthgen.schemes import AttentionContext, ModelDims, Part, Scheme, logits
from lengthgen.schemes.content.cope import Cope, add_counted_, at_counted_positions
from lengthgen.schemes.content.dape import Dape
from lengthgen.schemes.content.fox import Fox
from lengthgen.schemes.content.stick_breaking import StickBreaking, broken
from lengthgen.schemes.relative.shaw import Shaw

LENGTH = 11


def det_qkv(length: int) -> list[Tensor]:
    return [det(1, 1, length, 4, a=a) for a in (0.7, 1.1, 0.3)]


def shape_of(n_heads: int, *, d_model: int = 8, n_layers: int = 1) -> ModelDims:
    return dims(4, d_model=d_model, n_heads=n_heads, n_layers=n_layers, train_length=16)


def shaw(shape: ModelDims, *, clip: int) -> Shaw:
    return Shaw(shape, clip=clip, share_layers=False).double()


def cope(shape: ModelDims, *, n_positions: int, scaled: bool = False) -> Cope:
    how: Literal["scaled", "unscaled"] = "scaled" if scaled else "unscaled"
    part = Cope(shape, n_positions=n_positions, position_logits=how, share_layers=False).double()
    torch.nn.init.normal_(part.E)
    return part


def call(parts: Sequence[Part], x_BTD: Tensor, *, n_last: int) -> AttentionContext:
    """Returns the context of the last queries of a call on x, whose dtype is the model's."""
    B, length = x_BTD.shape[:2]
    scheme, shape, first = scheme_of(parts), parts[0].shape, length - n_last
    tokens = torch.zeros(B, length, dtype=torch.int64)
    c = AttentionContext.of_call(shape, tokens, x_BTD, training=False, generator=None)
    pos = scheme.positions(tokens, c)
    c = replace(c, pos=pos, q_pos=pos[..., first:], k_pos=pos, rows=slice(first, length))
    return replace(c, hooks=scheme.layers[0])


def attended(parts: Sequence[Part], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Returns the attention output of the last queries under these parts."""
    x = torch.zeros(len(k), k.shape[2], 1, dtype=torch.float64)
    c = call(parts, x, n_last=q.shape[2])
    return attend(c.hooks, q, k, v, c)


def scheme_of(parts: Sequence[Part]) -> Scheme:
    return Scheme({type(part).__name__: part for part in parts}, layers=None, n_layers=1)


def slowly(
    keys: Callable[[int, int, int], Tensor],
    q: Tensor,
    k: Tensor,
    value: Callable[[int, int, int, int], Tensor],
) -> Tensor:
    """Returns softmax attention, one number at a time.

    keys(b, h, i) are the logits of keys 0 ... i, value(b, h, i, j) what query i gets of key j.
    """
    before = k.shape[2] - q.shape[2]
    rows: list[Tensor] = []
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(before, k.shape[2]):
                w = keys(b, h, i).softmax(-1)
                rows.append(sum((w[j] * value(b, h, i, j) for j in range(i + 1)), torch.zeros(())))
    return torch.stack(rows).view(*q.shape[:3], -1)


def last_queries(n: int, *, heads: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = some_qkv(LENGTH, dtype=torch.float64, heads=heads, width=4)
    return q[:, :, LENGTH - n :], k, v


def test_shaw_reads_the_rows_of_the_past_of_tensor2tensors_tables() -> None:
    # [F] tensor2tensor bafdc1b, layers/common_attention.py:1670-1827, k = 2, d = 4: its row of a
    # key is clip(j-i, -2, 2) + 2, so that the past has rows 2, 1, 0.
    part = shaw(shape_of(1), clip=2)
    with torch.no_grad():
        part.aK.copy_(det(5, 4, a=0.41)[[2, 1, 0]])
        part.aV.copy_(det(5, 4, a=0.61)[[2, 1, 0]])
    q, k, v = det_qkv(5)
    c = call([part], torch.zeros(1, 5, 1).double(), n_last=5)
    s = logits(q, k, replace(c, keys_HNK=part.relative_keys(c)))
    want = [-0.087252, 1.542576, 0.966063, -1.250333, -0.312897]
    close(s[0, 0, 4], torch.tensor(want).double(), atol=2e-6)
    want = [1.017392, 1.306797, 1.260776, 0.86743]
    close(attended([part], q, k, v)[0, 0, 4], torch.tensor(want).double(), atol=2e-6)


def test_cope_counts_positions_as_published() -> None:
    # [X] facebookresearch/RAM e6f051f, projects/cope, row 5 before the clamp: z[n] = n gives them.
    q, k, _ = det_qkv(6)
    z = torch.arange(8, dtype=torch.float64).expand(1, 1, 6, 8)
    got = at_counted_positions(q @ k.transpose(-1, -2) / 2, z, own=0)[0, 0, 5]
    want = [2.912324, 2.190839, 1.858913, 1.486503, 0.751476, 0.277762]
    close(got, torch.tensor(want).double(), atol=2e-6)


@pytest.mark.parametrize(
    ("scaled", "want"),
    [  # [X] facebookresearch/RAM e6f051f with and without --cope-nodiv; DAPE's port: the first
        (False, [-0.293778, -0.289484, -0.259332, -0.206014]),
        (True, [-0.228394, -0.212377, -0.177388, -0.126554]),
    ],
)
def test_cope_is_the_papers_function_or_the_releases(scaled: bool, want: list[float]) -> None:
    part = cope(shape_of(1), n_positions=4, scaled=scaled)
    with torch.no_grad():
        part.E.copy_(det(1, 4, 4, a=0.47))
    got = attended([part], *det_qkv(6))[0, 0, 5]
    close(got, torch.tensor(want).double(), atol=2e-6)


@pytest.mark.parametrize("n_last", [LENGTH, 3])
@pytest.mark.parametrize("n_positions", [2, 4, 64])
@pytest.mark.parametrize("biased", [False, True])
def test_cope_equals_counting_key_by_key(n_last: int, n_positions: int, biased: bool) -> None:
    part = cope(shape_of(3), n_positions=n_positions)
    parts = [part, Sloped(part.shape)] if biased else [part]
    q, k, v = last_queries(n_last)

    def keys(b: int, h: int, i: int) -> Tensor:
        own = q[b, h, i - LENGTH + n_last]
        s = [own @ k[b, h, j] / 2 for j in range(i + 1)]
        z = own @ part.E[0]
        counted: list[Tensor] = []
        for j in range(i + 1):
            p = min(sum(float(s[t].sigmoid()) for t in range(j, i + 1)), n_positions - 1)
            low, high = math.floor(p), math.ceil(p)
            between = z[low] if low == high else (high - p) * z[low] + (p - low) * z[high]
            counted.append(s[j] + between - biased * (h + 1) * (i - j) / 10)  # gates see no bias
        return torch.stack(counted)

    want = slowly(keys, q, k, lambda b, h, i, j: v[b, h, j])
    close(attended(parts, q, k, v), want, atol=1e-12)


@pytest.mark.parametrize(("n_queries", "n_positions"), [(6, 8), (6, 2), (2, 3)])
def test_cope_has_the_gradient_of_its_formula(n_queries: int, n_positions: int) -> None:
    generator = torch.Generator().manual_seed(2)
    s = torch.randn(2, 2, n_queries, 6, generator=generator, dtype=torch.float64)
    z = torch.randn(2, 2, n_queries, n_positions, generator=generator, dtype=torch.float64)

    def counted(s: Tensor, z: Tensor) -> Tensor:
        return at_counted_positions(s, z, own=6 - n_queries)

    assert gradcheck(counted, (s.requires_grad_(), z.requires_grad_()))


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 2e-6), (torch.float64, 1e-14)])
@pytest.mark.parametrize("lower", [0.0, 3.0, 12.0])  # gates of a half; of 0.05: more keys; of 0
def test_cope_counts_no_farther_than_the_last_position(
    lower: float, dtype: torch.dtype, atol: float
) -> None:
    generator = torch.Generator().manual_seed(2)
    s = torch.randn(2, 2, 9, 900, generator=generator, dtype=dtype) - lower
    s[1, 0, 4] -= 3  # one query that needs more keys than the others
    z = torch.randn(2, 2, 9, 8, generator=generator, dtype=dtype)
    want = s + at_counted_positions(s, z, own=891)
    with torch.no_grad():
        add_counted_(s, z, own=891)
    close(s, want, atol=atol)


def stick_weights(q: Tensor, k: Tensor) -> Tensor:
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
    s = (q @ k.transpose(-1, -2) / 2).masked_fill(~seen, -math.inf)
    return broken(s, own=k.shape[2] - q.shape[2])


def test_sticks_break_as_published() -> None:
    # [X] shawntan/stickbreaking-attention 3147a38, sb_ref.py: weights and output without the rest,
    # which it returns apart.
    q, k, v = det_qkv(5)
    w = stick_weights(q, k)[0, 0]
    rest = w.diagonal()
    want = torch.tensor([0.029903, 0.222127, 0.415002, 0.267343]).double()
    close(w[4, :4], want, atol=2e-6)
    want = torch.tensor([0.223902, 0.058758, -0.111635, -0.272055]).double()
    close(w[4, :4] @ v[0, 0, :4], want, atol=2e-6)
    close(rest, torch.tensor([1, 0.532653, 0.167282, 0.130218, 0.065625]).double(), atol=2e-6)
    close(attended([StickBreaking(shape_of(1))], q, k, v)[0, 0, 0], v[0, 0, 0], atol=0)


class Every3rd(Part):
    """Hides two keys in three, the query's own not among them."""

    def visible(self, c: AttentionContext) -> Tensor:
        d = c.distance()
        return (d == 0) | (d % 3 == 1)


@pytest.mark.parametrize("n_last", [LENGTH, 3])
@pytest.mark.parametrize("hiding", [False, True])
def test_stick_breaking_equals_taking_shares_key_by_key(n_last: int, hiding: bool) -> None:
    shape = shape_of(3)
    parts = [StickBreaking(shape), Every3rd(shape)] if hiding else [StickBreaking(shape)]
    q, k, v = last_queries(n_last)
    want = torch.zeros_like(q)
    for b in range(2):
        for h in range(3):
            for i in range(LENGTH - n_last, LENGTH):
                left, own = 1.0, i - LENGTH + n_last
                for j in reversed(range(i)):
                    if not hiding or (i - j) % 3 == 1:
                        share = float((q[b, h, own] @ k[b, h, j] / 2).sigmoid())
                        want[b, h, own] += left * share * v[b, h, j]
                        left *= 1 - share
                want[b, h, own] += left * v[b, h, i]
    close(attended(parts, q, k, v), want, atol=1e-12)


@pytest.mark.parametrize("n_queries", [6, 2])
def test_stick_breaking_has_the_gradient_of_its_formula(n_queries: int) -> None:
    generator = torch.Generator().manual_seed(2)
    s = torch.randn(2, 2, n_queries, 6, generator=generator, dtype=torch.float64)
    own = 6 - n_queries
    later = ~torch.ones(n_queries, 6, dtype=torch.bool).tril(own)

    def weights(s: Tensor) -> Tensor:
        return broken(s.masked_fill(later, -math.inf), own=own)

    assert gradcheck(weights, (s.requires_grad_(),))


@pytest.mark.parametrize("middle", [-9.0, 0.0])  # a stick for all 16k keys, or for a few
def test_sticks_of_16k_keys_in_fp32_are_those_of_fp64_rounded(middle: float) -> None:
    generator = torch.Generator().manual_seed(2)
    s = torch.randn(1, 1, 2, 16_384, generator=generator, dtype=torch.float64) + middle
    s[..., 0, -1] = -math.inf
    high, low = broken(s, own=16_382), broken(s.float(), own=16_382)
    assert low.dtype == torch.float32
    # Rounding s moves each of the shares by 2^-24, and a weight by the sum of the later ones'.
    torch.testing.assert_close(low.double(), high, rtol=1e-5, atol=1e-30)
    close(low.double().sum(-1), torch.ones(1, 1, 2).double(), atol=1e-5)


def test_sticks_of_extreme_logits_are_finite_in_value_and_gradient() -> None:
    s = torch.tensor([[[[1e4, -1e4, 0, -math.inf], [-1e4, 1e4, -math.inf, 1e4]]]])
    s.requires_grad_()
    w = broken(s, own=2)
    close(w[0, 0], torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 0]]), atol=1e-30)
    (gradient,) = torch.autograd.grad((w * torch.tensor([1.0, 2, 3, 4])).sum(), s)
    assert torch.isfinite(gradient).all()


def gates(shape: ModelDims, *, w: Tensor, b: float = 0.0) -> Fox:
    part = Fox(shape, gate_bias=b).to(w.dtype)
    with torch.no_grad():
        part.w.copy_(w)
    return part


def test_fox_sums_the_logarithms_of_gates() -> None:
    # [F] gates sigmoid(5, 2, 0, -1, 3), row 4.
    part = gates(shape_of(1, d_model=1), w=torch.ones(1, 1, 1).double())
    x = torch.tensor([5.0, 2, 0, -1, 3]).double().view(1, 5, 1)
    want = [-2.181924, -2.054996, -1.361849, -0.048587, 0.0]
    got = part.bias(call([part], x, n_last=5))[0, 0, 4]
    close(got, torch.tensor(want).double(), atol=2e-6)


@pytest.mark.parametrize("n_last", [LENGTH, 3])
def test_fox_equals_the_sum_over_the_tokens_between(n_last: int) -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(2, LENGTH, 8, generator=generator, dtype=torch.float64)
    w = torch.randn(1, 3, 8, generator=generator, dtype=torch.float64)
    part = gates(shape_of(3), w=w, b=0.75)
    got = part.bias(call([part], x, n_last=n_last))
    assert torch.isfinite(got).all()
    for b in range(2):
        for h in range(3):
            for i in range(LENGTH - n_last, LENGTH):
                for j in range(i + 1):
                    kept = [(x[b, t] @ w[0, h] + 0.75).sigmoid().log() for t in range(j + 1, i + 1)]
                    want = sum(kept, torch.zeros((), dtype=torch.float64))
                    close(got[b, h, i - LENGTH + n_last, j], want, atol=1e-12)


@pytest.mark.parametrize(("n_last", "atol"), [(128, 1e-5), (1024, 6e-5)])
def test_fox_keeps_the_differences_of_near_keys_at_16k_in_fp32(n_last: int, atol: float) -> None:
    x = torch.zeros(1, 16_384, 8)  # all gates are 1/2: F falls to -11 356, by 710 in 1024 queries
    part = gates(shape_of(1), w=torch.zeros(1, 1, 8)).requires_grad_(False)
    low = part.bias(call([part], x, n_last=n_last))
    high = part.double().bias(call([part], x.double(), n_last=n_last))
    assert low.dtype == torch.float32
    torch.testing.assert_close(low.double(), high, rtol=2e-7, atol=atol)
    total = torch.full((16_384,), math.log(0.5)).cumsum(0)  # as from F in fp32: 5 digits gone
    plain = total[-n_last:, None] - total[-n_last:]
    assert float((plain.double() - high[0, 0, :, -n_last:]).abs().max()) > 3e-4


def test_cable_is_fox_with_negated_gates() -> None:
    # [F] axiomlab/Cable 8bc6b83, src/Cable.py: sums of -softplus(z), z linear in the layer's input.
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(2, LENGTH, 8, generator=generator, dtype=torch.float64)
    w = torch.randn(1, 3, 8, generator=generator, dtype=torch.float64)
    part = gates(shape_of(3), w=-w, b=-0.75)
    total = -torch.nn.functional.softplus(x @ w[0].T + 0.75).cumsum(1).transpose(1, 2)
    want = total[..., :, None] - total[..., None, :]
    close(part.bias(call([part], x, n_last=LENGTH)), want, atol=1e-12)
    assert small_config("scheme=cable").scheme.parts == small_config("scheme=fox").scheme.parts


@pytest.mark.parametrize("inputs", ["scores_and_bias", "scores"])
@pytest.mark.parametrize("n_last", [LENGTH, 3])
def test_dape_equals_a_network_run_for_every_query_and_key(
    inputs: Literal["scores_and_bias", "scores"], n_last: int
) -> None:
    part = Dape(shape_of(3), width=5, inputs=inputs).double()
    biased = inputs == "scores_and_bias"
    q, k, _ = last_queries(n_last)
    parts = [part, Sloped(part.shape)] if biased else [part]
    got = part.scores(q, k, call(parts, torch.zeros(2, LENGTH, 1).double(), n_last=n_last))
    w_in, b_in, w_out, b_out = part.w_in[0], part.b_in[0, :, 0], part.w_out[0], part.b_out[0, :, 0]
    for b in range(2):
        for i in range(n_last):
            for j in range(LENGTH - n_last + i + 1):
                s_H = (q[b, :, i] * k[b, :, j]).sum(-1) / 2
                far = LENGTH - n_last + i - j
                bias_H = -torch.arange(1, 4, dtype=torch.float64) * far / 10 * biased
                unit_W = w_in @ (torch.cat([s_H, bias_H]) if biased else s_H) + b_in
                leaky_W = torch.where(unit_W > 0, unit_W, 0.01 * unit_W)
                close(got[b, :, i, j], s_H + bias_H + w_out @ leaky_W + b_out, atol=1e-12)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["scheme=rope", "+scheme.parts.dape={width: 8, inputs: scores_and_bias}"],
            r"inputs=scores_and_bias, and no part of layer 0 has a bias; add one",
        ),
        (
            ["scheme=dape_kerple", "scheme.parts.dape.inputs=scores"],
            r"inputs=scores, and a part of layer 0 has a bias; use scores_and_bias",
        ),
    ],
)
def test_dape_refuses_a_layer_whose_bias_is_not_what_its_network_takes(
    overrides: list[str], message: str
) -> None:
    model = create(small_config(*overrides), vocab_size=50)
    with pytest.raises(UserError, match=message):
        hidden(model, some_tokens(16))
