"""One step on the smallest batch: what is wrong with a part is one line before a run."""

import inspect
import traceback
from dataclasses import replace

import torch
from torch import Tensor, nn

from lengthgen.config.plugins import MODULE_PREFIX
from lengthgen.config.registry import described
from lengthgen.config.schema import Config
from lengthgen.errors import UserError
from lengthgen.model.build import with_parts
from lengthgen.model.transformer import Transformer, of_queries
from lengthgen.schemes import Part
from lengthgen.schemes.absolute.alignment import Aligned


def try_out(model: Transformer, config: Config) -> None:
    """Computes loss and gradient of two windows of eight tokens under each variant; forgets them.

    Raises UserError for what a part can tell in a call alone, such as a share that keeps no rotated
    channel, and with part, file and line if a plugin's part raises, returns what does not fit, or
    makes loss or gradient infinite; and for a bias that is no function of the distance.
    """
    scheme, parts = model.scheme, model.scheme.parts.items()
    for name, part in parts:
        if isinstance(part, Aligned) and part.alignment_ids is None:
            raise UserError(
                f"scheme.parts.{name}: needs to know which characters belong together, and "
                f"corpus={config.corpus.name} does not define it; use task=addition_reversed_all, "
                "addition_padded or copy, or another scheme"
            )
    own: dict[nn.Module, str] = {
        part: name for name, part in parts if part.__module__.startswith(MODULE_PREFIX)
    }
    try:
        values = _values(config, model)
        _check_biases(config, model, own)
        for variant in config.eval.variants:
            model.scheme = with_parts(model, config, config.variant(variant))
            _values(config, model)
        if own and not all(value.isfinite() for value in values):
            loss, norm = map(float, values)
            raise FloatingPointError(f"loss {loss}, gradient's norm {norm} before any update")
    except UserError:
        raise
    except Exception as error:
        if own:
            raise UserError(_blame(error, own)) from error
        raise
    finally:
        model.scheme = scheme
        model.zero_grad()


def _tokens(config: Config, model: Transformer) -> Tensor:
    device, vocab_size = model.embedding.weight.device, model.embedding.num_embeddings
    return torch.arange(16, device=device).view(2, 8)[:, : config.train.length] % vocab_size


def _values(config: Config, model: Transformer) -> list[torch.Tensor]:
    """Returns the loss and its gradient's norm."""
    tokens_BT, device = _tokens(config, model), model.embedding.weight.device
    targets_BQ = tokens_BT[:, 1:]  # fewer than the keys: a mix-up of the two does not fit
    generator, starts = torch.Generator().manual_seed(config.seed), model.answer_starts(tokens_BT)
    with torch.autocast(device.type, torch.bfloat16, enabled=config.train.precision == "bf16"):
        x_BQD = model(tokens_BT, n_last=targets_BQ.shape[1], generator=generator, **starts)
        nats = model.token_nll(x_BQD, targets_BQ).sum()
    nats.backward()
    return [nats.detach(), nn.utils.clip_grad_norm_(model.parameters(), config.train.clip)]


def _check_biases(config: Config, model: Transformer, own: dict[nn.Module, str]) -> None:
    """Raises UserError for a bias of a plugin's part with a 1 in place of queries or keys."""
    tokens_BT, generator = _tokens(config, model), torch.Generator().manual_seed(config.seed)
    with torch.no_grad():
        x_BTD, c = model.embedded(tokens_BT, generator=generator)
        for i, layer in enumerate(model.scheme.layers):
            c = of_queries(replace(c, layer=i, hooks=layer), x_BTD, n_queries=c.length - 1)
            due = (c.q_pos.shape[-1], c.k_pos.shape[-1])
            for part in [part for part in layer.bias if part in own]:
                added = part.bias(c)
                if added is not None and added.shape[-2:] != due:
                    raise UserError(
                        f"scheme.parts.{own[part]}: bias returns {[*added.shape]}, and it needs a "
                        f"value for each query and key, as c.distance() has: {[*due]} here "
                        f"({inspect.getfile(type(part))})"
                    )


def _blame(error: Exception, own: dict[nn.Module, str]) -> str:
    """Returns which part's method raised; if none did, whom the model did not get along with."""
    selves = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    raising = [part for part in selves if isinstance(part, Part) and part in own]
    part, remark = (raising[0], "") if raising else (next(iter(own)), "does not fit the model: ")
    return f"scheme.parts.{own[part]}: {remark}{described(error, type(part))}"
