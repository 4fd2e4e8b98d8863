"""Training: one step as a function, and the loop that makes it a run that can be killed.

B windows, T tokens, D width.
"""

import logging
import math
import signal
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lengthgen import corpora, devices, runs, statistics
from lengthgen.batches import IGNORED, TrainingWindows, train_batch, training_windows
from lengthgen.config import Config
from lengthgen.corpora import TokenizedCorpus
from lengthgen.errors import Stopped, UserError
from lengthgen.evaluate import Show, evaluate, plan
from lengthgen.model import Transformer, create, seed_of
from lengthgen.optim import adamw, lr_at
from lengthgen.ranks import Ranks
from lengthgen.tracking import Tracker, keep_rows


class StepResult(NamedTuple):
    """What one optimizer step saw, over all processes."""

    nats: float
    n_targets: int
    grad_norm: float


@dataclass
class State:
    """Everything that changes while training: `step` optimizer steps are done.

    nats and n_targets are sums since the last row of train.jsonl.
    """

    step: int
    nats: float
    n_targets: int
    model: Transformer
    optimizer: torch.optim.AdamW


class StopRequest:
    """Notes SIGTERM, SIGUSR2 or Ctrl-C: a checkpoint, then the end; a second Ctrl-C kills.

    Other signals may come twice: a scheduler and torchrun both pass them on.
    """

    def __init__(self) -> None:
        self.received = 0

    @contextmanager
    def listening(self) -> Generator[None]:
        """Listens while the block lasts."""
        kinds = (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)
        before = {kind: signal.getsignal(kind) for kind in kinds}

        def note(number: int, frame: FrameType | None) -> None:
            self.received = number
            if number == signal.SIGINT:
                signal.signal(number, before[signal.SIGINT])

        for kind in kinds:
            signal.signal(kind, note)
        try:
            yield
        finally:
            for kind in kinds:
                signal.signal(kind, before[kind])


def train(config: Config, *, ranks: Ranks, show: Show) -> Path:
    """Trains to the budget, resuming what is there, then evaluates the curve; returns the run.

    Raises UserError for what the user can mend, before a model is built where that is possible.
    """
    device = devices.device_of(config.runtime, ranks)
    devices.prepare(config.runtime, device)
    run_dir = config.run_dir
    corpus = corpora.load(config.corpus, cache_dir=config.runtime.cache_dir, say=show.say)
    plan(config, corpus)
    if config.train.length > corpus.train.lengths.max():
        longest = int(corpus.train.lengths.max())
        raise UserError(
            f"train.length={config.train.length}: the longest training document of corpus "
            f"{corpus.name} has {longest} tokens; lower train.length, or set corpus.packed=true"
        )
    with ExitStack() as stack:
        tracker = None
        if ranks.is_main:
            stack.enter_context(runs.claimed(run_dir, "train"))
            stack.enter_context(runs.logged(run_dir))
        _open(config, run_dir, corpus, ranks=ranks)
        if ranks.is_main:
            tracker = stack.enter_context(Tracker(config, run_dir, say=show.say))
        if not _is_trained(config, run_dir, ranks=ranks, show=show):
            _train(config, run_dir, corpus, device, ranks=ranks, show=show, tracker=tracker)
        rows = evaluate(config, run_dir, ranks=ranks, show=show)
        if tracker is not None:
            tracker.curve(_curve(rows))
    return run_dir


def train_step(
    state: State,
    windows: TrainingWindows,
    config: Config,
    *,
    device: torch.device,
    ranks: Ranks,
    forward: nn.Module,
) -> StepResult:
    """Takes one optimizer step on the step's global batch.

    The loss is the sum of nats over all processes divided once by their number of targets, so that
    any split of the batch over processes and micro-batches gives the same gradient.
    Raises UserError before the update if loss or gradient is not finite, naming step and rank.
    """
    model, optimizer, train = state.model, state.optimizer, config.train
    micro_batches = list(_micro_batches(state.step, windows, config, device=device, ranks=ranks))
    counted = sum(int((targets != IGNORED).sum()) for _, targets in micro_batches)
    n_targets = int(ranks.sum(torch.tensor(counted, device=device)))
    wide = torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64
    nats = torch.zeros((), dtype=wide, device=device)
    for inputs_BT, targets_BT in micro_batches:
        generator = torch.Generator().manual_seed(seed_of("step", config.seed, state.step))
        with torch.autocast(device.type, torch.bfloat16, enabled=train.precision == "bf16"):
            x_BTD = forward(inputs_BT, generator=generator)
            sum_nats = model.nats(x_BTD, targets_BT).sum()
        (sum_nats / n_targets).backward()
        nats += sum_nats.detach()
    _refuse_non_finite(nats, state.step, ranks)
    ranks.sum_gradients(model.parameters())
    grad_norm = float(nn.utils.clip_grad_norm_(model.parameters(), train.clip))
    if not math.isfinite(grad_norm):  # the same number on all ranks
        optimizer.zero_grad(set_to_none=True)
        raise UserError(
            f"the gradient's norm is {grad_norm} in step {state.step + 1}; no update was made; "
            "lower train.lr or use train.precision=fp32"
        )
    for group in optimizer.param_groups:
        group["lr"] = lr_at(state.step, train)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    model.scheme.project()
    state.step += 1
    return StepResult(float(ranks.sum(nats)), n_targets, grad_norm)


def _curve(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the points of the curve under the names that the tracker shows them by."""
    return [
        {
            "T_valid": point.length,
            "protocol": point.protocol,
            "variant": point.variant,
            "loss": point.loss,
            "ppl": point.ppl,
            "bits_per_byte": point.bits_per_byte,
        }
        for point in statistics.curve(rows)
        if point.skipped is None
    ]


def _is_trained(config: Config, run_dir: Path, *, ranks: Ranks, show: Show) -> bool:
    """True if DONE is there and so is the checkpoint it speaks of, as rank 0 sees it."""
    done = False
    if ranks.is_main and runs.is_done(run_dir):
        newest = runs.newest_checkpoint(run_dir, say=show.say)
        done = newest is not None and newest.step == config.train.steps
    return ranks.of_main(done)


def _open(config: Config, run_dir: Path, corpus: TokenizedCorpus, *, ranks: Ranks) -> None:
    """Refuses what cannot work, then writes what the run is, on the main process."""
    with torch.device("meta"):
        model = Transformer(config, vocab_size=corpus.vocab_size)
    if ranks.is_main:
        runs.check_room(config, sum(p.numel() * 4 for p in model.parameters()))
        runs.check_corpus(run_dir, corpus)
        runs.write_config(config, run_dir)
        runs.write_provenance(run_dir, corpus)
    ranks.barrier()


def _train(
    config: Config,
    run_dir: Path,
    corpus: TokenizedCorpus,
    device: torch.device,
    *,
    ranks: Ranks,
    show: Show,
    tracker: Tracker | None,
) -> None:
    """Runs the steps that are left, with a row every log_every steps and checkpoints."""
    train, runtime = config.train, config.runtime
    windows = training_windows(corpus, train.length)
    state = _state(config, run_dir, corpus, device, show=show)
    if ranks.is_main:
        keep_rows(run_dir / "train.jsonl", lambda row: row["train/step"] <= state.step)
    forward = torch.compile(state.model) if runtime.compile else state.model
    assert isinstance(forward, nn.Module)
    done = state.step * train.batch_tokens
    show.start(f"train {config.scheme.name}", train.steps * train.batch_tokens, done=done)
    stop, stopping, began, began_at = StopRequest(), 0, time.perf_counter(), state.step
    with stop.listening():
        while state.step < train.steps and not stopping:
            result = train_step(state, windows, config, device=device, ranks=ranks, forward=forward)
            state.nats, state.n_targets = (
                state.nats + result.nats,
                state.n_targets + result.n_targets,
            )
            last = state.step == train.steps
            if state.step % runtime.log_every == 0 or last:
                now = time.perf_counter()
                tokens_per_s = (state.step - began_at) * train.batch_tokens / (now - began)
                row = {
                    "train/step": state.step,
                    "train/tokens": state.step * train.batch_tokens,
                    "train/loss": state.nats / state.n_targets,
                    "train/lr": lr_at(state.step - 1, train),
                    "train/grad_norm": result.grad_norm,
                    "train/tokens_per_s": tokens_per_s,
                }
                if tracker is not None:
                    tracker.train(row)
                state.nats, state.n_targets, began, began_at = 0.0, 0, now, state.step
                show.advance(0, loss=row["train/loss"], tokens_per_s=tokens_per_s)
            show.advance(train.batch_tokens)
            stopping = ranks.max(stop.received, device)
            if ranks.is_main and (last or stopping or state.step % train.checkpoint_every == 0):
                runs.save_checkpoint(
                    run_dir,
                    step=state.step,
                    unlogged=(state.nats, state.n_targets),
                    model=state.model,
                    optimizer=state.optimizer,
                )
    show.finish()
    if ranks.is_main and state.step == train.steps:
        runs.mark_done(run_dir, step=state.step)
    ranks.barrier()
    if stopping:
        raise Stopped(
            f"stopped by {signal.Signals(stopping).name} after step {state.step} of "
            f"{train.steps}, with a checkpoint; the same command continues",
            exit_code=128 + stopping,
        )


def _state(
    config: Config, run_dir: Path, corpus: TokenizedCorpus, device: torch.device, *, show: Show
) -> State:
    """Returns the state of the newest valid checkpoint, or a fresh one."""
    model = create(config, vocab_size=corpus.vocab_size).to(device)
    optimizer = adamw(model, config.train)
    found = runs.newest_checkpoint(run_dir, say=show.say)
    if found is not None:
        model.load_state_dict(found.weights)
        optimizer.load_state_dict(found.optimizer)
        show.say(f"resuming after step {found.step} of {config.train.steps}")
    parameters = sum(p.numel() for p in model.parameters())
    logging.getLogger(__name__).info("%s: %d parameters on %s", run_dir.name, parameters, device)
    step, (nats, n_targets) = (found.step, found.unlogged) if found else (0, (0.0, 0))
    return State(
        step=step, nats=nats, n_targets=n_targets, model=model.train(), optimizer=optimizer
    )


def _micro_batches(
    step: int,
    windows: TrainingWindows,
    config: Config,
    *,
    device: torch.device,
    ranks: Ranks,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields this process's share of the step's windows: inputs and targets, [B, T]."""
    batch = train_batch(windows, seed=config.seed, step=step, batch=config.train.batch)
    mine = range(ranks.rank, config.train.batch, ranks.world_size)
    size = devices.micro_batch(config.runtime, device, config.train.length)
    for first in range(0, len(mine), size):
        rows = list(mine[first : first + size])
        yield (
            torch.from_numpy(batch.inputs_BT[rows]).to(device),
            torch.from_numpy(batch.targets_BT[rows]).to(device),
        )


def _refuse_non_finite(nats: Tensor, step: int, ranks: Ranks) -> None:
    """Raises UserError in every process if the loss of any is not finite."""
    total = ranks.sum(nats.clone())
    if torch.isfinite(total):
        return
    losses = ranks.gather(float(nats))
    bad = [rank for rank, loss in enumerate(losses) if loss - loss != 0]
    raise UserError(
        f"the loss is {losses[bad[0]]} in step {step + 1} on rank {bad[0]}; no update was made; "
        "lower train.lr or use train.precision=fp32"
    )
