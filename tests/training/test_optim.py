"""Parameter groups and the schedule."""

import pytest
import torch
from small import VOCAB, small_config, some_tokens
from torch import Tensor

from lengthgen.config.compose import choices
from lengthgen.model.build import create
from lengthgen.training.optim import lr_at, optimizers_of, set_rates


@pytest.mark.parametrize("scheme", choices("scheme", config_dir=None))
def test_parameters_have_one_group_and_network_matrices_alone_decay(scheme: str) -> None:
    config = small_config(f"scheme={scheme}", "train.weight_decay=0.3")
    model = create(config, vocab_size=VOCAB)
    groups = optimizers_of(model, config.train)[0].param_groups
    group_of = {id(p): group for group in groups for p in group["params"]}
    assert len(group_of) == sum(len(group["params"]) for group in groups)
    parts = [part for part in model.scheme.all if not part.at_network_rate]
    own = {id(p) for part in parts for p in part.parameters()}
    for name, parameter in model.named_parameters():
        group = group_of[id(parameter)]
        decays = parameter.dim() == 2 and not name.startswith("scheme.")
        assert (group["weight_decay"], group["of_scheme"]) == (0.3 * decays, id(parameter) in own)


def test_muon_takes_the_matrices_of_the_blocks_and_moves_them_as_far_as_adamw_does() -> None:
    config = small_config("train.optimizer=muon", "train.weight_decay=0")
    model = create(config, vocab_size=VOCAB)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizers = optimizers_of(model, config.train)
    model.token_nll(model(some_tokens(16)), some_tokens(16)).sum().backward()
    for optimizer in optimizers:
        set_rates(optimizer, 0, config)
        optimizer.step()
    taken = {id(p) for group in optimizers[1].param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        assert (id(parameter) in taken) == (name.startswith("blocks.") and parameter.dim() == 2)
        if id(parameter) in taken:
            moved = (parameter.detach() - before[name]).square().mean().sqrt()
            assert 0.1 < float(moved) / lr_at(0, config.train) < 0.4  # of AdamW: 0.2 to 0.4


@pytest.mark.parametrize("scheme", ["t5_conv", "kerple", "fire"])
def test_adams_first_step_moves_a_schemes_parameters_by_rate_times_ratio(scheme: str) -> None:
    moved: dict[float, dict[str, Tensor]] = {}
    for ratio in (1.0, 16.0):
        config = small_config(f"scheme={scheme}", f"train.scheme_lr_ratio={ratio}")
        model = create(config, vocab_size=VOCAB)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        optimizer = optimizers_of(model, config.train)[0]
        tokens = some_tokens(16)
        model.token_nll(model(tokens), tokens).sum().backward()
        set_rates(optimizer, 0, config)
        optimizer.step()
        moved[ratio] = {name: p.detach() - before[name] for name, p in model.named_parameters()}
    of_scheme = [name for name in moved[1.0] if name.startswith("scheme.")]
    assert of_scheme
    for name, once in moved[1.0].items():  # a convolution learns at the network's rate
        times = 16 if name in of_scheme and "short_conv" not in name else 1
        torch.testing.assert_close(moved[16.0][name], times * once, rtol=1e-3, atol=1e-5)
        assert once.abs().max() > 0


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_the_rate_warms_up_linearly_and_ends_at_its_minimum(schedule: str) -> None:
    words = ["tokens=12800", "warmup_fraction=0.1", f"schedule={schedule}"]
    train = small_config(*(f"train.{word}" for word in words)).train
    rates = [lr_at(step, train) for step in range(train.steps)]
    assert train.steps == 100
    assert rates[:10] == pytest.approx([train.lr * (i + 1) / 10 for i in range(10)])
    assert max(rates) == pytest.approx(train.lr)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(train.lr * train.min_lr_ratio)
    middle = train.lr * (1 + train.min_lr_ratio) / 2
    assert lr_at(10 + 45, train) == pytest.approx(middle, rel=0.02)
    assert lr_at(0, small_config("train.warmup_fraction=0").train) == train.lr
