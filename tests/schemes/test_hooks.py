"""What the hooks of a part receive, and what becomes of what they return, in every kernel."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from parts import OwnScores, OwnWeights, Scattered, textbook
from small import context, layer_of, rotated, small_config, small_model, some_qkv, some_tokens
from torch import Tensor

from lengthgen.model.attention import BLOCK, attend, blocked, eager, sdpa_by_blocks
from lengthgen.model.transformer import Block, Transformer
from lengthgen.schemes import AttentionContext, LayerHooks, ModelDims, Part, Scheme
from lengthgen.schemes.bias.alibi import AlibiLearned
from lengthgen.schemes.content.fox import Fox
from lengthgen.schemes.rotary.rope import Rope

SHAPE = small_config().shape
LENGTH = BLOCK + 22  # two blocks of attend(), the second not full
OF_BLOCKS = ("bias", "visible", "scores", "weights", "values")


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


class Recording(Scattered):
    """Changes nothing but the coordinates; writes down the context of every call of every hook."""

    def __init__(self, shape: ModelDims) -> None:
        super().__init__(shape)
        self.calls: list[tuple[str, AttentionContext, bool]] = []  # hook, context, autocast


def recorded(hook: str) -> Callable[..., Any]:
    """Returns the hook of Recording."""

    def method(self: Recording, *arguments: Any) -> Any:
        c = arguments[-1]
        self.calls.append((hook, c, torch.is_autocast_enabled(c.x_BTD.device.type)))
        if hook in ("bias", "visible"):  # which by default are not there
            nothing = torch.zeros_like(c.distance())
            return nothing if hook == "bias" else nothing == 0
        return getattr(Scattered, hook)(self, *arguments)

    return method


EVERY_HOOK = {"positions", "embed", "qk", *OF_BLOCKS}
for name in EVERY_HOOK:
    setattr(Recording, name, recorded(name))


def model_under(*parts: Part) -> Transformer:
    """Returns a small model with these parts in both its layers."""
    model = small_model("nope")
    named = {f"part{i}": part for i, part in enumerate(parts)}
    model.scheme = Scheme(named, layers=None, n_layers=2)
    return model


def last_queries(c: AttentionContext, n: int) -> AttentionContext:
    return replace(c, q_pos=c.q_pos[..., -n:], rows=slice(c.length - n, c.length))


def every_kernel(
    layer: LayerHooks, q: Tensor, k: Tensor, v: Tensor, c: AttentionContext
) -> dict[str, Tensor]:
    """Returns the outputs of attend() with and without gradients, and of the kernels below it."""
    c = replace(c, hooks=layer)
    out = {"training": attend(q, k, v, c)}
    with torch.no_grad():
        out["evaluation"] = attend(q, k, v, c)
    q, k = rotated(layer, q, k, c)
    for kernel in (eager,) if layer.eager else (eager, blocked, sdpa_by_blocks):
        for block in (7, 64):
            out[f"{kernel.__name__} {block}"] = kernel(q, k, v, c, block=block)
    return out


def turned(x_BHTK: Tensor, pos_BT: Tensor) -> Tensor:
    """Returns x turned as complex numbers by pos * 100^(-m/4), m = 0 ... 3."""
    theta = pos_BT[:, None, :, None] * 100.0 ** -(torch.arange(4, dtype=torch.float64) / 4)
    pairs = torch.view_as_complex(x_BHTK.unflatten(-1, (4, 2)))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(theta), theta)).flatten(-2)


def test_every_kernel_has_the_coordinates_and_biases_of_each_sequence() -> None:
    slope, fox = AlibiLearned(SHAPE, share_layers=True).double(), Fox(SHAPE, gate_bias=2.0).double()
    rope = Rope(SHAPE, base=100, rotary_percentage=1, layout="interleaved")
    model = model_under(Scattered(SHAPE), rope, fox, slope)
    c = context(model, LENGTH, dtype=torch.float64)
    q, k, v = leaves = [x.requires_grad_() for x in some_qkv(LENGTH, dtype=torch.float64)]
    pos = (1 + c.tokens_BT % 5).cumsum(-1)
    distance = (pos[:, None, :, None] - pos[:, None, None, :]).clamp(min=0)
    gates = torch.sigmoid(c.x_BTD @ fox.w[0].T + fox.b[0]).log().transpose(1, 2).cumsum(-1)
    added = gates[..., :, None] - gates[..., None, :]
    added = added - slope.log_slopes[0].exp()[:, None, None] * distance
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
            for ours, theirs in zip(gradients, slopes, strict=True):
                assert (ours - theirs).abs().max() < 1e-11, name


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


@pytest.mark.parametrize("n_last", [None, 3, 140])
def test_every_hook_is_told_of_its_call_its_layer_and_its_block(n_last: int | None) -> None:
    part, tokens, normed = Recording(SHAPE), some_tokens(LENGTH), list[Tensor]()
    model = model_under(part).train(n_last is None)

    def keep(_module: torch.nn.Module, _inputs: object, x: Tensor) -> None:
        normed.append(x)

    generator = torch.Generator() if n_last is None else None
    for block in model.blocks:
        assert isinstance(block, Block)
        block.attention_norm.register_forward_hook(keep)
    with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(n_last != 3):
        model(tokens, n_last=n_last, generator=generator)
    assert {hook for hook, *_ in part.calls} == EVERY_HOOK
    pos, starts = (1 + tokens % 5).cumsum(-1), dict[tuple[str, int], set[int]]()
    for hook, c, autocast in part.calls:
        told = c.shape, c.length, c.training, c.dtype, autocast
        assert told == (model.shape, LENGTH, n_last is None, torch.float64, False), hook
        assert c.generator is generator, hook
        assert torch.equal(c.tokens_BT, tokens), hook
        if hook in ("positions", "embed"):
            continue
        starts.setdefault((hook, c.layer), set()).add(c.rows.start)
        stop = min(c.rows.start + (LENGTH if hook == "qk" else BLOCK), LENGTH)
        assert (c.rows.stop, c.cols) == (stop, slice(0, stop)), hook
        of_block = (c.x_BTD, normed[c.layer]), (c.pos, pos), (c.q_pos, pos[:, c.rows])
        for got, want in (*of_block, (c.k_pos, pos[:, :stop])):
            assert torch.equal(got, want), hook
    for hook in ("qk", *OF_BLOCKS):
        for i, first in ((0, 0), (1, LENGTH - n_last if n_last else 0)):
            step = LENGTH if hook == "qk" else BLOCK
            assert starts[hook, i] == set(range(first, LENGTH, step)), hook
