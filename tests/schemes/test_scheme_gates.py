"""Attention that tokens steer: gates, thresholds, turns and reflections, against plain loops.

The loops are in float64, one query and one key at a time; what they are compared with differs by
the order of sums alone, 1e-12.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

import pytest
import torch
from parts import Sloped
from small import close, dims, some_qkv
from torch import Tensor
from torch.autograd import gradcheck

from lengthgen.model.attention import attend
from lengthgen.schemes import AttentionContext, ModelDims, Part, Scheme
from lengthgen.schemes.content.asentmax import Asentmax, entmax15
from lengthgen.schemes.content.dape_v2 import DapeV2
from lengthgen.schemes.content.gated_attention import GatedAttention
from lengthgen.schemes.content.gated_delta import GatedDelta
from lengthgen.schemes.content.grape_a import GrapeA
from lengthgen.schemes.content.linear_attention import LinearAttention
from lengthgen.schemes.content.path_attention import PathAttention
from lengthgen.schemes.content.selective_rope import SelectiveRope
from lengthgen.schemes.relative.deberta import Deberta

SomePart = TypeVar("SomePart", bound=Part)

LENGTH, H, K, D = 11, 3, 4, 12
LAST = pytest.mark.parametrize("n_last", [LENGTH, 3])


def shape_of_heads(*, train_length: int = 16) -> ModelDims:
    return dims(K, d_model=D, n_heads=H, n_layers=1, train_length=train_length)


def drawn(part: SomePart) -> SomePart:
    """Returns the part in float64, with parameters of about a half."""
    generator = torch.Generator().manual_seed(4)
    part = part.double()
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
        part.clamp_parameters()
    return part


def some_x(length: int = LENGTH) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(2, length, D, generator=generator, dtype=torch.float64)


def called(parts: Sequence[Part], *, n_last: int) -> AttentionContext:
    """Returns the context of the last queries of a call on some_x()."""
    x, first = some_x(), LENGTH - n_last
    scheme = Scheme({type(p).__name__: p for p in parts}, layers=None, n_layers=1)
    tokens = torch.zeros(2, LENGTH, dtype=torch.int64)
    c = AttentionContext.of_call(parts[0].shape, tokens, x, training=False, generator=None)
    c = replace(c, q_pos=c.pos[first:], rows=slice(first, LENGTH), hooks=scheme.layers[0])
    return c


def attended(*parts: Part, n_last: int) -> Tensor:
    """Returns the attention output of the last queries, [2, H, n_last, K]."""
    c = called(parts, n_last=n_last)
    q, k, v = qkv()
    return attend(c.hooks, q[:, :, LENGTH - n_last :], k, v, c)


def qkv() -> tuple[Tensor, Tensor, Tensor]:
    return some_qkv(LENGTH, dtype=torch.float64, heads=H, width=K)


def slowly(
    n_last: int,
    logit: Callable[[int, int, int, int], Tensor],
    *,
    normalised: Callable[[Tensor], Tensor] = lambda s: s.softmax(-1),
) -> Tensor:
    """Returns attention one query at a time; logit(b, h, i, j) is that of query i and key j."""
    v = qkv()[2]
    out = torch.zeros(2, H, n_last, K, dtype=torch.float64)
    for b in range(2):
        for h in range(H):
            for i in range(LENGTH - n_last, LENGTH):
                s = torch.stack([logit(b, h, i, j) for j in range(i + 1)])
                out[b, h, i - LENGTH + n_last] = normalised(s) @ v[b, h, : i + 1]
    return out


def sloped(h: int, i: int, j: int) -> float:
    """Returns the bias of the part Sloped."""
    return -(h + 1) * (i - j) / 10


@LAST
@pytest.mark.parametrize("clip", [1, 4, 20])
@pytest.mark.parametrize("biased", [False, True])
def test_deberta_equals_equations_2_to_4_for_every_query_and_key(
    n_last: int, clip: int, biased: bool
) -> None:
    part = drawn(Deberta(shape_of_heads(), clip=clip))
    q, k, _ = qkv()

    def delta(i: int, j: int) -> int:  # equation 3, of the paper's table of 2k rows
        if i - j <= -clip:
            return 0
        return 2 * clip - 1 if i - j >= clip else i - j + clip

    def logit(b: int, h: int, i: int, j: int) -> Tensor:
        Kr, Qr = part.W_K[0, h] @ part.table[delta(i, j)], part.W_Q[0, h] @ part.table[delta(j, i)]
        three = q[b, h, i] @ k[b, h, j] + q[b, h, i] @ Kr + k[b, h, j] @ Qr
        return three / math.sqrt(3 * K) + biased * sloped(h, i, j)

    parts = [part, Sloped(part.shape)] if biased else [part]
    close(attended(*parts, n_last=n_last), slowly(n_last, logit), atol=1e-12)


@LAST
@pytest.mark.parametrize("gate", ["elementwise", "headwise"])
def test_gated_attention_multiplies_each_heads_output_by_a_sigmoid_of_the_querys_token(
    n_last: int, gate: Literal["elementwise", "headwise"]
) -> None:
    part, x = drawn(GatedAttention(shape_of_heads(), gate=gate)), some_x()
    q, k, _ = qkv()
    plain = slowly(n_last, lambda b, h, i, j: q[b, h, i] @ k[b, h, j] / 2)
    got = attended(part, n_last=n_last)
    for b in range(2):
        for h in range(H):
            for i in range(n_last):
                for m in range(K):
                    row = part.W[0, h, m if gate == "elementwise" else 0]
                    g = 1 / (1 + torch.exp(-(row @ x[b, LENGTH - n_last + i])))
                    close(got[b, h, i, m], g * plain[b, h, i, m], atol=1e-12)


def bisected(s: Tensor) -> Tensor:
    """Returns 1.5-entmax of a row by halving an interval that holds its threshold."""
    z = s.detach() / 2
    low, high = float(z.max()) - 1, float(z.max())
    for _ in range(100):
        middle = (low + high) / 2
        heavy = float((z - middle).clamp(min=0).square().sum()) > 1
        low, high = (middle, high) if heavy else (low, middle)
    return (z - low).clamp(min=0).square()


@LAST
def test_asentmax_equals_entmax_of_logits_scaled_by_token_head_and_length(n_last: int) -> None:
    part, x = drawn(Asentmax(shape_of_heads(), delta=1.0, gamma_range=2.0)), some_x()
    q, k, _ = qkv()

    def logit(b: int, h: int, i: int, j: int) -> Tensor:
        beta = torch.log(1 + torch.exp(part.w_b[0, h] @ x[b, i]))
        gamma = 2 * torch.tanh(part.w_g[0, h] @ x[b, i])
        return (1 + beta * math.log(i + 2) ** gamma) * (q[b, h, i] @ k[b, h, j]) / 2

    want = slowly(n_last, logit, normalised=bisected)
    close(attended(part, n_last=n_last), want, atol=1e-12)


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 30.0])
@pytest.mark.parametrize("size", [1, 2, 300])
def test_entmax_finds_the_threshold_of_any_logits(spread: float, size: int) -> None:
    generator = torch.Generator().manual_seed(2)
    s = spread * torch.randn(5, size, generator=generator, dtype=torch.float64)
    if size > 1:
        s[:, -1] = -math.inf
    for row, got in zip(s, entmax15(s), strict=True):
        close(got, bisected(row), atol=1e-12)
        close(got.sum(), torch.ones(()).double(), atol=1e-12)


def test_entmax_has_the_gradient_of_its_formula() -> None:
    generator = torch.Generator().manual_seed(2)
    s = 2 * torch.randn(2, 3, 6, generator=generator, dtype=torch.float64)
    later = torch.ones(3, 6, dtype=torch.bool).triu(4)
    assert (entmax15(s) == 0).any()

    def weights(s: Tensor) -> Tensor:
        return entmax15(s.masked_fill(later, -math.inf))

    assert gradcheck(weights, (s.requires_grad_(),))


def test_entmax_of_16k_logits_in_fp32_sums_to_one_and_of_extreme_ones_is_finite() -> None:
    generator = torch.Generator().manual_seed(2)
    for s in (3 * torch.randn(4, 16_384, generator=generator), torch.zeros(1, 16_384)):
        close(entmax15(s).sum(-1), torch.ones(len(s)), atol=1e-5)
    s = torch.tensor([[1e30, -1e30, 0, -math.inf]], requires_grad=True)
    w = entmax15(s)
    close(w, torch.tensor([[1.0, 0, 0, 0]]), atol=0)
    (gradient,) = torch.autograd.grad((w * torch.arange(4)).sum(), s)
    assert torch.isfinite(gradient).all()


def convolved_slowly(rows: list[Tensor], kernel: Tensor, t: int) -> Tensor:
    """Returns each channel's sum of rows up to t by its kernel [C, N], the last for t itself."""
    N = kernel.shape[-1]
    return sum((kernel[:, N - 1 - s] * rows[t - s] for s in range(min(N, t + 1))), torch.zeros(()))


@LAST
def test_selective_rope_turns_channel_pairs_by_the_angles_of_the_tokens_between(
    n_last: int,
) -> None:
    part, x = drawn(SelectiveRope(shape_of_heads(), base=100.0, rank=5, kernel=4)), some_x()
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

    close(attended(part, n_last=n_last), slowly(n_last, logit), atol=1e-12)


@LAST
@pytest.mark.parametrize("gates", ["key", "query", "query_and_key"])
def test_grape_a_multiplies_distances_by_the_rates_of_query_and_key(
    n_last: int, gates: Literal["key", "query", "query_and_key"]
) -> None:
    part = drawn(GrapeA(shape_of_heads(), gates=gates))
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

    got = attended(part, Sloped(part.shape), n_last=n_last)
    close(got, slowly(n_last, logit), atol=1e-12)


@LAST
@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("inputs", ["scores_and_bias", "scores"])
def test_dape_v2_equals_two_convolutions_over_the_keys_of_each_query(
    n_last: int, kernel: int, inputs: Literal["scores_and_bias", "scores"]
) -> None:
    part = drawn(DapeV2(shape_of_heads(), width=5, kernel=kernel, inputs=inputs))
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
        total = part.b_in[0]
        for m in range(kernel):
            total = total + part.w_in[0, :, :, m] @ image(b, i, j + m - reach)
        return torch.where(total > 0, total, 0.01 * total) * (j >= 0)

    units = {
        (b, i, j): unit(b, i, j)
        for b in range(2)
        for i in range(LENGTH)
        for j in range(-reach, i + reach + 1)
    }

    def logit(b: int, h: int, i: int, j: int) -> Tensor:
        total = q[b, h, i] @ k[b, h, j] / 2 + biased * sloped(h, i, j) + part.b_out[0, h]
        for m in range(kernel):
            total = total + part.w_out[0, h, :, m] @ units[b, i, j + m - reach]
        return total

    parts = [part, Sloped(part.shape)] if biased else [part]
    close(attended(*parts, n_last=n_last), slowly(n_last, logit), atol=1e-12)


@LAST
@pytest.mark.parametrize("piece", [1, 4, 64])
def test_path_equals_reflecting_each_key_by_every_token_up_to_the_query(
    n_last: int, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lengthgen.schemes.content.path_attention.PIECE", piece)
    part, x = drawn(PathAttention(shape_of_heads(), rank=5, kernel=3)), some_x()
    q, k, _ = qkv()

    def reflection(b: int, h: int, t: int) -> Tensor:
        projected = [part.up[0] @ (part.down[0] @ row) for row in x[b]]
        z = convolved_slowly(projected, part.kernel[0], t)[h * K : (h + 1) * K]
        w = z / (1 + torch.exp(-z))
        w = w / w.square().sum().sqrt()
        beta = 2 / (1 + torch.exp(-(part.u[0, h] @ x[b, t] + part.b[0, h])))
        return torch.eye(K).double() - beta * torch.outer(w, w)

    H_t = {
        (b, h, t): reflection(b, h, t) for b in range(2) for h in range(H) for t in range(LENGTH)
    }

    def logit(b: int, h: int, i: int, j: int) -> Tensor:
        key = k[b, h, j]
        for t in range(j + 1, i + 1):
            key = H_t[b, h, t] @ key
        return q[b, h, i] @ key / 2 + sloped(h, i, j)

    got = attended(part, Sloped(part.shape), n_last=n_last)
    close(got, slowly(n_last, logit), atol=1e-12)


@LAST
@pytest.mark.parametrize("base", [None, 100.0])
def test_linear_attention_equals_equation_19_of_roformer(n_last: int, base: float | None) -> None:
    part = LinearAttention(shape_of_heads(), base=base).double()
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

    got = attended(part, n_last=n_last)
    for b in range(2):
        for h in range(H):
            for i in range(LENGTH - n_last, LENGTH):
                top, below = torch.zeros(K).double(), 0.0
                for j in range(i + 1):
                    f, g = feature(q[b, h, i]), feature(k[b, h, j])
                    top += (turned(f, i) @ turned(g, j)) * v[b, h, j]
                    below += float(f @ g)
                close(got[b, h, i - LENGTH + n_last], top / below, atol=1e-12)


@LAST
def test_the_gated_delta_rule_equals_its_recurrence(n_last: int) -> None:
    part, x = drawn(GatedDelta(shape_of_heads())), some_x()
    q, k, v = qkv()

    def unit(y: Tensor) -> Tensor:
        z = y / (1 + torch.exp(-y))
        return z / z.square().sum().sqrt()

    got = attended(part, n_last=n_last)
    for b in range(2):
        for h in range(H):
            state = torch.zeros(K, K, dtype=torch.float64)  # from keys to values
            for t in range(LENGTH):
                step = torch.log(1 + torch.exp(part.w_a[0, h] @ x[b, t] + part.c[0, h]))
                a = torch.exp(-torch.exp(part.log_A[0, h]) * step)
                beta = 1 / (1 + torch.exp(-(part.w_b[0, h] @ x[b, t])))
                key = unit(k[b, h, t])
                erased = torch.outer(state @ key, key)
                state = a * (state - beta * erased) + beta * torch.outer(v[b, h, t], key)
                if t >= LENGTH - n_last:
                    want = state @ unit(q[b, h, t]) / 2
                    close(got[b, h, t - LENGTH + n_last], want, atol=1e-12)
