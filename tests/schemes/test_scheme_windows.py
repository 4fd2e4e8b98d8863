"""Windows of attention: what a query sees, and the scheme that has them in some of its layers."""

import pytest
import torch
from parts import Sloped
from small import (
    close,
    context,
    hidden,
    layer_of,
    rotated,
    small_config,
    small_model,
    some_qkv,
    some_tokens,
)
from torch import Tensor

from lengthgen import schemes
from lengthgen.model.attention import attend, eager
from lengthgen.schemes import Part, Scheme
from lengthgen.schemes.mask.window import Window
from lengthgen.schemes.rotary.rope import Rope

SHAPE = small_config().shape  # T = 16
LENGTH = 40


def seen(part: Window, length: int) -> Tensor:
    """Returns which keys up to its own each query sees, [T, T]."""
    c = context(small_model("nope"), length, dtype=torch.float64)
    return part.visible(c).tril()


@pytest.mark.parametrize("sinks", [0, 1, 4, 15])
def test_a_query_sees_the_first_and_the_most_recent_keys_and_its_own(sinks: int) -> None:
    got = seen(Window(SHAPE, width=1, sinks=sinks), LENGTH)
    for i, row in enumerate(got):
        keys = range(i + 1)
        want = {*keys[:sinks], *keys[-(16 - sinks) :]}
        assert set(row.nonzero().flatten().tolist()) == want
        assert len(want) == min(i + 1, 16)


def test_a_window_hides_keys_and_leaves_the_biases_of_the_others() -> None:
    layer = layer_of(Sloped(SHAPE), Window(SHAPE, width=0.5, sinks=2))
    q, k, v = some_qkv(LENGTH, dtype=torch.float64)
    c = context(small_model("nope"), LENGTH, dtype=torch.float64)
    logits = q @ k.transpose(-1, -2) / 8**0.5
    for i in range(LENGTH):
        for j in range(LENGTH):
            if j <= i and (j < 2 or i - j < 6):
                logits[:, :, i, j] -= (i - j) / 10 * torch.arange(1, 5, dtype=torch.float64)
            else:
                logits[:, :, i, j] = -torch.inf
    want = logits.softmax(-1) @ v
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            close(attend(layer, q, k, v, c), want, atol=1e-12)


def test_lm_infinite_sees_sinks_at_the_trained_length_and_recent_keys_at_their_own() -> None:
    model = small_model("rope", "lm_infinite")
    rope, window, _ = model.scheme.all
    assert isinstance(rope, Rope)
    assert isinstance(window, Window)
    q, k, v = some_qkv(LENGTH, dtype=torch.float64)
    c = context(model, LENGTH, dtype=torch.float64)
    omega = 1e4 ** -(torch.arange(4, dtype=torch.float64) / 4)
    q_c, k_c = (torch.complex(x[..., :4], x[..., 4:]) for x in (q, k))
    logits = torch.full((2, 4, LENGTH, LENGTH), -torch.inf, dtype=torch.float64)
    for i in range(LENGTH):
        for j in range(i + 1):
            if j < 10 or i - j < 6:
                turn = torch.polar(torch.ones(4, dtype=torch.float64), min(i - j, 16) * omega)
                logits[:, :, i, j] = (q_c[:, :, i] * k_c[:, :, j].conj() * turn).real.sum(-1)
    want = (logits / 8**0.5).softmax(-1) @ v
    close(attend(model.scheme.layers[0], q, k, v, c), want, atol=1e-12)


def with_variant(name: str) -> Scheme:
    """Returns the scheme over five layers under one of the variants that any scheme may take."""
    config = small_config("scheme=rnope_swa", "model.n_layers=5")
    parts, layers = config.variant(name), config.scheme.layers
    return schemes.build(parts, layers=layers, shape=config.shape)


def rnope_swa(**more: Part) -> Scheme:
    """Returns the scheme over five layers, with more parts than it has."""
    config = small_config("scheme=rnope_swa", "model.n_layers=5")
    built = schemes.build(config.scheme.parts, layers=config.scheme.layers, shape=config.shape)
    parts = dict(zip(config.scheme.parts, built.all, strict=True))
    return Scheme({**parts, **more}, layers=config.scheme.layers, n_layers=5)


def test_rnope_swa_has_positions_and_a_window_in_three_layers_of_four() -> None:
    layers = rnope_swa().layers
    acting = [(len(layer.qk), len(layer.visible), layer.vanilla) for layer in layers]
    windowed, full = (1, 1, False), (0, 0, True)
    assert acting == [windowed, windowed, windowed, full, windowed]
    (window,) = layers[0].visible
    assert isinstance(window, Window)
    assert (window.width, window.sinks) == (8, 0)


@pytest.mark.parametrize(("second", "reads"), [(1, False), (3, True)])
def test_rnope_swa_reads_beyond_its_windows_through_the_full_layer_alone(
    second: int, reads: bool
) -> None:
    tokens = some_tokens(LENGTH)
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] + 7) % 50
    model, layers = small_model("rnope_swa"), rnope_swa().layers
    model.scheme.layers = [layers[0], layers[second]]  # two windows of 8 reach 14 tokens back
    with torch.no_grad():
        moved = (hidden(model, tokens) - hidden(model, changed))[:, -1].abs().max()
    assert (moved > 0) == reads


ROTATING = [True, True, True, False, True]


@pytest.mark.parametrize("remap", ["rerope", "streaming_llm"])
def test_a_remap_acts_in_the_layers_that_rotate(remap: str) -> None:
    layers = with_variant(remap).layers
    assert [layer.scores is not None for layer in layers] == ROTATING


@pytest.mark.parametrize("scheme", ["nope", "rope", "alibi", "fox", "kerple"])
def test_keys_that_no_query_of_a_block_sees_are_left_out_without_a_trace(scheme: str) -> None:
    """The window of 16 keys is far narrower than a block of 512 queries and the keys before it."""
    model = small_model(scheme, "window")
    layer, (q, k, v) = model.scheme.layers[0], some_qkv(1400, dtype=torch.float64)
    c = context(model, 1400, dtype=torch.float64)
    with torch.no_grad():
        got = attend(layer, q, k, v, c)
        rotated_q, rotated_k = rotated(layer, q, k, c)
        close(got, eager(layer, rotated_q, rotated_k, v, c, block=1400), atol=1e-12)
        far = k.clone()
        far[:, :, 4:800] += 100  # hidden from the last 500 queries, and no sinks
        moved = attend(layer, q, far, v, c)
        close(moved[:, :, 900:], got[:, :, 900:], atol=1e-12)
        assert not torch.equal(moved[:, :, :800], got[:, :, :800])
