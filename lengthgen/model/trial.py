"""A call of the model on a few tokens: what is wrong with a part is one line before training.

B windows, T tokens, D width, Q targets.
"""

import traceback

import torch
from torch import Tensor

from lengthgen.config.schema import Config
from lengthgen.errors import UserError
from lengthgen.model.build import create, with_parts
from lengthgen.model.transformer import Transformer
from lengthgen.schemes import HOOKS, Part

VOCAB = 16  # parts do not know the vocabulary, and a small one is quick


def try_out(config: Config) -> None:
    """Trains on two windows of eight tokens on the CPU, scores them by each variant, and forgets.

    Raises UserError for what a part can tell in a call alone, such as a share that keeps no
    rotated channel; with part, hook and line if a plugin's code raises, and with the parts that it
    may be if what they return does not fit.
    """
    model = create(config, vocab_size=VOCAB)
    tokens_BT = torch.arange(VOCAB).view(2, 8)[:, : config.train.length]
    try:
        _nats(config, model, tokens_BT).backward()
        with torch.no_grad():
            for variant in config.eval.variants:
                model.scheme = with_parts(model, config, config.variant(variant))
                _nats(config, model, tokens_BT)
    except UserError:
        raise
    except Exception as error:
        if not config.plugins:
            raise
        raise UserError(_blame(error, config, model)) from error


def _nats(config: Config, model: Transformer, tokens_BT: Tensor) -> Tensor:
    targets_BQ = tokens_BT[:, 1:]  # fewer than the keys: a mix-up of the two does not fit
    with torch.autocast("cpu", torch.bfloat16, enabled=config.train.precision == "bf16"):
        x_BQD = model(
            tokens_BT,
            n_last=targets_BQ.shape[1],
            generator=torch.Generator().manual_seed(config.seed),
            **model.answer_starts(tokens_BT),
        )
        return model.token_nll(x_BQD, targets_BQ).sum()


def _blame(error: Exception, config: Config, model: Transformer) -> str:
    """Says which hook of which plugin raised, or which ones the model did not get along with."""
    message = f"{type(error).__name__}: {error}"
    ours = {plugin.module_name for plugin in config.plugins}
    names = {
        part: name
        for name, part in model.scheme.parts.items()
        if isinstance(part, Part) and part.__module__ in ours
    }
    frames = [
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__") in ours
    ]
    at = ""
    if frames:
        last, line = frames[-1]
        at = f" ({last.f_code.co_filename}, line {line})"
    for frame, _ in frames:
        part = frame.f_locals.get("self")
        if isinstance(part, Part) and part in names:
            return f"scheme.parts.{names[part]}: {frame.f_code.co_name} raised {message}{at}"
    suspects = [
        f"{hook} of {name}"
        for part, name in names.items()
        for hook in HOOKS
        if part.overrides(hook)
    ]
    return (
        f"plugins: the model cannot use what is returned by {' or '.join(suspects)}: {message}{at}"
    )
