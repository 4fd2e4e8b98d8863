"""Additive biases: reference numbers, the forms they are printed in, and two libraries.

HF transformers 5 and x-transformers 2.31 compute in fp32.
"""

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from repository import published
from small import bare_call, close, dims, imported
from torch import Tensor

from lengthgen.schemes import AttentionContext, ModelDims, Part, part_classes
from lengthgen.schemes.bias.alibi import Alibi, AlibiLearned, slopes
from lengthgen.schemes.bias.bam import Bam
from lengthgen.schemes.bias.dynamic_bias import DynamicBias
from lengthgen.schemes.bias.fire import QUERIES_AT_ONCE, Fire
from lengthgen.schemes.bias.kerple import Kerple, KerplePower
from lengthgen.schemes.bias.t5 import T5
from lengthgen.schemes.parameters import as_linear

LAYERED = {
    "alibi_learned": {},
    "bam": {},
    "dynamic_bias": {"width": 0.5, "depth": 2, "distance": "log"},
    "fire": {"width": 32, "c": 0.1, "threshold": 1.0},
    "kerple": {},
    "kerple_power": {},
    "t5": {"num_buckets": 32, "max_distance": 128},
}


def layered(name: str, *, share_layers: bool) -> Part:
    part: Any = part_classes()[name]
    return part(shape_of(4), share_layers=share_layers, **LAYERED[name])


def shape_of(n_heads: int, *, train_length: int = 512) -> ModelDims:
    return dims(d_model=16, n_layers=3, n_heads=n_heads, train_length=train_length)


def call(part: Part, query: int, *, dtype: torch.dtype = torch.float64) -> AttentionContext:
    """Returns the context of one query at that position, and of all keys up to it."""
    c = bare_call(part.shape, query + 1, dtype=dtype)
    return replace(c, q_pos=c.pos[-1:], rows=slice(query, query + 1))


def bias_at(part: Part, *distances: int, layer: int = 0) -> Tensor:
    """Returns the part's bias of one query at these distances, [H, n]."""
    bias = part.bias(replace(call(part, max(distances)), layer=layer))
    assert bias is not None
    return bias[:, 0].flip(-1)[:, list(distances)]


def set_values(parameter: Tensor, *values: float) -> None:
    with torch.no_grad():
        parameter.copy_(torch.tensor(values, dtype=parameter.dtype))


@pytest.mark.parametrize("case", published("biases"), ids=lambda case: case["scheme"])
def test_a_bias_has_the_published_values(case: dict[str, Any]) -> None:
    arguments = case.get("arguments", {"share_layers": True})
    part = part_classes()[case["scheme"]](shape_of(case["n_heads"]), **arguments)
    for name, values in case.get("set", {}).items():
        set_values(getattr(part, name)[0], *values)
    with torch.no_grad():
        part.clamp_parameters()
        got = bias_at(part, *case["distances"])[case.get("heads", slice(None))]
    want, near = torch.tensor(case["want"], dtype=got.dtype), case["tolerance"]
    torch.testing.assert_close(got, want, rtol=near, atol=near)


@pytest.mark.parametrize("case", published("alibi_slopes"), ids=lambda case: case["n_heads"])
def test_alibi_slopes_are_the_published_ones(case: dict[str, Any]) -> None:
    assert slopes(case["n_heads"]) == pytest.approx(case["want"], rel=1e-9)


@pytest.mark.parametrize("case", published("t5_buckets"), ids=lambda case: case["max_distance"])
def test_t5_buckets_begin_at_the_published_distances_up_to_16k(case: dict[str, Any]) -> None:
    n, starts = case["num_buckets"], case["starts"]
    part = T5(shape_of(1), num_buckets=n, max_distance=case["max_distance"], share_layers=True)
    set_values(part.table[0, 0], *range(n))
    got = bias_at(part, *range(16384))[0]
    assert got.diff().min() >= 0
    assert [int((got == bucket).nonzero()[0]) for bucket in range(n - len(starts), n)] == starts
    assert len(got.unique()) == n


@pytest.mark.parametrize(("length", "factor"), [(256, 1), (512, 1), (1024, 1 / 2), (16384, 1 / 32)])
def test_interpolated_alibi_takes_slopes_times_t_over_l_past_t(length: int, factor: float) -> None:
    part = Alibi(shape_of(8), beyond="interpolate")
    c = call(part, length - 1)
    assert torch.equal(part.bias(c), Alibi(shape_of(8), beyond="extend").bias(c) * factor)
    assert part.depends_on_length


# exp(log m) in fp32; the 1e-5 added to distance 1
@pytest.mark.parametrize(("kind", "rtol"), [(AlibiLearned, 1e-6), (Bam, 2e-5)])
def test_learned_slopes_start_as_alibi(kind: Any, rtol: float) -> None:
    part = kind(shape_of(12), share_layers=True)
    want = bias_at(Alibi(shape_of(12), beyond="extend"), 1, 100, 16383)
    torch.testing.assert_close(bias_at(part, 1, 100, 16383), want, rtol=rtol, atol=0)


def test_kerple_draws_its_parameters_from_the_published_ranges() -> None:
    torch.manual_seed(0)
    log, power = (part(shape_of(10_000), share_layers=True) for part in (Kerple, KerplePower))
    # U(0, 2) where 2, else U(0, 1); 10,000 draws come within 0.001 of both ends.
    for drawn, end in ((log.r1, 2), (log.r2, 1), (power.r1, 1), (power.r2, 2)):
        values = drawn.detach()
        assert 0 <= float(values.min()) < 0.001 * end
        assert 0.999 * end < float(values.max()) <= end
        assert float(values.mean()) == pytest.approx(end / 2, rel=0.03)


def fire(n_heads: int = 2, *, train_length: int = 512, **arguments: Any) -> Fire:
    torch.manual_seed(0)
    given: dict[str, Any] = {"width": 32, "c": 0.1, "threshold": 1.0, "share_layers": True}
    return Fire(shape_of(n_heads, train_length=train_length), **{**given, **arguments})


def network(part: Fire, c: AttentionContext) -> Tensor:
    """Returns the bias as FIRE is printed, width numbers per query and key: [H, Q, S]."""
    layer = c.layer % len(part.c)
    factor, threshold = part.c[layer].abs(), part.w[layer].abs() * part.shape.train_length
    q_pos = c.q_pos if part.last is None else c.q_pos.clamp(max=part.last)
    largest = torch.maximum(q_pos.to(c.dtype), threshold)[:, None]
    x = (factor * c.distance() + 1).log() / ((factor * largest + 1).log() + 1e-6)
    hidden = (x[..., None] * part.weight_in[layer] + part.bias_in[layer]).relu()
    return (hidden @ part.weight_out[layer].T + part.bias_out[layer]).movedim(-1, 0)


@pytest.mark.parametrize("share_layers", [True, False])
def test_fire_by_pieces_is_the_network_in_value_and_gradient(share_layers: bool) -> None:
    length, part = 200, fire(4, train_length=128, share_layers=share_layers).double()
    assert [float(one.detach()[0]) for one in (part.c, part.w)] == pytest.approx([0.1, 1.0])
    with torch.no_grad():
        part.w.add_(torch.tensor([0.0, 0.2, -0.2], dtype=torch.float64)[: len(part.w)])
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    upstream = torch.randn(4, length, length, dtype=torch.float64) * seen
    for layer in range(3):
        c = replace(call(part, length - 1), layer=layer)
        c = replace(c, q_pos=c.pos, rows=slice(0, length))
        got, want = part.bias(c), network(part, c)
        close(got * seen, want * seen, atol=1e-13)
        sums, inputs = ((got * upstream).sum(), (want * upstream).sum()), list(part.parameters())
        for ours, theirs in zip(*(torch.autograd.grad(x, inputs) for x in sums), strict=True):
            close(ours, theirs, atol=1e-10)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
@pytest.mark.parametrize(
    ("beyond", "bends", "first"),
    [
        *(("extend", "as drawn", 0), ("extend", "all within", 99), ("extend", "at one ratio", 300)),
        *(("clamp", "as drawn", 300), ("clamp", "all within", 0)),
    ],
)
def test_fire_without_a_gradient_is_the_network(
    beyond: Literal["extend", "clamp"], bends: str, first: int, dtype: torch.dtype, atol: float
) -> None:
    n_queries, part = QUERIES_AT_ONCE + 40, fire(4, train_length=128, beyond=beyond).to(dtype)
    with torch.no_grad():
        if bends == "all within":
            part.bias_in.copy_(-part.weight_in * torch.rand(32))
        if bends == "at one ratio":
            part.bias_in.copy_(-part.weight_in / 3)
    last = first + n_queries - 1
    c = call(part, last, dtype=dtype)
    c = replace(c, q_pos=c.pos[first:], rows=slice(first, last + 1))
    shifted = replace(c, q_pos=c.q_pos + 1000, k_pos=c.k_pos + 1000)
    seen = torch.ones(n_queries, last + 1, dtype=torch.bool).tril(first)
    for at in (c, shifted):
        exact = replace(at, dtype=torch.float64)
        with torch.no_grad():
            got, want = part.bias(at), network(part.double(), exact)
        part.to(dtype)
        assert got.dtype == dtype
        close((got * seen).double(), want * seen, atol=atol)


def test_networks_are_drawn_as_torch_draws_linear_layers() -> None:
    torch.manual_seed(3)
    layer = torch.nn.Linear(32, 4)
    torch.manual_seed(3)
    drawn = as_linear(1, 4, 32, fan_in=32), as_linear(1, 4, fan_in=32)
    torch.testing.assert_close(drawn[0][0], layer.weight)
    torch.testing.assert_close(drawn[1][0], layer.bias)


@pytest.mark.parametrize("name", LAYERED)
def test_coordinates_of_each_sequence_give_each_its_own_bias(name: str) -> None:
    part = layered(name, share_layers=True).double()
    pos = torch.tensor([[0, 3, 9, 11, 12], [2, 5, 40, 70, 71]])
    bias = part.bias(replace(call(part, 0), q_pos=pos[:, 2:], k_pos=pos))
    assert bias is not None
    for b, i, j in ((0, 0, 2), (0, 2, 0), (1, 1, 1), (1, 2, 2)):
        alone = bias_at(part, int(pos[b, 2 + i] - pos[b, j]))
        close(bias[b, :, i, j], alone[:, 0], atol=1e-13)


@pytest.mark.parametrize("name", LAYERED)
def test_layers_share_parameters_or_have_their_own(name: str) -> None:
    torch.manual_seed(0)
    shared, own = (layered(name, share_layers=share) for share in (True, False))
    counts = [sum(p.numel() for p in part.parameters()) for part in (shared, own)]
    assert counts[1] == 3 * counts[0]
    with torch.no_grad():
        for parameter in own.parameters():
            parameter[1] += 0.1
    first, second, third = (bias_at(own, 3, layer=layer) for layer in range(3))
    assert not torch.allclose(first, second)
    assert not torch.allclose(second, third)
    assert torch.equal(bias_at(shared, 3, layer=0), bias_at(shared, 3, layer=2))


LENGTH = 300
SEEN = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()


def bias_of(part: Part) -> Tensor:
    """Returns the part's bias over a whole call, [H, LENGTH, LENGTH] in fp32."""
    bias = part.bias(bare_call(part.shape, LENGTH, dtype=torch.float32))
    assert bias is not None
    return bias


@pytest.mark.parametrize("distance", ["linear", "log"])
@pytest.mark.parametrize("depth", [1, 3])
def test_dynamic_bias_is_of_x_transformers(depth: int, distance: Literal["linear", "log"]) -> None:
    module = imported("x_transformers.x_transformers")
    torch.manual_seed(0)
    theirs = module.DynamicPositionBias(dim=8, heads=4, depth=depth, log_distance=distance == "log")
    given: Any = {"width": 0.25, "depth": depth, "distance": distance, "share_layers": True}
    part = DynamicBias(replace(shape_of(4), d_model=32), **given)
    layers = [one for one in theirs.modules() if isinstance(one, torch.nn.Linear)]
    with torch.no_grad():
        for i, layer in enumerate(layers):
            part.linear_weights[i][0] = layer.weight
            part.linear_biases[i][0] = layer.bias
        wanted = theirs(LENGTH, LENGTH)
    assert len(layers) == len(part.linear_weights) == depth + 1
    # Theirs is fp32 throughout, at inputs of up to 300.
    torch.testing.assert_close(bias_of(part) * SEEN, wanted * SEEN, rtol=1e-5, atol=1e-4)
