"""The network around the scheme."""

import itertools
import math
import re

import pytest
import torch
from small import VOCAB, close, context, create, hidden, small_config, small_model, some_tokens

from lengthgen.config.conf import choices, describe
from lengthgen.errors import UserError
from lengthgen.experiment import resolve

MODELS = choices("model", config_dir=None)


@pytest.mark.parametrize("name", MODELS)
def test_model_sizes_are_those_their_yaml_says(name: str) -> None:
    said = re.match(r"([\d.]+)M parameters without the embedding", describe(MODELS[name]))
    assert said is not None
    experiment = resolve([f"model={name}"])
    with torch.device("meta"):
        network = experiment.build(vocab_size=0)
    n = sum(parameter.numel() for parameter in network.parameters())
    assert n / 1e6 == pytest.approx(float(said[1]), rel=0.05)


@pytest.mark.parametrize("scheme", choices("scheme", config_dir=None))
def test_behind_a_window_blocks_read_only_what_later_ones_see(scheme: str) -> None:
    words = ("+scheme.parts.window.width=0.25", "+scheme.parts.window.sinks=0")
    try:
        model = small_model(scheme, words=[*words, "task=copy"] if "coupling" in scheme else words)
    except UserError:  # a scheme that a window does not fit
        return
    tokens, n_last = some_tokens(30), 3
    if model.scheme.unsupported_reason(30):
        return
    read = model.read_by_blocks(30, n_last)
    assert read[-1] == n_last
    whole = hidden(model, tokens)[:, -n_last:]
    close(hidden(model, tokens, n_last=n_last), whole, atol=1e-10)
    if scheme in ("nope", "rope", "alibi", "t5", "kerple", "fire", "cope", "fox"):
        assert read == [9, 6, 3]
        far = tokens.clone()
        far[:, : 30 - 9] = 0
        close(hidden(model, far, n_last=n_last), whole, atol=1e-10)


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
def test_nats_are_of_a_log_softmax_in_fp32_or_wider_0_where_ignored(dtype: torch.dtype) -> None:
    model = small_model("alibi", dtype=dtype)
    x, tokens = context(model, 16, dtype=dtype).x_BTD, some_tokens(16)
    targets, wide = tokens.clone(), torch.promote_types(torch.float32, dtype)
    targets[0, 3] = -100
    for bf16, grad in itertools.product((False, True), repeat=2):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16), torch.set_grad_enabled(grad):
            logits, nats = model.logits(x), model.token_nll(x, targets)
        assert (logits.dtype, nats.dtype, nats[0, 3].item()) == (wide, wide, 0)
        exact = -logits.double().log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
        close(nats.double(), exact.masked_fill(targets < 0, 0), atol=2e-6)
        if not bf16:
            close(logits, (x @ model.embedding.weight.T).to(wide), atol=1e-5)
