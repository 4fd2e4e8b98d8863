"""What the hooks of a part receive, and what becomes of what they return, in every kernel."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from parts import OwnScores, OwnWeights, Scattered
from small import context, rotated, small_config, small_model, some_qkv, some_tokens
from torch import Tensor

from lengthgen.model.attention import EAGER_BLOCK, attend, blocked, eager, sdpa_by_blocks
from lengthgen.model.transformer import Block, Transformer
from lengthgen.schemes import AttentionContext, LayerHooks, ModelDims, Part, Scheme
from lengthgen.schemes.rotary.rope import Rope

SHAPE = small_config().shape
LENGTH = EAGER_BLOCK + 22  # two blocks of attend(), the second not full
OF_BLOCKS = ("bias", "visible", "scores", "weights", "values")


class LogDistance(Part):
    """-a_h log(1 + distance)."""

    distance_only = True

    def __init__(self, shape: ModelDims) -> None:
        super().__init__(shape)
        self.a = torch.nn.Parameter(torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64))

    def bias(self, c: AttentionContext) -> Tensor:
        return -self.a[:, None, None].to(c.dtype) * torch.log1p(c.distance())


class Forgetting(Part):
    """The sum of log gates from the key to the query, gates of the layer's input: [B, H, Q, S]."""

    def __init__(self, shape: ModelDims) -> None:
        super().__init__(shape)
        draws = torch.Generator().manual_seed(2)
        drawn = torch.randn(4, shape.d_model, generator=draws, dtype=torch.float64)
        self.gate = torch.nn.Parameter(0.3 * drawn)

    def bias(self, c: AttentionContext) -> Tensor:
        gates = torch.nn.functional.logsigmoid(c.x_BTD @ self.gate.T + 2).transpose(1, 2).cumsum(-1)
        return gates[:, :, c.rows, None] - gates[:, :, None, c.cols]


class Above(Part):
    """-distance / 10 below the diagonal, `value` above it."""

    def __init__(self, value: float) -> None:
        super().__init__(SHAPE)
        self.value = value

    def bias(self, c: AttentionContext) -> Tensor:
        far = (c.q_pos[:, None] - c.k_pos).to(c.dtype)
        return (-far / 10).masked_fill(far < 0, self.value).expand(c.shape.n_heads, -1, -1)


class AboveOverDistances(Above):
    distance_only = True


class Call(NamedTuple):
    """One call of a hook."""

    hook: str
    c: AttentionContext
    autocast: bool


class Recording(Scattered):
    """Changes nothing but the coordinates; writes down the context of every call of every hook."""

    def __init__(self, shape: ModelDims) -> None:
        super().__init__(shape)
        self.calls: list[Call] = []


def recorded(hook: str) -> Callable[..., Any]:
    """Returns the hook of Recording."""

    def method(self: Recording, *arguments: Any) -> Any:
        c = arguments[-1]
        self.calls.append(Call(hook, c, torch.is_autocast_enabled(c.x_BTD.device.type)))
        return getattr(Scattered, hook)(self, *arguments)

    return method


EVERY_HOOK = {"positions", "embed", "qk", *OF_BLOCKS}
for name in EVERY_HOOK:
    setattr(Recording, name, recorded(name))


def model_under(*parts: Part, dtype: torch.dtype = torch.float64) -> Transformer:
    """Returns a small model with these parts in both its layers."""
    model = small_model("nope", dtype=dtype)
    named = {f"part{i}": part for i, part in enumerate(parts)}
    model.scheme = Scheme(named, layers=None, n_layers=2)
    return model


def layer_of(*parts: Part) -> LayerHooks:
    return model_under(*parts).scheme.layers[0]


def last_queries(c: AttentionContext, n: int) -> AttentionContext:
    return replace(c, q_pos=c.q_pos[..., -n:], rows=slice(c.length - n, c.length))


def every_kernel(
    layer: LayerHooks, q: Tensor, k: Tensor, v: Tensor, c: AttentionContext
) -> dict[str, Tensor]:
    """Returns the outputs of attend() with and without gradients, and of the kernels below it."""
    out = {"training": attend(layer, q, k, v, c)}
    with torch.no_grad():
        out["evaluation"] = attend(layer, q, k, v, c)
    q, k = rotated(layer, q, k, c)
    kernels = (eager,) if layer.eager else (eager, blocked, sdpa_by_blocks)
    for kernel in kernels:
        for block in (7, 64):
            out[f"{kernel.__name__} {block}"] = kernel(layer, q, k, v, c, block=block)
    return out


def textbook(q: Tensor, k: Tensor, v: Tensor, added: Tensor) -> Tensor:
    """Returns softmax(q k^T / sqrt(d) + added) v under the causal mask."""
    later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
    logits = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + added
    return logits.masked_fill(later, -torch.inf).softmax(-1) @ v


def turned(x_BHTK: Tensor, pos_BT: Tensor) -> Tensor:
    """Returns x turned as complex numbers by pos * 100^(-m/4), m = 0 ... 3."""
    theta = pos_BT[:, None, :, None] * 100.0 ** -(torch.arange(4, dtype=torch.float64) / 4)
    pairs = torch.view_as_complex(x_BHTK.unflatten(-1, (4, 2)))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(theta), theta)).flatten(-2)


def far_apart(c: AttentionContext) -> Tensor:
    """Returns the distances between the coordinates of each sequence, [B, 1, T, T]."""
    pos = (1 + c.tokens_BT % 5).cumsum(-1).double()
    return (pos[:, None, :, None] - pos[:, None, None, :]).clamp(min=0)


def test_coordinates_and_biases_of_each_sequence_are_those_of_the_textbook_in_every_kernel() -> (
    None
):
    distance, forgetting = LogDistance(SHAPE), Forgetting(SHAPE)
    rope = Rope(SHAPE, base=100, rotary_percentage=1, layout="interleaved")
    model = model_under(Scattered(SHAPE), rope, forgetting, distance)
    c = context(model, LENGTH, dtype=torch.float64)
    q, k, v = leaves = [x.requires_grad_() for x in some_qkv(LENGTH, dtype=torch.float64)]
    pos = (1 + c.tokens_BT % 5).cumsum(-1)
    gates = torch.sigmoid(c.x_BTD @ forgetting.gate.T + 2).log().transpose(1, 2).cumsum(-1)
    added = gates[..., :, None] - gates[..., None, :]
    added = added - distance.a[:, None, None] * torch.log1p(far_apart(c))
    textbooks = textbook(turned(q, pos), turned(k, pos), v, added)
    inputs = [*leaves, *model.scheme.parameters()]
    for n in (5, LENGTH):
        want = textbooks[:, :, -n:]
        weight = torch.randn_like(want)
        slopes = torch.autograd.grad((want * weight).sum(), inputs, retain_graph=True)
        outputs = every_kernel(model.scheme.layers[0], q[:, :, -n:], k, v, last_queries(c, n))
        for name, got in outputs.items():
            assert (got - want).abs().max() < 1e-12, name
            if name == "evaluation":
                continue
            gradients = torch.autograd.grad((got * weight).sum(), inputs, retain_graph=True)
            for one, other in zip(gradients, slopes, strict=True):
                assert (one - other).abs().max() < 1e-11, name


@pytest.mark.parametrize(
    ("kind", "owners"),
    [(Above, []), (AboveOverDistances, []), (Above, [OwnScores]), (Above, [OwnWeights])],
)
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_bias_above_the_diagonal_never_reaches_the_output(
    value: float, kind: type[Above], owners: list[type[Part]]
) -> None:
    q, k, v = some_qkv(LENGTH, dtype=torch.float64)
    c = context(small_model("nope"), LENGTH, dtype=torch.float64)
    others = [owner(SHAPE) for owner in owners]
    for at in (c, last_queries(c, 140)):
        q_at = q[:, :, at.rows]
        want = every_kernel(layer_of(kind(0.0), *others), q_at, k, v, at)
        got = every_kernel(layer_of(kind(value), *others), q_at, k, v, at)
        for name in want:
            assert torch.equal(got[name], want[name]), name


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("sampled", [True, False])
def test_every_hook_is_told_of_the_call_that_it_acts_in(training: bool, sampled: bool) -> None:
    part = Recording(SHAPE)
    model = model_under(part).train(training)
    tokens = some_tokens(LENGTH)
    generator = torch.Generator() if sampled else None
    model(tokens, generator=generator)
    assert {call.hook for call in part.calls} == EVERY_HOOK
    for hook, c, _ in part.calls:
        assert c.shape == model.shape, hook
        assert c.length == LENGTH, hook
        assert c.training == training, hook
        assert c.generator is generator, hook
        assert c.dtype == torch.float64, hook
        assert torch.equal(c.tokens_BT, tokens), hook


@pytest.mark.parametrize("n_last", [None, 3])
def test_the_hooks_of_a_layer_see_its_number_and_its_normalised_input(n_last: int | None) -> None:
    part = Recording(SHAPE)
    model = model_under(part)
    normed: list[Tensor] = []

    def keep(_module: torch.nn.Module, _inputs: object, output: Tensor) -> None:
        normed.append(output)

    for block in model.blocks:
        assert isinstance(block, Block)
        block.attention_norm.register_forward_hook(keep)
    model(some_tokens(LENGTH), n_last=n_last)
    of_layers = [call for call in part.calls if call.hook not in ("positions", "embed")]
    seen = {(call.hook, call.c.layer) for call in of_layers}
    assert seen == {(hook, i) for hook in ("qk", *OF_BLOCKS) for i in (0, 1)}
    for hook, c, _ in of_layers:
        assert torch.equal(c.x_BTD, normed[c.layer]), hook


@pytest.mark.parametrize("n_last", [None, 3, 140])
@pytest.mark.parametrize("hook", ["qk", *OF_BLOCKS])
def test_a_hook_sees_the_rows_columns_and_coordinates_of_its_block(
    hook: str, n_last: int | None
) -> None:
    part = Recording(SHAPE)
    tokens = some_tokens(LENGTH)
    pos = (1 + tokens % 5).cumsum(-1)
    model_under(part)(tokens, n_last=n_last)
    block = LENGTH if hook == "qk" else EAGER_BLOCK
    for i in (0, 1):
        calls = [call.c for call in part.calls if call.hook == hook and call.c.layer == i]
        first = LENGTH - n_last if n_last and i == 1 else 0
        assert sorted(c.rows.start for c in calls) == list(range(first, LENGTH, block))
        for c in calls:
            stop = min(c.rows.start + block, LENGTH)
            assert (c.rows.stop, c.cols) == (stop, slice(0, stop))
            assert torch.equal(c.pos, pos)
            assert torch.equal(c.q_pos, pos[:, c.rows])
            assert torch.equal(c.k_pos, pos[:, :stop])


@pytest.mark.parametrize("grad", [True, False])
def test_autocast_is_off_in_every_hook(grad: bool) -> None:
    part = Recording(SHAPE)
    model = model_under(part, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(grad):
        model(some_tokens(LENGTH))
    assert {call.hook for call in part.calls} == EVERY_HOOK
    assert {call.hook for call in part.calls if call.autocast} == set()
