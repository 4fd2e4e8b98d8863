"""The network around the scheme."""

import math

import pytest
import torch
from small import VOCAB, close, context, small_config, small_model, some_tokens

from lengthgen.config.compose import load
from lengthgen.config.schema import Config, Model
from lengthgen.model.build import create


def network_parameters(config: Config, vocab_size: int) -> int:
    model = config.model
    per_layer = 4 * model.d_model**2 + 2 * model.d_model * model.d_ff + 2 * model.d_model
    return model.n_layers * per_layer + model.d_model * (vocab_size + 1)


@pytest.mark.parametrize(
    ("name", "vocab_size", "millions"),
    [
        ("tiny", 0, 0.8),
        ("small", 0, 4.7),
        ("medium", 50_000, 51),
        ("base", 0, 85),
        ("alibi", 0, 201),
    ],
)
def test_model_sizes_are_those_their_yaml_says(name: str, vocab_size: int, millions: float) -> None:
    shipped = Model.model_validate({"arch": "decoder", **load("model", name, config_dir=None)})
    config = small_config().model_copy(update={"model": shipped})
    assert network_parameters(config, vocab_size) / 1e6 == pytest.approx(millions, rel=0.02)


def test_nats_are_those_of_a_log_softmax_and_zero_where_ignored() -> None:
    model = small_model("alibi")
    tokens = some_tokens(16)
    targets = some_tokens(16, seed=1)
    targets[0, 3] = -100
    with torch.no_grad():
        x = model(tokens)
        want = -(x @ model.embedding.weight.T).log_softmax(-1)
        got = model.token_nll(x, targets)
    assert got[0, 3] == 0
    close(got[1], want[1].gather(-1, targets[1, :, None])[:, 0], atol=1e-12)


def test_one_seed_gives_one_model_and_leaves_the_global_generator_alone() -> None:
    config = small_config("scheme=learned_absolute")
    before = torch.random.get_rng_state()
    one, two = create(config, vocab_size=VOCAB), create(config, vocab_size=VOCAB)
    assert torch.equal(torch.random.get_rng_state(), before)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)
    other = create(small_config("scheme=learned_absolute", "seed=2"), vocab_size=VOCAB)
    assert not torch.equal(one.embedding.weight, other.embedding.weight)


def test_weights_start_with_the_standard_deviations_of_the_table() -> None:
    config = small_config("model.d_model=128", "model.d_ff=512", "model.init_std=0.02")
    model = create(config, vocab_size=1000)
    residual = 0.02 / math.sqrt(2 * 2)
    want = {"embedding": 0.02, "qkv": 0.02, "mlp_in": 0.02, "_out": residual}
    for key, parameter in model.named_parameters():
        for part, std in want.items():
            if part in key:
                assert float(parameter.detach().std()) == pytest.approx(std, rel=0.05), key
        if "norm" in key:
            assert (parameter == 1).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_logits_and_nats_are_fp32_or_wider_whatever_the_model_is(dtype: torch.dtype) -> None:
    model = small_model("alibi", dtype=dtype)
    x, tokens = context(model, 16, dtype=dtype).x_BTD, some_tokens(16)
    for bf16 in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits, nats = model.logits(x), model.token_nll(x, tokens)
        want = torch.promote_types(torch.float32, dtype)
        assert (logits.dtype, nats.dtype) == (want, want)
        exact = -logits.double().log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
        close(nats.double(), exact, atol=2e-6)
