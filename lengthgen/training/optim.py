"""AdamW with its parameter groups, and the learning rate of a step."""

import math

import torch
from torch import nn

from lengthgen.config.schema import Config, Train
from lengthgen.model.transformer import Transformer
from lengthgen.schemes.base import Part


def adamw(model: Transformer, train: Train) -> torch.optim.AdamW:
    """Returns AdamW in three groups: matrices of the network, which decay, scheme, and the rest."""
    parts = [m for m in model.modules() if isinstance(m, Part) and not m.at_network_rate]
    own = {id(parameter) for part in parts for parameter in part.parameters()}
    decaying, of_scheme, rest = list[nn.Parameter](), list[nn.Parameter](), list[nn.Parameter]()
    for name, parameter in model.named_parameters():
        decays = parameter.dim() >= 2 and not name.startswith("scheme.")
        group = of_scheme if id(parameter) in own else decaying if decays else rest
        group.append(parameter)
    groups = [
        {"params": decaying, "weight_decay": train.weight_decay, "of_scheme": False},
        {"params": of_scheme, "weight_decay": 0.0, "of_scheme": True},
        {"params": rest, "weight_decay": 0.0, "of_scheme": False},
    ]
    return torch.optim.AdamW(groups, lr=train.lr, betas=(train.beta1, train.beta2), fused=True)


def set_rates(optimizer: torch.optim.AdamW, step: int, config: Config) -> None:
    """Gives each group its learning rate of an optimizer step; the scheme has one of its own."""
    for group in optimizer.param_groups:
        ratio = config.scheme_lr_ratio if group["of_scheme"] else 1.0
        group["lr"] = lr_at(step, config.train) * ratio


def lr_at(step: int, train: Train) -> float:
    """Returns the rate of step 0 ... steps-1: linear warm-up, then decay to lr * min_lr_ratio."""
    warmup = round(train.warmup_fraction * train.steps)
    if step < warmup:
        return train.lr * (step + 1) / warmup
    done = (step - warmup) / max(1, train.steps - 1 - warmup)
    left = 0.5 * (1 + math.cos(math.pi * done)) if train.schedule == "cosine" else 1 - done
    return train.lr * (train.min_lr_ratio + (1 - train.min_lr_ratio) * left)
