"""Parameter groups and the schedule."""

import pytest
from small import VOCAB, small_config

from lengthgen.model import create
from lengthgen.optim import adamw, lr_at


@pytest.mark.parametrize("scheme", ["rope", "learned_absolute"])
@pytest.mark.parametrize("decay", [0.1, 0])
def test_only_matrices_of_the_network_decay_and_no_parameter_is_left_out(
    scheme: str, decay: float
) -> None:
    config = small_config(f"scheme={scheme}", f"train.weight_decay={decay}")
    model = create(config, vocab_size=VOCAB)
    decay_of = {
        id(p): group["weight_decay"]
        for group in adamw(model, config.train).param_groups
        for p in group["params"]
    }
    assert len(decay_of) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        decays = parameter.dim() == 2 and not name.startswith("scheme.")
        assert decay_of[id(parameter)] == (config.train.weight_decay if decays else 0.0), name


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_the_rate_warms_up_linearly_and_ends_at_its_minimum(schedule: str) -> None:
    train = small_config(
        "train.tokens=12800", "train.warmup_fraction=0.1", f"train.schedule={schedule}"
    ).train
    rates = [lr_at(step, train) for step in range(train.steps)]
    assert train.steps == 100
    assert rates[:10] == pytest.approx([train.lr * (i + 1) / 10 for i in range(10)])
    assert max(rates) == pytest.approx(train.lr)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(train.lr * train.min_lr_ratio)
    middle = train.lr * (1 + train.min_lr_ratio) / 2
    assert lr_at(10 + 45, train) == pytest.approx(middle, rel=0.02)


def test_without_warm_up_the_first_step_has_the_full_rate() -> None:
    train = small_config("train.warmup_fraction=0").train
    assert lr_at(0, train) == train.lr
