"""One step on the smallest batch: what is wrong with a part is one line before a run."""

import math
import traceback
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

from lengthgen.config.plugins import is_of_plugin
from lengthgen.config.registry import described, errors_of, snake_case
from lengthgen.config.schema import Config
from lengthgen.errors import UserError, out_of_memory
from lengthgen.model.attention import BLOCK
from lengthgen.model.build import redesigned
from lengthgen.model.transformer import Transformer
from lengthgen.schemes import Design, Part, Unfit


def try_out(model: Transformer, config: Config, variants: Sequence[Design]) -> None:
    """Computes loss and gradient of windows of eight tokens under each variant; forgets them.

    Raises UserError for what a part can tell in a call alone, such as a share that keeps no rotated
    channel, and with part, file and line if a plugin's part raises, returns what does not fit, or
    makes loss or gradient infinite; and whatever `_check_outputs` refuses.
    """
    parts = model.scheme.parts.items()
    for name, part in parts:
        if isinstance(part, Part) and part.reads_alignment and part.alignment_ids is None:
            raise UserError(
                f"scheme.parts.{name}: needs to know which characters belong together, and "
                f"corpus={config.corpus.name} does not define it; use task=addition_reversed_all, "
                "addition_padded or copy, or another scheme"
            )
    of_plugins = {p: n for n, p in parts if isinstance(p, Part) and is_of_plugin(type(p))}
    where = f"scheme.parts.{' and '.join(of_plugins.values())}"
    unfit = [errors_of(type(part), where=f"{where}: does not fit the model") for part in of_plugins]
    try:
        with next(iter(unfit), nullcontext()), plugin_errors(remedy=""):
            stored = {*model.state_dict()}
            loss, norm = _values(config, model)
            if added := sorted({*model.state_dict()} - stored):
                raise UserError(
                    f"{added[0]}: a hook registers it, so that no checkpoint could be read; "
                    "register it in __init__, or with persistent=False"
                )
            for part, name in of_plugins.items():
                unused = any(p.requires_grad and p.grad is None for p in part.parameters())
                if unused and config.scheme.layers is None:
                    raise UserError(
                        f"scheme.parts.{name}: the loss does not depend on one of its parameters; "
                        "drop it, or use it in a hook: scores() returns c.biased(...), and "
                        "relative_queries() needs relative_keys() of the same part"
                    )
            for variant in variants:
                with model.under(redesigned(model, variant)):
                    _values(config, model)
            if of_plugins and not math.isfinite(loss + norm):
                hides = "; visible must leave a key" * any(
                    p.overrides("visible") for p in of_plugins
                )
                said = f"loss {loss}, gradient's norm {norm} before any update{hides}"
                raise FloatingPointError(said)
            if of_plugins and config.model.arch == "decoder":
                _check_outputs(config, model, where=where)
    finally:
        model.zero_grad()


def _values(config: Config, model: Transformer) -> tuple[float, float]:
    """Returns the loss and its gradient's norm."""
    tokens_BT = _tokens(model, min(8, config.train.length))
    device = tokens_BT.device
    targets_BQ = tokens_BT[:, 1:]  # fewer than the keys: a mix-up of the two does not fit
    generator, starts = torch.Generator().manual_seed(config.seed), model.answer_starts(tokens_BT)
    with torch.autocast(device.type, torch.bfloat16, enabled=config.train.precision == "bf16"):
        x_BQD = model(tokens_BT, n_last=targets_BQ.shape[1], generator=generator, **starts)
        nats = model.token_nll(x_BQD, targets_BQ).sum()
    nats.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), config.train.clip)
    return nats.item(), norm.item()


def _tokens(model: Transformer, n: int) -> torch.Tensor:
    """Returns windows of n tokens, not as many as there are heads: a mix-up does not fit."""
    device, vocab_size = model.embedding.weight.device, model.embedding.num_embeddings
    n_windows = 3 if model.shape.n_heads == 2 else 2
    return torch.arange(n_windows * n, device=device).view(n_windows, n) % vocab_size


@torch.no_grad()
def _check_outputs(config: Config, model: Transformer, *, where: str) -> None:
    """Raises UserError if outputs depend on later tokens, earlier calls, torch's global generator,
    which queries are computed together or, if the scheme does not say so, on the length of the
    call; or if training and evaluation differ.

    The longest call has two blocks of queries, if the run has calls as long.
    """

    def outputs(tokens_BT: torch.Tensor, *, seed: int = 0, n: int | None = None) -> torch.Tensor:
        """Returns the outputs of the last n tokens."""
        generator = torch.Generator().manual_seed(config.seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return model(tokens_BT, n_last=n, generator=generator)

    def check(*compared: tuple[str, torch.Tensor, torch.Tensor], atol: float = 1e-4) -> None:
        for why, got, expected in compared:  # sums of other lengths are rounded differently
            if not torch.allclose(got, expected, atol=atol):
                raise UserError(f"{where}: {why}")

    def checked(tokens_BT: torch.Tensor) -> torch.Tensor:
        whole, other_BT = outputs(tokens_BT), tokens_BT.clone()
        other_BT[:, -1] = (tokens_BT[:, -1] + 1) % model.embedding.num_embeddings
        again, seeded, other = outputs(tokens_BT), outputs(tokens_BT, seed=1), outputs(other_BT)
        later = "an output depends on later tokens; a hook may use none of them"
        check(
            ("two equal calls differ; a hook may keep nothing", again, whole),
            (later, other[:, :-1], whole[:, :-1]),
            ("outputs are random; draw from c.generator, not the global one", seeded, whole),
            atol=1e-5,
        )
        return whole

    checked(tokens_BT := _tokens(model, min(8, config.train.length)))
    model.eval()  # positions that are drawn in training depend on the length of the call
    n = min(BLOCK + 8, max(config.train.length, *config.eval.lengths))
    if n > 8 and model.scheme.unsupported_reason(n) is None:
        tokens_BT = _tokens(model, n)
    n = (tokens_BT.shape[1] + 1) // 2
    with plugin_errors():
        whole, alone = checked(tokens_BT), outputs(tokens_BT[:1])
        last, first = outputs(tokens_BT, n=n), outputs(tokens_BT[:, :n])
        layers = model.scheme.layers
        model.scheme.layers = [layer._replace(toeplitz=False) for layer in layers]
        with torch.enable_grad():  # biases pair by pair
            in_training = outputs(tokens_BT).detach()
        model.scheme.layers = layers
    model.train()
    kinds = "outputs differ in training and evaluation; distance_only = True is for a bias that "
    of_batch = "an output depends on the other texts of a batch; a hook may use none of them"
    together = (
        "outputs depend on which queries are computed together; take positions from c.q_pos and "
        "c.k_pos, rows of the text from c.rows and c.cols"
    )
    check((of_batch, alone, whole[:1]), (together, last, whole[:, -n:]))
    check((f"{kinds}depends on c.distance() alone", in_training, whole), atol=1e-3)
    if not model.scheme.depends_on_length:
        why = "an output depends on the length of the call; if it is meant to, set "
        check((f"{why}depends_on_length = True in the class", first, whole[:, :n]))


OF_LENGTH = "; if the part has a longest length, unsupported_reason states it"


@contextmanager
def plugin_errors(remedy: str = OF_LENGTH) -> Generator[None]:
    """Turns an error that a method of a plugin's part raises into one line; others pass."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        part = error.part if isinstance(error, Unfit) else _raising(error)
        if part is None or not is_of_plugin(type(part)) or out_of_memory(error):
            raise
        name = snake_case(type(part).__name__)
        why = described(error, type(part)).removeprefix(f"{Unfit.__name__}: ")
        why += remedy * isinstance(error, IndexError | RuntimeError | ValueError)  # of a length
        raise UserError(f"scheme.parts.{name}: {why}") from error


def _raising(error: Exception) -> Part | None:
    """Returns the plugin's part in one of whose methods an error was raised."""
    selves = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
    return next((x for x in selves if isinstance(x, Part) and is_of_plugin(type(x))), None)
