"""What every shipped scheme and variant must hold, whatever it computes."""

import itertools
from dataclasses import replace

import pytest
import torch
from small import (
    close,
    context,
    every_scheme,
    hidden,
    rotated,
    small_config,
    small_model,
    some_qkv,
    some_tokens,
)

from lengthgen.config.compose import choices
from lengthgen.errors import UserError
from lengthgen.model.attention import attend, blocked, eager, sdpa_by_blocks
from lengthgen.model.build import create, with_parts
from lengthgen.model.kv_cache import forward_cached
from lengthgen.model.transformer import Transformer
from lengthgen.schemes import registry

EVERY = pytest.mark.parametrize(("name", "variant"), every_scheme())
LENGTH = 48  # 3 T: past the trained length for every scheme


def length_for(model: Transformer) -> int:
    return LENGTH if model.scheme.unsupported_reason(LENGTH) is None else model.shape.train_length


@EVERY
def test_a_later_token_never_changes_an_earlier_output(name: str, variant: str | None) -> None:
    model = small_model(name, variant, dtype=torch.float32)
    length = length_for(model)
    tokens = some_tokens(length)
    changed = tokens.clone()
    changed[:, length // 2 :] = (changed[:, length // 2 :] + 7) % 50
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            before, after = hidden(model, tokens), hidden(model, changed)
        assert torch.equal(before[:, : length // 2], after[:, : length // 2])
        assert not torch.allclose(before[:, length // 2 :], after[:, length // 2 :])


@EVERY
def test_the_kernels_that_attend_picks_and_blocks_of_any_size_equal_the_explicit_blocks(
    name: str, variant: str | None
) -> None:
    model = small_model(name, variant)
    length = length_for(model)
    c = context(model, length, dtype=torch.float64)
    for layer in model.scheme.layers:
        c = replace(c, hooks=layer)
        q, k, v = some_qkv(length, dtype=torch.float64)
        q_turned, k_turned = rotated(layer, q, k, c)
        want = eager(q_turned, k_turned, v, c, block=length)
        with torch.no_grad():
            close(attend(q, k, v, c), want, atol=1e-12)
        close(attend(q, k, v, c), want, atol=1e-12)
        kernels = [eager]
        if not layer.eager and (layer.contiguous or not layer.relative):
            kernels.append(blocked)
        if not (layer.eager or layer.relative):
            kernels.append(sdpa_by_blocks)
        for kernel, block in itertools.product(kernels, (7, 64)):
            close(kernel(q_turned, k_turned, v, c, block=block), want, atol=1e-12)


@EVERY
def test_gradients_of_the_training_kernel_equal_those_of_the_explicit_blocks(
    name: str, variant: str | None
) -> None:
    model = small_model(name, variant)
    length = length_for(model)
    layer = model.scheme.layers[0]
    c = replace(context(model, length, dtype=torch.float64), hooks=layer)
    leaves = [*some_qkv(length, dtype=torch.float64)]
    for leaf in leaves:
        leaf.requires_grad_()
    parameters = [*leaves, *model.scheme.parameters()]
    q, k, v = leaves
    weight = torch.randn_like(v)

    def gradients(out: torch.Tensor) -> list[torch.Tensor | None]:
        return list(torch.autograd.grad((out * weight).sum(), parameters, allow_unused=True))

    got = gradients(attend(q, k, v, c))
    want = gradients(eager(*rotated(layer, q, k, c), v, c, block=length))
    for one, other in zip(got, want, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            close(one, other, atol=1e-11)


@EVERY
def test_the_last_queries_alone_give_the_last_rows(name: str, variant: str | None) -> None:
    model = small_model(name, variant)
    tokens = some_tokens(length_for(model))
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            close(hidden(model, tokens, n_last=5), hidden(model, tokens)[:, -5:], atol=1e-12)


@EVERY
def test_a_call_is_not_changed_by_shorter_or_longer_calls_before_it(
    name: str, variant: str | None
) -> None:
    model = small_model(name, variant)
    length = length_for(model)
    with torch.no_grad():
        first = hidden(model, some_tokens(length))
        hidden(model, some_tokens(length // 3))
        after_shorter = hidden(model, some_tokens(length))
        if model.scheme.unsupported_reason(2 * length) is None:
            hidden(model, some_tokens(2 * length))
        after_longer = hidden(model, some_tokens(length))
    assert torch.equal(first, after_shorter)
    assert torch.equal(first, after_longer)


@EVERY
def test_a_prefix_alone_gives_the_same_rows_unless_the_scheme_says_otherwise(
    name: str, variant: str | None
) -> None:
    model = small_model(name, variant)
    length = length_for(model)
    tokens = some_tokens(length)
    with torch.no_grad():
        prefix = hidden(model, tokens[:, : length // 2])
        whole = hidden(model, tokens)[:, : length // 2]
    same = torch.allclose(prefix, whole, rtol=0, atol=1e-11)
    assert same != model.scheme.depends_on_length


@EVERY
def test_shifting_all_positions_changes_nothing_where_that_is_claimed(
    name: str, variant: str | None
) -> None:
    model = small_model(name, variant)
    length = length_for(model)
    tokens = some_tokens(length)
    here = context(model, length, dtype=torch.float64)
    shift = 0 if model.scheme.unsupported_reason(length + 5) else 5
    there = context(model, length, dtype=torch.float64, shift=shift)
    q, k, v = some_qkv(length, dtype=torch.float64)
    x = model.embedding(tokens)
    with torch.no_grad():
        for parameter in model.scheme.parameters():
            parameter.mul_(0.5)  # the claim is about all values, as of a threshold below T
    same = torch.allclose(model.scheme.embed(x, here), model.scheme.embed(x, there), atol=1e-12)
    for layer in model.scheme.layers:
        here, there = (replace(c, hooks=layer) for c in (here, there))
        with torch.no_grad():
            same = same and torch.allclose(
                attend(q, k, v, here), attend(q, k, v, there), rtol=0, atol=1e-11
            )
    assert same == (model.scheme.shift_invariant or shift == 0)


@EVERY
def test_gradients_are_finite_and_reach_every_parameter(name: str, variant: str | None) -> None:
    model = small_model(name, variant, dtype=torch.float32)
    tokens = some_tokens(model.shape.train_length)
    nats = model.token_nll(hidden(model, tokens), tokens)
    nats.sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{key} takes no part in the output"
        assert torch.isfinite(parameter.grad).all(), key


@EVERY
def test_bf16_biases_and_rotations_at_16k_are_fp32_ones_rounded(
    name: str, variant: str | None
) -> None:
    model, exact = (small_model(name, variant, dtype=d) for d in (torch.float32, torch.float64))
    at = 16_384 - LENGTH
    for layer, exact_layer in zip(model.scheme.layers, exact.scheme.layers, strict=True):
        low, high = (
            context(model, LENGTH, dtype=dtype, shift=at)
            for dtype in (torch.bfloat16, torch.float64)
        )
        for part, exact_part in zip(layer.bias, exact_layer.bias, strict=True):
            got, want = part.bias(low), exact_part.bias(high)
            assert got is not None
            assert want is not None
            assert got.dtype == torch.float32
            torch.testing.assert_close(got.double(), want.double(), rtol=1e-5, atol=1e-5)
        q, k, _ = some_qkv(LENGTH, dtype=torch.bfloat16)
        for got, want in zip(
            rotated(layer, q, k, low),
            rotated(exact_layer, q.double(), k.double(), high),
            strict=True,
        ):
            # bf16 keeps 8 bits; angles at 16k are off by 16384 * 2^-24 < 1e-3.
            torch.testing.assert_close(got.double(), want, rtol=2**-7, atol=2e-2)


@pytest.mark.slow
@pytest.mark.parametrize("name", choices("scheme", config_dir=None))
def test_bf16_takes_every_variant_that_a_scheme_takes_to_evaluate_decode_and_train(
    name: str,
) -> None:
    config, model = small_config(f"scheme={name}"), small_model(name, dtype=torch.float32)
    known, own = {**config.variants, **config.scheme.variants}, model.scheme
    remaps = [v for v, parts in known.items() if any(registry()[part].remaps for part in parts)]
    pairs = [f"{a}+{b}" for a in remaps for b in ("logn", "llama4_temperature", "temperature")]
    tokens = some_tokens(length_for(model))
    for variant in (None, *known, *pairs):
        model.scheme = own
        if variant is not None:
            try:
                model.scheme = with_parts(model, config, config.variant(variant))
            except UserError:  # it is not for this scheme
                continue
        with torch.no_grad():
            exact = hidden(model, tokens)
        with torch.autocast("cpu", torch.bfloat16):
            trained = hidden(model, tokens)
            with torch.no_grad():
                evaluated = hidden(model, tokens)
        cache = forward_cached(model, tokens[:, :-1], None, seed=0, precision="bf16")
        cache = forward_cached(model, tokens[:, -1:], cache, seed=0, precision="bf16")
        trained.float().sum().backward()
        assert off(trained, exact) < 0.05, variant
        assert off(evaluated, exact) < 0.05, variant
        if name != "randomized_rope":  # decoding draws other positions
            assert off(cache.logits_BV, model.logits(exact[:, -1])) < 0.1, variant


def off(got: torch.Tensor, want: torch.Tensor) -> float:
    """Returns the mean error relative to the mean size."""
    return float(((got.float() - want).abs().mean() / want.abs().mean()).detach())


@pytest.mark.parametrize("name", ["rope", "t5", "tape", "transformer_xl_recurrent"])
def test_schemes_at_one_seed_start_from_the_same_network(name: str) -> None:
    plain, other = (
        create(small_config(f"scheme={each}"), vocab_size=50) for each in ("nope", name)
    )
    weights = dict(other.named_parameters())
    for key, parameter in plain.named_parameters():
        assert torch.equal(parameter, weights[key])
