"""Attention that depends on the content: reference numbers, plain loops, libraries, gradients.

Evidence: [X] computed by running the reference implementation named, [F] from the formula as
printed. Tolerance 2e-6 where numbers have six decimals. Loops and libraries (HF transformers 5,
x-transformers 2.31) run in float64 and differ by the order of sums alone, 1e-12.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from parts import Sloped, drawn
from repository import published
from small import (
    VOCAB,
    bare_call,
    close,
    create,
    det,
    dims,
    hidden,
    imported,
    layer_of,
    small_config,
    some_qkv,
    some_tokens,
)
from torch import Tensor
from torch.autograd import gradcheck

from lengthgen.model.attention import attend
from lengthgen.model.kv_cache import forward_cached
from lengthgen.schemes import AttentionContext, Part
from lengthgen.schemes.content.asentmax import Asentmax, entmax15
from lengthgen.schemes.content.cope import Cope, add_counted_, at_counted_positions
from lengthgen.schemes.content.dape import Dape, DapeV2
from lengthgen.schemes.content.fox import Fox
from lengthgen.schemes.content.gated_attention import GatedAttention
from lengthgen.schemes.content.gated_delta import GatedDelta
from lengthgen.schemes.content.grape_a import GrapeA
from lengthgen.schemes.content.layer_state import StateContext
from lengthgen.schemes.content.linear_attention import LinearAttention
from lengthgen.schemes.content.path_attention import PathAttention
from lengthgen.schemes.content.selective_rope import SelectiveRope
from lengthgen.schemes.content.short_conv import ShortConv
from lengthgen.schemes.content.stick_breaking import StickBreaking, broken
from lengthgen.schemes.content.tape import Tape
from lengthgen.schemes.relative.deberta import Deberta
from lengthgen.schemes.relative.shaw import Shaw
from lengthgen.schemes.relative.transformer_xl import TransformerXl
from lengthgen.schemes.rotary.rope import Rope

LENGTH, H, K, D = 11, 3, 4, 12
SHAPE = dims(K, d_model=D, n_heads=H, n_layers=1, train_length=16)
SINGLE = dims(4, train_length=16)  # one head, as det_qkv()
EACH = [(b, h) for b in range(2) for h in range(H)]


def some_x() -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(2, LENGTH, D, generator=generator, dtype=torch.float64)


def qkv() -> tuple[Tensor, Tensor, Tensor]:
    return some_qkv(LENGTH, dtype=torch.float64, heads=H, width=K)


def det_qkv(length: int) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (det(1, 1, length, 4, a=a) for a in (0.7, 1.1, 0.3))
    return q, k, v


def call(*parts: Part, x: Tensor) -> AttentionContext:
    tokens = torch.zeros(x.shape[:2], dtype=torch.int64)
    c = AttentionContext.of_call(parts[0].shape, tokens, x, training=False, generator=None)
    return replace(c, hooks=layer_of(*parts))


def attended(*parts: Part, at: tuple[Tensor, Tensor, Tensor] | None = None) -> Tensor:
    """Returns the attention output of qkv(), or of `at` with zeros as the layer's input."""
    q, k, v = at or qkv()
    x = torch.zeros(len(q), q.shape[2], 1, dtype=torch.float64) if at else some_x()
    c = call(*parts, x=x)
    return attend(q, k, v, c)


def slowly(
    logit: Callable[[int, int, int, int], Tensor],
    *,
    normalised: Callable[[Tensor], Tensor] = lambda s: s.softmax(-1),
) -> Tensor:
    """Returns attention one query at a time; logit(b, h, i, j) is that of query i and key j."""
    v = qkv()[2]
    out = torch.zeros(2, H, LENGTH, K, dtype=torch.float64)
    for b, h in EACH:
        for i in range(LENGTH):
            s = torch.stack([logit(b, h, i, j) for j in range(i + 1)])
            out[b, h, i] = normalised(s) @ v[b, h, : i + 1]
    return out


def sloped(h: int, i: int, j: int) -> float:
    """Returns the bias of the part Sloped."""
    return -(h + 1) * (i - j) / 10


def six_digits(got: Tensor, want: list[float]) -> None:
    close(got, torch.tensor(want, dtype=torch.float64), atol=2e-6)


def test_shaw_reads_the_rows_of_the_past_of_tensor2tensors_tables() -> None:
    # [F] tensor2tensor bafdc1b, layers/common_attention.py:1670-1827, k = 2, d = 4: its row of a
    # key is clip(j-i, -2, 2) + 2, so that the past has rows 2, 1, 0.
    part = Shaw(SINGLE, clip=2, share_layers=False).double()
    with torch.no_grad():
        part.aK.copy_(det(5, 4, a=0.41)[[2, 1, 0]])
        part.aV.copy_(det(5, 4, a=0.61)[[2, 1, 0]])
    six_digits(attended(part, at=det_qkv(5))[0, 0, 4], [1.017392, 1.306797, 1.260776, 0.86743])


@pytest.mark.parametrize(
    ("how", "want"),
    [  # [X] facebookresearch/RAM e6f051f with and without --cope-nodiv; DAPE's port: the first
        ("unscaled", [-0.293778, -0.289484, -0.259332, -0.206014]),
        ("scaled", [-0.228394, -0.212377, -0.177388, -0.126554]),
    ],
)
def test_cope_is_of_paper_or_code(how: Literal["scaled", "unscaled"], want: list[float]) -> None:
    part = Cope(SINGLE, n_positions=4, position_logits=how, share_layers=False).double()
    with torch.no_grad():
        part.E.copy_(det(1, 4, 4, a=0.47))
    six_digits(attended(part, at=det_qkv(6))[0, 0, 5], want)


def counted(s: Tensor) -> Tensor:
    return at_counted_positions(s[..., :6], s[..., 6:], first_row=6 - s.shape[2])


def shares(s: Tensor) -> Tensor:
    later = ~torch.ones(s.shape[2], 6, dtype=torch.bool).tril(6 - s.shape[2])
    return broken(s[..., :6].masked_fill(later, -math.inf), first_row=6 - s.shape[2])


def entmax(s: Tensor) -> Tensor:
    w = entmax15(2 * s[..., :6].masked_fill(torch.arange(6) > 4, -math.inf))
    assert (w == 0).any()
    return w


@pytest.mark.parametrize("n_queries", [6, 2])
@pytest.mark.parametrize("function", [counted, shares, entmax])
def test_written_gradients_are_right(function: Callable[[Tensor], Tensor], n_queries: int) -> None:
    generator = torch.Generator().manual_seed(2)
    s = torch.randn(2, 2, n_queries, 9, generator=generator, dtype=torch.float64)
    assert gradcheck(function, (s.requires_grad_(),))


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 2e-6), (torch.float64, 1e-14)])
@pytest.mark.parametrize("lower", [0.0, 3.0, 12.0])  # gates of a half; of 0.05: more keys; of 0
def test_cope_counts_to_its_last_position(lower: float, dtype: torch.dtype, atol: float) -> None:
    generator = torch.Generator().manual_seed(2)
    s = torch.randn(2, 2, 9, 900, generator=generator, dtype=dtype) - lower
    s[1, 0, 4] -= 3  # one query that needs more keys than the others
    z = torch.randn(2, 2, 9, 8, generator=generator, dtype=dtype)
    want = s + at_counted_positions(s, z, first_row=891)
    with torch.no_grad():
        add_counted_(s, z, first_row=891)
    close(s, want, atol=atol)


def test_sticks_break_as_published() -> None:
    # [X] shawntan/stickbreaking-attention 3147a38, sb_ref.py: weights without the rest, which it
    # returns apart.
    q, k, v = det_qkv(5)
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    w = broken((q @ k.mT / 2).masked_fill(later, -math.inf), first_row=0)[0, 0]
    six_digits(w[4, :4], [0.029903, 0.222127, 0.415002, 0.267343])
    six_digits(w.diagonal(), [1, 0.532653, 0.167282, 0.130218, 0.065625])
    close(attended(StickBreaking(SINGLE), at=(q, k, v))[0, 0], w @ v[0, 0], atol=1e-15)


@pytest.mark.parametrize("middle", [-9.0, 0.0])  # a stick for all 16k keys, or for a few
def test_sticks_of_16k_keys_in_fp32_are_those_of_fp64_rounded(middle: float) -> None:
    generator = torch.Generator().manual_seed(2)
    s = torch.randn(1, 1, 2, 16_384, generator=generator, dtype=torch.float64) + middle
    s[..., 0, -1] = -math.inf
    high, low = broken(s, first_row=16_382), broken(s.float(), first_row=16_382)
    assert low.dtype == torch.float32
    # Rounding s moves each of the shares by 2^-24, and a weight by the sum of the later ones'.
    torch.testing.assert_close(low.double(), high, rtol=1e-5, atol=1e-30)
    close(low.double().sum(-1), torch.ones(1, 1, 2).double(), atol=1e-5)


def test_fox_keeps_the_differences_of_near_keys_at_16k_in_fp32() -> None:
    x = torch.zeros(1, 16_384, 4)  # all gates are 1/2: F falls to -11 356, by 710 in 1024 queries
    part = Fox(SINGLE, gate_bias=0.0).requires_grad_(False)
    part.w.zero_()
    rows = slice(16_384 - 1024, 16_384)
    low = part.bias(replace(call(part, x=x), q_pos=torch.arange(16_384)[rows], rows=rows))
    want = math.log(0.5) * torch.arange(1023.0, -1, -1)
    assert low.dtype == torch.float32
    torch.testing.assert_close(low[0, 0, -1, -1024:], want, rtol=2e-7, atol=6e-5)
    total = torch.full((16_384,), math.log(0.5)).cumsum(0)  # as from F in fp32: 5 digits gone
    assert float((total[-1] - total[rows] - want).abs().max()) > 3e-4


@pytest.mark.parametrize("clip", [1, 4, 20])
def test_deberta_equals_equations_2_to_4_for_every_query_and_key(clip: int) -> None:
    part = drawn(Deberta(SHAPE, clip=clip))
    q, k, _ = qkv()

    def delta(i: int, j: int) -> int:  # equation 3, of the paper's table of 2k rows
        if i - j <= -clip:
            return 0
        return 2 * clip - 1 if i - j >= clip else i - j + clip

    def logit(b: int, h: int, i: int, j: int) -> Tensor:
        Kr, Qr = part.W_K[0, h] @ part.table[delta(i, j)], part.W_Q[0, h] @ part.table[delta(j, i)]
        three = q[b, h, i] @ k[b, h, j] + q[b, h, i] @ Kr + k[b, h, j] @ Qr
        return three / math.sqrt(3 * K) + sloped(h, i, j)

    close(attended(part, Sloped(SHAPE)), slowly(logit), atol=1e-12)


@pytest.mark.parametrize(
    "part",
    [
        GrapeA(SHAPE, gates="query_and_key"),
        GatedDelta(SHAPE),
        LinearAttention(SHAPE, base=None),
        PathAttention(SHAPE, rank=5, kernel=3),
        Cope(SHAPE, n_positions=4, position_logits="unscaled", share_layers=False),
        Deberta(SHAPE, clip=4),
        Shaw(SHAPE, clip=4, share_layers=False),
        TransformerXl(SHAPE, base=100.0),
    ],
    ids=lambda part: type(part).__name__,
)
def test_what_reads_queries_that_rope_has_turned_depends_on_the_coordinates(part: Part) -> None:
    rope = Rope(SHAPE, base=100.0, rotary_percentage=1.0, layout="half")
    c = call(rope, drawn(part), x=some_x())
    shifted = replace(c, pos=c.pos + 3, q_pos=c.q_pos + 3, k_pos=c.k_pos + 3)
    here, there = (attend(*qkv(), at) for at in (c, shifted))
    assert not torch.allclose(here, there, rtol=0, atol=1e-11)
    assert part.reads_qk


@pytest.mark.parametrize("gate", ["elementwise", "headwise"])
def test_gated_attention_multiplies_each_heads_output_by_a_sigmoid_of_the_querys_token(
    gate: Literal["elementwise", "headwise"],
) -> None:
    part, x = drawn(GatedAttention(SHAPE, gate=gate)), some_x()
    q, k, _ = qkv()
    plain = slowly(lambda b, h, i, j: q[b, h, i] @ k[b, h, j] / 2)
    got = attended(part)
    for b, h in EACH:
        for i in range(LENGTH):
            g = 1 / (1 + torch.exp(-(part.W[0, h] @ x[b, i])))  # K numbers or one
            close(got[b, h, i], g * plain[b, h, i], atol=1e-12)


def bisected(s: Tensor) -> Tensor:
    """Returns 1.5-entmax of a row by halving an interval that holds its threshold."""
    z = s.detach() / 2
    low, high = float(z.max()) - 1, float(z.max())
    for _ in range(100):
        middle = (low + high) / 2
        heavy = float((z - middle).clamp(min=0).square().sum()) > 1
        low, high = (middle, high) if heavy else (low, middle)
    return (z - low).clamp(min=0).square()


def test_asentmax_equals_entmax_of_logits_scaled_by_token_head_and_length() -> None:
    part, x = drawn(Asentmax(SHAPE, delta=1.0, gamma_range=2.0)), some_x()
    q, k, _ = qkv()

    def logit(b: int, h: int, i: int, j: int) -> Tensor:
        beta = torch.log(1 + torch.exp(part.w_b[0, h] @ x[b, i]))
        gamma = 2 * torch.tanh(part.w_g[0, h] @ x[b, i])
        return (1 + beta * math.log(i + 2) ** gamma) * (q[b, h, i] @ k[b, h, j]) / 2

    want = slowly(logit, normalised=bisected)
    close(attended(part), want, atol=1e-12)


def convolved_slowly(rows: list[Tensor], kernel: Tensor, t: int) -> Tensor:
    """Returns each channel's sum of rows up to t by its kernel [C, N], the last for t itself."""
    N = kernel.shape[-1]
    return sum((kernel[:, N - 1 - s] * rows[t - s] for s in range(min(N, t + 1))), torch.zeros(()))


@pytest.mark.parametrize("residual", [True, False])
def test_short_conv_is_the_convolution_of_canon_layers(residual: bool) -> None:
    # [F] facebookresearch/PhysicsLM4 924678b, huggingface/canon_helper.py without its CUDA kernel.
    part, E = drawn(ShortConv(SHAPE, kernel=4, residual=residual)), 3 * D
    theirs = torch.nn.Conv1d(E, E, 4, groups=E, bias=False, padding=3).double()
    theirs.weight = torch.nn.Parameter(part.kernel[0, :, None])
    x = torch.cat([some_x(), some_x() + 1, some_x() ** 2], dim=-1)
    want = theirs(x.mT)[..., :LENGTH].mT
    close(part.projections(x, call(part, x=x)), want + x if residual else want, atol=1e-12)


@pytest.mark.parametrize("name", ["tape", "transformer_xl"])
def test_short_conv_goes_with_other_parts_also_from_a_cache(name: str) -> None:
    conv = "+scheme.parts.short_conv={kernel:4,residual:true}"
    plain, model = (
        create(small_config(f"scheme={name}", *more), vocab_size=VOCAB).double().eval()
        for more in ((), (conv,))
    )
    tokens, cache, part = some_tokens(16), None, model.scheme.parts["short_conv"]
    want = model.logits(hidden(model, tokens)[:, -1])
    for piece in tokens.split([9, 1, 2, 4], dim=1):
        cache = forward_cached(model, piece, cache, seed=0, precision="fp32")
    assert cache is not None
    close(cache.logits_BV, want, atol=1e-12)
    assert isinstance(part, ShortConv)
    with torch.no_grad():
        part.kernel.zero_()
    without = hidden(model, tokens)
    close(without, hidden(plain, tokens), atol=0)
    assert not torch.allclose(model.logits(without[:, -1]), want)


@pytest.mark.parametrize("words", [(), ("model.parallel_residual=true",)])
def test_a_model_with_tape_begins_as_one_with_rope(words: tuple[str, ...]) -> None:
    tokens, three = some_tokens(16), ("model.n_layers=3", *words)
    tape, rope = (
        create(small_config(f"scheme={name}", *three), vocab_size=VOCAB).double().eval()
        for name in ("tape", "rope")
    )
    close(hidden(tape, tokens), hidden(rope, tokens), atol=1e-12)


def test_selective_rope_turns_channel_pairs_by_the_angles_of_the_tokens_between() -> None:
    part, x = drawn(SelectiveRope(SHAPE, base=100.0, rank=5, kernel=4)), some_x()
    q, k, _ = qkv()

    def angles(b: int, h: int) -> list[Tensor]:
        projected: list[Tensor] = []
        for t in range(LENGTH):
            unit = [row / row.square().sum().sqrt() for row in x[b, t].split(K)]
            projected.append(part.up[0] @ (part.down[0] @ torch.cat(unit)))
        every = [convolved_slowly(projected, part.kernel[0], t) for t in range(LENGTH)]
        return [phi[h * K // 2 : (h + 1) * K // 2] for phi in every]

    phi = {(b, h): angles(b, h) for b in range(2) for h in range(H)}

    def logit(b: int, h: int, i: int, j: int) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for m in range(K // 2):
            turn = sum((phi[b, h][t][m] for t in range(j + 1, i + 1)), torch.zeros(()))
            turn = 100 ** (-2 * m / K) * turn
            query, key = (torch.complex(y[m], y[m + K // 2]) for y in (q[b, h, i], k[b, h, j]))
            total = total + (query * key.conj() * torch.exp(1j * turn)).real
        return total / 2

    close(attended(part), slowly(logit), atol=1e-12)


@pytest.mark.parametrize("gates", ["key", "query", "query_and_key"])
def test_grape_a_multiplies_distances_by_the_rates_of_query_and_key(
    gates: Literal["key", "query", "query_and_key"],
) -> None:
    part = drawn(GrapeA(SHAPE, gates=gates))
    q, k, _ = qkv()
    m_H = [2**-4.0, 2**-8.0, 2**-2.0]  # ALiBi's slopes of 3 heads

    def softplus(direction: Tensor, y: Tensor) -> Tensor:
        return torch.log(1 + torch.exp(direction @ y / direction.square().sum().sqrt() / 2))

    def logit(b: int, h: int, i: int, j: int) -> Tensor:
        rate = torch.zeros((), dtype=torch.float64)
        if part.u is not None:
            rate = rate + softplus(part.u[0, h], k[b, h, j])
        if part.v is not None:
            rate = rate + softplus(part.v[0, h], q[b, h, i])
        omega = m_H[h] * torch.log(1 + torch.exp(part.omega[0, h]))
        return q[b, h, i] @ k[b, h, j] / 2 - (i - j) * omega * rate + sloped(h, i, j)

    got = attended(part, Sloped(SHAPE))
    close(got, slowly(logit), atol=1e-12)


@pytest.mark.parametrize(  # kernel 0: DAPE, the same without neighbours
    ("kernel", "inputs"),
    [(0, "scores_and_bias"), (0, "scores"), (3, "scores_and_bias"), (5, "scores")],
)
def test_dape_equals_two_convolutions_over_the_keys_of_each_query(
    kernel: int, inputs: Literal["scores_and_bias", "scores"]
) -> None:
    if kernel:
        part = drawn(DapeV2(SHAPE, width=5, kernel=kernel, inputs=inputs))
        w_in, w_out = part.w_in[0], part.w_out[0]
    else:
        part, kernel = drawn(Dape(SHAPE, width=5, inputs=inputs)), 1
        w_in, w_out = part.w_in[0, ..., None], part.w_out[0, ..., None]
    b_in, b_out = part.b_in[0].flatten(), part.b_out[0].flatten()
    biased, reach = inputs == "scores_and_bias", kernel // 2
    q, k, _ = qkv()
    zeros = torch.zeros(2 * H if biased else H, dtype=torch.float64)

    def image(b: int, i: int, j: int) -> Tensor:
        if not 0 <= j <= i:
            return zeros
        s = [q[b, h, i] @ k[b, h, j] / 2 for h in range(H)]
        bias = [torch.tensor(sloped(h, i, j), dtype=torch.float64) for h in range(H)]
        return torch.stack(s + bias if biased else s)

    def unit(b: int, i: int, j: int) -> Tensor:
        total = b_in
        for m in range(kernel):
            total = total + w_in[:, :, m] @ image(b, i, j + m - reach)
        return torch.where(total > 0, total, 0.01 * total) * (j >= 0)

    pairs = [(i, j) for i in range(LENGTH) for j in range(-reach, i + reach + 1)]
    units = {(b, i, j): unit(b, i, j) for b in range(2) for i, j in pairs}

    def logit(b: int, h: int, i: int, j: int) -> Tensor:
        total = q[b, h, i] @ k[b, h, j] / 2 + biased * sloped(h, i, j) + b_out[h]
        for m in range(kernel):
            total = total + w_out[h, :, m] @ units[b, i, j + m - reach]
        return total

    parts = [part, Sloped(SHAPE)] if biased else [part]
    close(attended(*parts), slowly(logit), atol=1e-12)


@pytest.mark.parametrize("piece", [1, 4, 64])
def test_path_equals_reflecting_each_key_by_every_token_up_to_the_query(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lengthgen.schemes.content.path_attention.REFLECTED", piece)
    part, x = drawn(PathAttention(SHAPE, rank=5, kernel=3)), some_x()
    q, k, _ = qkv()

    def reflection(b: int, h: int, t: int) -> Tensor:
        projected = [part.up[0] @ (part.down[0] @ row) for row in x[b]]
        z = convolved_slowly(projected, part.kernel[0], t)[h * K : (h + 1) * K]
        w = z / (1 + torch.exp(-z))
        w = w / w.square().sum().sqrt()
        beta = 2 / (1 + torch.exp(-(part.u[0, h] @ x[b, t] + part.b[0, h])))
        return torch.eye(K).double() - beta * torch.outer(w, w)

    H_t = {(b, h, t): reflection(b, h, t) for b, h in EACH for t in range(LENGTH)}

    def logit(b: int, h: int, i: int, j: int) -> Tensor:
        key = k[b, h, j]
        for t in range(j + 1, i + 1):
            key = H_t[b, h, t] @ key
        return q[b, h, i] @ key / 2 + sloped(h, i, j)

    got = attended(part, Sloped(SHAPE))
    close(got, slowly(logit), atol=1e-12)


def test_linear_attention_of_queries_far_below_zero_is_finite() -> None:
    q, k, v = (x.float() for x in qkv())
    part = LinearAttention(SHAPE, base=None)
    out = attend(q - 30, k, v, replace(call(part, x=some_x().float()), hooks=layer_of(part)))
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("base", [None, 100.0])
def test_linear_attention_equals_equation_19_of_roformer(base: float | None) -> None:
    part = LinearAttention(SHAPE, base=base).double()
    q, k, v = qkv()

    def feature(x: Tensor) -> Tensor:
        return torch.where(x > 0, x + 1, torch.exp(x))

    def turned(f: Tensor, p: int) -> Tensor:
        if base is None:
            return f
        out = f.clone()
        for m in range(K // 2):
            theta = p * base ** (-2 * m / K)
            a, b = f[m], f[m + K // 2]
            out[m] = a * math.cos(theta) - b * math.sin(theta)
            out[m + K // 2] = a * math.sin(theta) + b * math.cos(theta)
        return out

    got = attended(part)
    for b, h in EACH:
        for i in range(LENGTH):
            top, below = torch.zeros(K).double(), 0.0
            for j in range(i + 1):
                f, g = feature(q[b, h, i]), feature(k[b, h, j])
                top += (turned(f, i) @ turned(g, j)) * v[b, h, j]
                below += float(f @ g)
            close(got[b, h, i], top / below, atol=1e-12)


def test_the_gated_delta_rule_equals_its_recurrence() -> None:
    part, x = drawn(GatedDelta(SHAPE)), some_x()
    q, k, v = qkv()

    def unit(y: Tensor) -> Tensor:
        z = y / (1 + torch.exp(-y))
        return z / z.square().sum().sqrt()

    got = attended(part)
    for b, h in EACH:
        state = torch.zeros(K, K, dtype=torch.float64)  # from keys to values
        for t in range(LENGTH):
            step = torch.log(1 + torch.exp(part.w_a[0, h] @ x[b, t] + part.c[0, h]))
            a = torch.exp(-torch.exp(part.log_A[0, h]) * step)
            beta = 1 / (1 + torch.exp(-(part.w_b[0, h] @ x[b, t])))
            key = unit(k[b, h, t])
            erased = torch.outer(state @ key, key)
            state = a * (state - beta * erased) + beta * torch.outer(v[b, h, t], key)
            close(got[b, h, t], state @ unit(q[b, h, t]) / 2, atol=1e-12)


WIDE = dims(n_heads=4, train_length=16)
SEEN = torch.ones(60, 60, dtype=torch.bool).tril()


@pytest.mark.parametrize("n_positions", [16, 64])  # its own number; past the last gate's count
def test_cope_is_that_of_x_transformers_given_masked_logits(n_positions: int) -> None:
    ours = drawn(Cope(WIDE, n_positions=n_positions, position_logits="unscaled", share_layers=True))
    theirs = imported("x_transformers.x_transformers").CoPE(8, 4, n_positions).double()
    theirs.requires_grad_(False).pos_emb.copy_(ours.requires_grad_(False).E[0].T)
    q, k, _ = some_qkv(60, dtype=torch.float64)
    s = q @ k.transpose(-1, -2) / 8**0.5
    got = ours.scores(q, k, call(ours, x=torch.zeros(2, 60, 1, dtype=s.dtype))) - s
    masked = s.masked_fill(~SEEN, -torch.finfo(s.dtype).max)
    close(got[..., SEEN], theirs(q, masked)[..., SEEN], atol=1e-12)
    # It has no mask of its own: without one in the logits, later keys are counted too.
    assert not torch.allclose(got[..., SEEN], theirs(q, s)[..., SEEN], atol=0.1)


@pytest.mark.parametrize("case", published("tape"), ids=lambda case: case["source"])
def test_positions_and_outputs_are_those_of_the_released_layer(case: dict[str, Any]) -> None:
    H, K, T = 2, 4, 3
    shape = dims(K, n_heads=H, n_layers=3, train_length=16)
    part = Tape(shape, base=10000.0, hidden_per_head=4).double().requires_grad_(False)
    part.a[:] = det(H, H, a=1.9).sum(-1)  # there, a matrix of which each row is summed
    part.U[:], part.G[:] = det(4 * H, H, a=0.9), det(4 * H, H * K, a=1.3)
    part.W[:] = det(H, 4 * H, a=1.7)
    q, k, v = (det(1, T, H * K, a=a).unflatten(-1, (H, K)).transpose(1, 2) for a in (0.7, 1.1, 0.3))
    model = create(small_config("scheme=nope"), vocab_size=VOCAB)
    c = replace(bare_call(shape, T), hooks=model.scheme.layers[0]._replace(qk=(part,)))
    z = part.initial_state(c)
    out = torch.empty(0)
    for i in range(2):
        at = StateContext.of(replace(c, layer=i), z)
        wide = torch.cat([v, part.of_heads(z).transpose(1, 2)], dim=-1)
        out, mean = attend(q, k, wide, at).split(K, dim=-1)
        z = part.next_state(mean.transpose(1, 2).flatten(2), det(1, T, H * K, a=0.5), at)
    close(part.of_heads(z)[0, -1], torch.tensor(case["z"]).double(), atol=2e-6)
    close(out[0, :, -1].flatten(), torch.tensor(case["out"]).double(), atol=2e-6)
