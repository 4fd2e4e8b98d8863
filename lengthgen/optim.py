"""AdamW with its parameter groups, and the learning rate of a step."""

import math

import torch

from lengthgen.config import Train
from lengthgen.model import Transformer


def adamw(model: Transformer, train: Train) -> torch.optim.AdamW:
    """Returns AdamW: matrices of the network decay; norms and scheme parameters do not."""
    named = dict(model.named_parameters())
    decaying = {n for n, p in named.items() if p.dim() >= 2 and not n.startswith("scheme.")}
    groups = [
        {
            "params": [p for n, p in named.items() if n in decaying],
            "weight_decay": train.weight_decay,
        },
        {"params": [p for n, p in named.items() if n not in decaying], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=train.lr, betas=(train.beta1, train.beta2), fused=True)


def lr_at(step: int, train: Train) -> float:
    """Returns the learning rate of optimizer step 0 ... steps-1: linear warm-up, then the decay.

    The decay ends at lr * min_lr_ratio in the last step.
    """
    warmup = round(train.warmup_fraction * train.steps)
    if step < warmup:
        return train.lr * (step + 1) / warmup
    done = (step - warmup) / max(1, train.steps - 1 - warmup)
    left = 0.5 * (1 + math.cos(math.pi * done)) if train.schedule == "cosine" else 1 - done
    return train.lr * (train.min_lr_ratio + (1 - train.min_lr_ratio) * left)
