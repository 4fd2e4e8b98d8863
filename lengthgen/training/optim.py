"""The optimizers with their parameter groups, and the learning rate of a step."""

import math

import torch
from torch import nn

from lengthgen.config.schema import Config, Train
from lengthgen.model.transformer import Transformer
from lengthgen.schemes.base import Part


def optimizers_of(model: Transformer, train: Train) -> list[torch.optim.Optimizer]:
    """Returns AdamW; with train.optimizer=muon also Muon, for the matrices between the embeddings.

    AdamW has three groups: matrices of the network, which decay, the scheme, and the rest. Updates
    of Muon (Jordan et al. 2024) are scaled to the size of AdamW's, so that one rate fits both (Liu
    et al. 2025, arXiv 2502.16982, section 2.2). `set_rates` gives each group its rate.
    """
    parts = [m for m in model.modules() if isinstance(m, Part) and not m.at_network_rate]
    of_scheme = {id(parameter) for part in parts for parameter in part.parameters()}
    params: dict[str, list[nn.Parameter]] = {"decay": [], "scheme": [], "rest": [], "hidden": []}
    for name, parameter in model.named_parameters():
        decays = parameter.dim() >= 2 and not name.startswith("scheme.")
        kind = "scheme" if id(parameter) in of_scheme else "decay" if decays else "rest"
        if train.optimizer == "muon" and kind == "decay" and "block" in name:
            kind = "hidden"
        params[kind].append(parameter)
    decay = {"decay": train.weight_decay, "hidden": train.weight_decay}
    *groups, hidden = (
        {"params": group, "weight_decay": decay.get(kind, 0.0), "of_scheme": kind == "scheme"}
        for kind, group in params.items()
    )
    adamw = torch.optim.AdamW(groups, betas=(train.beta1, train.beta2), fused=True)
    if not params["hidden"]:
        return [adamw]
    return [adamw, torch.optim.Muon([hidden], adjust_lr_fn="match_rms_adamw")]


def set_rates(optimizer: torch.optim.Optimizer, step: int, config: Config) -> None:
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
