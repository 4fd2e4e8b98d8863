"""Parameter groups and the schedule."""

import pytest
from small import VOCAB, create, small_config, some_tokens

from lengthgen.config import conf
from lengthgen.config.conf import choices
from lengthgen.training.optim import lr_at, optimizers_of, set_rates


@pytest.mark.parametrize("scheme", choices("scheme", config_dir=None))
def test_parameters_have_one_group_and_network_matrices_alone_decay(scheme: str) -> None:
    config = small_config(f"scheme={scheme}", "train.weight_decay=0.3")
    model = create(config, vocab_size=VOCAB)
    set_rates(optimizer := optimizers_of(model, config.train)[0], 0, config)
    groups, ratio = (
        optimizer.param_groups,
        conf.load_choice("scheme", scheme).get("lr_ratio", 1.0),
    )
    group_of = {id(p): group for group in groups for p in group["params"]}
    assert len(group_of) == sum(len(group["params"]) for group in groups)
    parts = [part for part in model.scheme.all if not part.at_network_rate]
    own = {id(p) for part in parts for p in part.parameters()}
    for name, parameter in model.named_parameters():
        group = group_of[id(parameter)]
        decays = parameter.dim() == 2 and not name.startswith("scheme.")
        assert group["weight_decay"] == 0.3 * decays
        assert group["lr"] == lr_at(0, config.train) * (ratio if id(parameter) in own else 1)


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
