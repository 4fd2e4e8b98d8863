"""What every shipped scheme and variant must hold, whatever it computes."""

import copy
import itertools
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from repository import example
from small import (
    close,
    context,
    create,
    every_scheme,
    hidden,
    is_shift_invariant,
    rotated,
    small_config,
    small_model,
    some_qkv,
    some_tokens,
    varied,
)
from torch import Tensor

from lengthgen.config.conf import choices
from lengthgen.errors import UserError
from lengthgen.model.attention import attend, blocked, eager, sdpa_by_blocks
from lengthgen.model.kv_cache import forward_cached
from lengthgen.model.transformer import Transformer
from lengthgen.schemes import AttentionContext, part_classes

T, LENGTH = 16, 48  # 3 T: past the trained length for every scheme
EXAMPLES = {  # parts of the documentation, with their file and arguments
    "my_bias": ("my_bias.py", "{start: 1.0}"),
    "hinge": ("hinge.py", "{floor: 8}"),
    "decay": ("my_parts.py", "{}"),
    "turn": ("my_parts.py", "{}"),
}


def length_for(model: Transformer) -> int:
    return LENGTH if model.scheme.unsupported_reason(LENGTH) is None else T


class Case(NamedTuple):
    """A model in float64 and its inputs: queries, keys and values, and the context of layer 0."""

    model: Transformer
    length: int
    tokens: Tensor
    qkv: tuple[Tensor, Tensor, Tensor]
    c: AttentionContext

    def hidden(self, *, n_last: int | None = None) -> Tensor:
        return hidden(self.model, self.tokens, n_last=n_last)


CASES = every_scheme() + [(name, None) for name in EXAMPLES if name not in part_classes()]


@pytest.fixture(params=CASES, ids=lambda pair: "+".join(filter(None, pair)))
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    name, variant = request.param
    words, plugins = list[str](), list[Path]()
    if name in EXAMPLES and name not in part_classes():
        file, arguments = EXAMPLES[name]
        words, plugins = [f"+scheme.parts.{name}={arguments}"], [tmp_path / file]
        plugins[0].write_text(example(file))
        name = "nope"
    model = small_model(name, variant, words=words, plugins=plugins)
    length = length_for(model)
    c, qkv = context(model, length, dtype=torch.float64), some_qkv(length, dtype=torch.float64)
    return Case(model, length, some_tokens(length), qkv, c)


def test_a_later_token_never_changes_an_earlier_output(case: Case) -> None:
    model, half, changed = case.model.float(), case.length // 2, case.tokens.clone()
    changed[:, half:] = (changed[:, half:] + 7) % 50
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            before, after = case.hidden(), hidden(model, changed)
        assert torch.equal(before[:, :half], after[:, :half])
        assert not torch.allclose(before[:, half:], after[:, half:])


def test_kernels_and_blocks_of_any_size_equal_the_explicit_blocks(case: Case) -> None:
    q, k, v = case.qkv
    for layer in case.model.scheme.layers:
        c = replace(case.c, hooks=layer)
        turned = rotated(layer, q, k, c)
        want = eager(*turned, v, c, block=case.length)
        with torch.no_grad():
            close(attend(q, k, v, c), want, atol=1e-12)
        close(attend(q, k, v, c), want, atol=1e-12)
        kernels = [eager]
        if not layer.eager:
            kernels += [blocked, sdpa_by_blocks]
        for kernel, block in itertools.product(kernels, (7, 64)):
            close(kernel(*turned, v, c, block=block), want, atol=1e-12)


def test_gradients_in_training_equal_those_of_eager(case: Case) -> None:
    (q, k, v), layer = case.qkv, case.model.scheme.layers[0]
    c = replace(case.c, hooks=layer)
    inputs = [*(leaf.requires_grad_() for leaf in case.qkv), *case.model.scheme.parameters()]
    weight = torch.randn_like(v)

    def gradients(out: Tensor) -> list[Tensor | None]:
        return list(torch.autograd.grad((out * weight).sum(), inputs, allow_unused=True))

    got = gradients(attend(q, k, v, c))
    want = gradients(eager(*rotated(layer, q, k, c), v, c, block=case.length))
    for one, other in zip(got, want, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            close(one, other, atol=1e-11)


def test_the_last_queries_alone_give_the_last_rows(case: Case) -> None:
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            close(case.hidden(n_last=5), case.hidden()[:, -5:], atol=1e-12)


@torch.no_grad()
def test_shorter_or_longer_calls_before_change_no_call(case: Case) -> None:
    first, longer = case.hidden(), 2 * case.length
    for length in (case.length // 3, longer):
        if case.model.scheme.unsupported_reason(length) is None:
            hidden(case.model, some_tokens(length))
            assert torch.equal(case.hidden(), first)


@torch.no_grad()
def test_a_prefix_gives_the_same_rows_unless_length_matters(case: Case) -> None:
    half = case.length // 2
    prefix, whole = hidden(case.model, case.tokens[:, :half]), case.hidden()[:, :half]
    same = torch.allclose(prefix, whole, rtol=0, atol=1e-11)
    assert same != case.model.scheme.depends_on_length


@torch.no_grad()
def test_training_draws_from_the_generator_of_the_call_alone(case: Case) -> None:
    case.model.train()
    outputs: list[Tensor] = []
    with torch.random.fork_rng(devices=[]):
        for seed in (1, 2):
            torch.manual_seed(seed)
            outputs.append(case.hidden())
    assert torch.equal(*outputs)


@torch.no_grad()
def test_a_row_alone_gives_what_it_gives_in_its_batch(case: Case) -> None:
    for training in (False, True):
        case.model.train(training)
        alone = [hidden(case.model, row) for row in case.tokens.split(1)]
        close(torch.cat(alone), case.hidden(), atol=1e-12)


@torch.no_grad()
def test_outputs_far_beyond_the_trained_length_are_finite(case: Case) -> None:
    far = 32 * T
    if case.model.scheme.unsupported_reason(far) is None:
        assert torch.isfinite(hidden(case.model, some_tokens(far), n_last=1)).all()


@torch.no_grad()
def test_shifted_positions_change_nothing_where_claimed(case: Case) -> None:
    model, scheme, (q, k, v) = case.model, case.model.scheme, case.qkv
    shift = 0 if scheme.unsupported_reason(case.length + 5) else 5
    here, there = case.c, context(model, case.length, dtype=torch.float64, shift=shift)
    for parameter in scheme.parameters():
        parameter.mul_(0.5)  # the claim is about all values, as of a threshold below T
    x = model.embedding(case.tokens)
    same = torch.allclose(scheme.embed(x, here), scheme.embed(x, there), rtol=0, atol=1e-12)
    for layer in scheme.layers:
        one, other = (attend(q, k, v, replace(c, hooks=layer)) for c in (here, there))
        same = same and torch.allclose(one, other, rtol=0, atol=1e-11)
    assert same == (is_shift_invariant(scheme) or shift == 0)


def test_gradients_are_finite_and_reach_every_parameter(case: Case) -> None:
    model, tokens = case.model.float(), case.tokens[:, :T]
    model.token_nll(hidden(model, tokens), tokens).sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{key} takes no part in the output"
        assert torch.isfinite(parameter.grad).all(), key
        assert parameter.grad.abs().max() > 0, key


def test_bf16_is_fp32_rounded_in_biases_and_rotations_at_16k(case: Case) -> None:
    exact, at = case.model, 16_384 - LENGTH
    model = copy.deepcopy(exact).float()
    # As under autocast: inputs and parameters are fp32, queries and keys bf16.
    low = context(model, LENGTH, dtype=torch.float32, shift=at)
    high = context(exact, LENGTH, dtype=torch.float64, shift=at)
    q, k, _ = some_qkv(LENGTH, dtype=torch.bfloat16)
    for layer, exact_layer in zip(model.scheme.layers, exact.scheme.layers, strict=True):
        for part, exact_part in zip(layer.bias, exact_layer.bias, strict=True):
            got, want = part.bias(low), exact_part.bias(high)
            assert got is not None
            assert want is not None
            assert got.dtype == torch.float32
            torch.testing.assert_close(got.double(), want.double(), rtol=1e-5, atol=1e-5)
        turned = rotated(exact_layer, q.double(), k.double(), high)
        for got, want in zip(rotated(layer, q, k, low), turned, strict=True):
            # bf16 keeps 8 bits; angles at 16k are off by 16384 * 2^-24 < 1e-3.
            torch.testing.assert_close(got.double(), want, rtol=2**-7, atol=2e-2)


@pytest.mark.slow
@pytest.mark.parametrize("name", choices("scheme", config_dir=None))
def test_bf16_evaluates_decodes_and_trains_every_variant_of_a_scheme(name: str) -> None:
    config, model = small_config(f"scheme={name}"), small_model(name, dtype=torch.float32)
    known, own = {**config.variants, **config.scheme.variants}, model.scheme
    remaps = [v for v, parts in known.items() if any(part_classes()[part].remaps for part in parts)]
    pairs = [f"{a}+{b}" for a in remaps for b in ("logn", "llama4_temperature", "temperature")]
    tokens = some_tokens(length_for(model))
    for variant in (None, *known, *pairs):
        model.scheme = own
        if variant is not None:
            try:
                model.scheme = varied(model, config, variant)
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


def off(got: Tensor, want: Tensor) -> float:
    """Returns the mean error relative to the mean size."""
    return float(((got.float() - want).abs().mean() / want.abs().mean()).detach())


@pytest.mark.parametrize("name", ["rope", "t5", "tape", "transformer_xl_recurrent"])
def test_schemes_at_one_seed_start_from_the_same_network(name: str) -> None:
    plain, other = (create(small_config(f"scheme={x}"), vocab_size=50) for x in ("nope", name))
    weights = dict(other.named_parameters())
    for key, parameter in plain.named_parameters():
        assert torch.equal(parameter, weights[key])
