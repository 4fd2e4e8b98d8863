"""Every scheme learns from context what no bigram model can know."""

import pytest
import torch
from small import create, small_config
from torch import Tensor

from lengthgen.config.conf import choices
from lengthgen.training.optim import optimizers_of, set_rates

SYMBOLS, IN_USE, LENGTH, BATCH, STEPS = 16, 3, 16, 32, 30


def texts(n: int, *, seed: int) -> Tensor:
    """Returns n texts of LENGTH + 1 symbols; each uses three of the symbols only, in any order."""
    generator = torch.Generator().manual_seed(seed)
    in_use = torch.rand(n, SYMBOLS, generator=generator).argsort(-1)[:, :IN_USE]
    drawn = torch.randint(IN_USE, (n, LENGTH + 1), generator=generator)
    return in_use.gather(1, drawn)


def bigram_loss(fitted: Tensor, scored: Tensor) -> float:
    """Returns the nats per token of the best table of next symbols by the last one."""
    counts = torch.ones(SYMBOLS, SYMBOLS)
    before, after = fitted[:, :-1].flatten(), fitted[:, 1:].flatten()
    counts.index_put_((before, after), torch.ones(len(before)), accumulate=True)
    nats = -(counts / counts.sum(1, keepdim=True)).log()
    return float(nats[scored[:, :-1], scored[:, 1:]].mean())


@pytest.mark.slow
@pytest.mark.parametrize("scheme", choices("scheme", config_dir=None))
def test_a_few_dozen_steps_bring_the_loss_below_that_of_a_bigram_model(scheme: str) -> None:
    budget = f"train.batch_tokens={BATCH * LENGTH}", f"train.tokens={STEPS * BATCH * LENGTH}"
    config = small_config(f"scheme={scheme}", *budget, "train.lr=2e-2")
    model = create(config, vocab_size=SYMBOLS).train()
    optimizer = optimizers_of(model, config.train)[0]

    def nats(text: Tensor) -> Tensor:
        inputs, targets = text[:, :-1], text[:, 1:]
        x_BTD = model(inputs, generator=torch.Generator().manual_seed(int(text.sum())))
        return model.token_nll(x_BTD, targets).mean()

    for step in range(STEPS):
        set_rates(optimizer, step, config)
        nats(texts(BATCH, seed=step)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        model.scheme.clamp_parameters()
    held_out = texts(500, seed=STEPS)
    with torch.no_grad():
        loss = float(nats(held_out))
    bigram = bigram_loss(texts(2000, seed=STEPS + 1), held_out)
    assert loss < bigram - 0.2  # three symbols of sixteen: ln 3 is what remains
