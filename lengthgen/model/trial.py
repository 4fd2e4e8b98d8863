"""A call of the model on a few tokens: what is wrong with a part is one line before training.

B windows, T tokens, D width, Q targets.
"""

import inspect
import traceback

import torch
from torch import Tensor, nn

from lengthgen.config.plugins import MODULE_PREFIX
from lengthgen.config.schema import Config
from lengthgen.errors import UserError
from lengthgen.model.build import with_parts
from lengthgen.model.transformer import Transformer
from lengthgen.schemes import HOOKS, Part

N_TOKENS = 16


def try_out(model: Transformer, config: Config) -> None:
    """Trains on two windows of eight tokens, scores them by each variant, and forgets both.

    Raises UserError for what a part can tell in a call alone, such as a share that keeps no
    rotated channel; with part, hook and line if a plugin's code raises, and with the hooks that it
    may be if what they take or return does not fit, or the loss or its gradient is not finite.
    """
    scheme, device = model.scheme, model.embedding.weight.device
    tokens_BT = (torch.arange(N_TOKENS, device=device) % len(model.embedding.weight)).view(2, 8)[
        :, : config.train.length
    ]
    try:
        _call(config, model, tokens_BT)
        with torch.no_grad():
            for variant in config.eval.variants:
                model.scheme = with_parts(model, config, config.variant(variant))
                _call(config, model, tokens_BT)
    except UserError:
        raise
    except Exception as error:
        if not _own_parts(model):
            raise
        raise UserError(_blame(error, model)) from error
    finally:
        model.scheme = scheme
        model.zero_grad()


def _call(config: Config, model: Transformer, tokens_BT: Tensor) -> None:
    """Computes the loss, and its gradient unless under no_grad."""
    targets_BQ = tokens_BT[:, 1:]  # fewer than the keys: a mix-up of the two does not fit
    with torch.autocast(
        tokens_BT.device.type, torch.bfloat16, enabled=config.train.precision == "bf16"
    ):
        x_BQD = model(
            tokens_BT,
            n_last=targets_BQ.shape[1],
            generator=torch.Generator().manual_seed(config.seed),
            **model.answer_starts(tokens_BT),
        )
        nats = model.token_nll(x_BQD, targets_BQ).sum()
    found = {"loss": nats}
    if nats.requires_grad:
        nats.backward()
        found["gradient's norm"] = nn.utils.clip_grad_norm_(model.parameters(), config.train.clip)
    for what, value in found.items():
        if not value.isfinite() and _own_parts(model):
            raise UserError(f"{_suspects(model)}: the {what} is {value:g} before any update")


def _own_parts(model: Transformer) -> dict[Part, str]:
    """Returns the names of the parts that plugins define."""
    return {
        part: name
        for name, part in model.scheme.parts.items()
        if isinstance(part, Part) and part.__module__.startswith(MODULE_PREFIX)
    }


def _blame(error: Exception, model: Transformer) -> str:
    """Says which hook of which plugin raised, or which ones the model did not get along with."""
    message = f"{type(error).__name__}: {error}"
    frames = [
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").startswith(MODULE_PREFIX)
    ]
    if frames:
        last, line = frames[-1]
        message += f" ({last.f_code.co_filename}, line {line})"
    names = _own_parts(model)
    for frame, _ in frames:
        part = frame.f_locals.get("self")
        if isinstance(part, Part) and part in names:
            return f"scheme.parts.{names[part]}: {frame.f_code.co_name} raised {message}"
    return f"{_suspects(model)}: {message}"


def _suspects(model: Transformer) -> str:
    """Names what plugins define of the methods that the model or a packaged base class calls."""
    parts, found = _own_parts(model), list[str]()
    for part, name in parts.items():
        bases = [b for b in type(part).__mro__ if not b.__module__.startswith(MODULE_PREFIX)]
        for method, function in inspect.getmembers(type(part), inspect.isfunction):
            called = any(method in vars(b) for b in bases)
            called = called and (method in HOOKS or method not in vars(Part))
            if called and function.__module__.startswith(MODULE_PREFIX):
                code = inspect.unwrap(function).__code__
                found.append(f"{method} of {name} ({code.co_filename}, line {code.co_firstlineno})")
    return f"plugins: the model does not work with {' or '.join(found or parts.values())}"
