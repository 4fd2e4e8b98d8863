"""One step on the smallest batch: what is wrong with a part is one line before a run."""

import math
import traceback

import torch
from torch import nn

from lengthgen.config.plugins import MODULE_PREFIX
from lengthgen.config.registry import described
from lengthgen.config.schema import Config
from lengthgen.errors import UserError
from lengthgen.model.build import with_parts
from lengthgen.model.transformer import Transformer
from lengthgen.schemes import Part
from lengthgen.schemes.absolute.alignment import Aligned


def try_out(model: Transformer, config: Config) -> None:
    """Computes loss and gradient of two windows of eight tokens under each variant; forgets them.

    Raises UserError for what a part can tell in a call alone, such as a share that keeps no rotated
    channel, and with part, file and line if a plugin's part raises, returns what does not fit, or
    makes loss or gradient infinite; and if with such a part an output depends on later tokens.
    """
    scheme, parts = model.scheme, model.scheme.parts.items()
    for name, part in parts:
        if isinstance(part, Aligned) and part.alignment_ids is None:
            raise UserError(
                f"scheme.parts.{name}: needs to know which characters belong together, and "
                f"corpus={config.corpus.name} does not define it; use task=addition_reversed_all, "
                "addition_padded or copy, or another scheme"
            )
    own = {part: name for name, part in parts if part.__module__.startswith(MODULE_PREFIX)}
    try:
        loss, norm = _values(config, model)
        for variant in config.eval.variants:
            model.scheme = with_parts(model, config, config.variant(variant))
            _values(config, model)
        if own and not math.isfinite(loss + norm):
            raise FloatingPointError(f"loss {loss}, gradient's norm {norm} before any update")
        if own and config.model.arch == "decoder":
            _check_outputs(config, model, where=f"scheme.parts.{' and '.join(own.values())}")
    except UserError:
        raise
    except Exception as error:
        if own:
            raise UserError(_blame(error, own)) from error
        raise
    finally:
        model.scheme = scheme
        model.zero_grad()


def _values(config: Config, model: Transformer) -> tuple[float, float]:
    """Returns the loss and its gradient's norm."""
    tokens_BT = _tokens(config, model)
    device = tokens_BT.device
    targets_BQ = tokens_BT[:, 1:]  # fewer than the keys: a mix-up of the two does not fit
    generator, starts = torch.Generator().manual_seed(config.seed), model.answer_starts(tokens_BT)
    with torch.autocast(device.type, torch.bfloat16, enabled=config.train.precision == "bf16"):
        x_BQD = model(tokens_BT, n_last=targets_BQ.shape[1], generator=generator, **starts)
        nats = model.token_nll(x_BQD, targets_BQ).sum()
    nats.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), config.train.clip)
    return nats.item(), norm.item()


def _tokens(config: Config, model: Transformer) -> torch.Tensor:
    device, vocab_size = model.embedding.weight.device, model.embedding.num_embeddings
    return torch.arange(16, device=device).view(2, 8)[:, : config.train.length] % vocab_size


@torch.no_grad()
def _check_outputs(config: Config, model: Transformer, *, where: str) -> None:
    """Raises UserError if outputs depend on later tokens, on torch's global generator, on which
    queries are computed together or, if the scheme does not say so, on the length of the call.
    """
    tokens_BT = _tokens(config, model)
    changed_BT = tokens_BT.clone()
    changed_BT[:, -1] = tokens_BT[:, 0]

    def outputs(tokens_BT: torch.Tensor, *, seed: int = 0, n: int | None = None) -> torch.Tensor:
        """Returns the outputs of the last n tokens."""
        generator = torch.Generator().manual_seed(config.seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return model(tokens_BT, n_last=n, generator=generator)

    expected = outputs(tokens_BT)
    if not torch.allclose(outputs(changed_BT)[:, :-1], expected[:, :-1], atol=1e-5):
        raise UserError(f"{where}: an output depends on later tokens; a hook may use none of them")
    again = expected if config.model.dropout else outputs(tokens_BT, seed=1)
    if not torch.allclose(again, expected, atol=1e-5):
        raise UserError(f"{where}: outputs are random; draw from c.generator, not the global one")
    model.eval()  # positions that are drawn in training depend on the length of the call
    n, whole = (tokens_BT.shape[1] + 1) // 2, outputs(tokens_BT)
    last, first = outputs(tokens_BT, n=n), outputs(tokens_BT[:, :n])
    model.train()
    if not torch.allclose(last, whole[:, -n:], atol=1e-5):
        raise UserError(
            f"{where}: outputs depend on which queries are computed together; take positions from "
            "c.q_pos and c.k_pos"
        )
    if not (model.scheme.depends_on_length or torch.allclose(first, whole[:, :n], atol=1e-5)):
        raise UserError(
            f"{where}: an output depends on the length of the call; if it is meant to, set "
            "depends_on_length = True in the class"
        )


def _blame(error: Exception, own: dict[nn.Module, str]) -> str:
    """Returns which part's method raised; if none did, whom the model did not get along with."""
    selves = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    raising = [part for part in selves if isinstance(part, Part) and part in own]
    part, remark = (raising[0], "") if raising else (next(iter(own)), "does not fit the model: ")
    return f"scheme.parts.{own[part]}: {remark}{described(error, type(part))}"
