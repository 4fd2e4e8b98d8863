"""One step on the smallest batch: what is wrong with a part is one line before a run."""

import math
import traceback
from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import nn

from lengthgen.config.plugins import MODULE_PREFIX
from lengthgen.config.registry import described, snake_case
from lengthgen.config.schema import Config
from lengthgen.errors import UserError
from lengthgen.model.attention import BLOCK
from lengthgen.model.build import with_parts
from lengthgen.model.transformer import Transformer
from lengthgen.schemes import Part
from lengthgen.schemes.absolute.alignment import Aligned


def try_out(model: Transformer, config: Config) -> None:
    """Computes loss and gradient of two windows of eight tokens under each variant; forgets them.

    Raises UserError for what a part can tell in a call alone, such as a share that keeps no rotated
    channel, and with part, file and line if a plugin's part raises, returns what does not fit, or
    makes loss or gradient infinite; and as `_check_outputs` does.
    """
    scheme, parts = model.scheme, model.scheme.parts.items()
    for name, part in parts:
        if isinstance(part, Aligned) and part.alignment_ids is None:
            raise UserError(
                f"scheme.parts.{name}: needs to know which characters belong together, and "
                f"corpus={config.corpus.name} does not define it; use task=addition_reversed_all, "
                "addition_padded or copy, or another scheme"
            )
    own = {p: name for name, p in parts if p.__module__.startswith(MODULE_PREFIX)}
    try:
        loss, norm = _values(config, model)
        for variant in config.eval.variants:
            model.scheme = with_parts(model, config, config.variant(variant))
            _values(config, model)
        if own and not math.isfinite(loss + norm):
            hides = "; visible must leave a key" * any(
                p.overrides("visible") for p in scheme.all if p in own
            )
            said = f"loss {loss}, gradient's norm {norm} before any update{hides}"
            raise FloatingPointError(said)
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


def _tokens(config: Config, model: Transformer, *, n: int = 8) -> torch.Tensor:
    """Returns two windows of n tokens, or of T if that is shorter than 8."""
    n = n if n > 8 else min(n, config.train.length)
    device, vocab_size = model.embedding.weight.device, model.embedding.num_embeddings
    return torch.arange(2 * n, device=device).view(2, n) % vocab_size


@torch.no_grad()
def _check_outputs(config: Config, model: Transformer, *, where: str) -> None:
    """Raises UserError if outputs depend on later tokens, earlier calls, torch's global generator,
    which queries are computed together or, if the scheme does not say so, on the length of the
    call; or if the part has another value where its distances alone are read.
    """

    def outputs(tokens_BT: torch.Tensor, *, seed: int = 0, n: int | None = None) -> torch.Tensor:
        """Returns the outputs of the last n tokens."""
        generator = torch.Generator().manual_seed(config.seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return model(tokens_BT, n_last=n, generator=generator)

    def check(equal: bool, why: str) -> None:
        if not equal:
            raise UserError(f"{where}: {why}")

    def near(a: torch.Tensor, b: torch.Tensor) -> bool:
        return torch.allclose(a, b, atol=1e-5)

    def check_causal(tokens_BT: torch.Tensor, expected: torch.Tensor) -> None:
        changed_BT = tokens_BT.clone()
        changed_BT[:, -1] = (tokens_BT[:, -1] + 1) % model.embedding.num_embeddings
        why = "an output depends on later tokens; a hook may use none of them"
        check(near(outputs(changed_BT)[:, :-1], expected[:, :-1]), why)

    tokens_BT = _tokens(config, model)
    expected = outputs(tokens_BT)
    check(near(outputs(tokens_BT), expected), "two equal calls differ; a hook may keep nothing")
    check_causal(tokens_BT, expected)
    again = expected if config.model.dropout else outputs(tokens_BT, seed=1)
    check(near(again, expected), "outputs are random; draw from c.generator, not the global one")
    model.eval()  # positions that are drawn in training depend on the length of the call
    if model.scheme.unsupported_reason(BLOCK + 8) is None:
        tokens_BT = _tokens(config, model, n=BLOCK + 8)  # two blocks of queries
    whole = outputs(tokens_BT)
    check_causal(tokens_BT, whole)
    n = (tokens_BT.shape[1] + 1) // 2
    last, first = outputs(tokens_BT, n=n), outputs(tokens_BT[:, :n])
    with torch.enable_grad():
        in_training = outputs(tokens_BT).detach()
    model.train()
    check(
        near(last, whole[:, -n:]),
        "outputs depend on which queries are computed together; take positions from c.q_pos and "
        "c.k_pos, rows of the text from c.rows and c.cols",
    )
    check(
        torch.allclose(in_training, whole, atol=1e-3),
        "outputs differ in training and evaluation; distance_only = True is for a bias that "
        "depends on c.distance() alone",
    )
    check(
        model.scheme.depends_on_length or near(first, whole[:, :n]),
        "an output depends on the length of the call; if it is meant to, set "
        "depends_on_length = True in the class",
    )


@contextmanager
def plugin_errors() -> Generator[None]:
    """Turns an error that a method of a plugin's part raises into one line; others pass."""
    try:
        yield
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if (raising := _raising(error)) is None:
            raise
        name = snake_case(type(raising).__name__)
        raise UserError(f"scheme.parts.{name}: {_said(error, raising)}") from error


def _blame(error: Exception, own: dict[nn.Module, str]) -> str:
    """Returns which part's method raised; if none did, whom the model did not get along with."""
    raising = _raising(error)
    part, remark = raising or next(iter(own)), "" if raising else "does not fit the model: "
    return f"scheme.parts.{own[part]}: {remark}{_said(error, part)}"


def _said(error: Exception, part: nn.Module) -> str:
    remedy = "; the longest length of a part is said by unsupported_reason"
    return described(error, type(part)) + remedy * isinstance(error, IndexError)


def _raising(error: Exception) -> Part | None:
    """Returns the plugin's part in one of whose methods an error was raised."""
    selves = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
    parts = (part for part in selves if isinstance(part, Part))
    return next((part for part in parts if part.__module__.startswith(MODULE_PREFIX)), None)
