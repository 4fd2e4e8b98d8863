"""Training: one step as a function, and the loop that makes it a run that can be killed.

B windows, T tokens, D width.
"""

import logging
import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lengthgen.config.precision import cpu_multiplies_bf16
from lengthgen.config.schema import Config, InitFrom
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.objective import objective_of
from lengthgen.data.windows import (
    IGNORED,
    TrainingWindows,
    consecutive_batch,
    train_batch,
    training_windows,
)
from lengthgen.errors import Diverged, Stopped
from lengthgen.files import keep_rows, read_rows
from lengthgen.model import kernels
from lengthgen.model.build import generator_of
from lengthgen.model.recurrent import Memory, RecurrentTransformer
from lengthgen.model.transformer import Transformer
from lengthgen.runs import checkpoints, devices, directory, signals, status
from lengthgen.runs.distributed import Ranks
from lengthgen.terminal import Progress
from lengthgen.training import init_from
from lengthgen.training.optim import adamw, lr_at, set_rates

BUCKET_BYTES = 16 * 2**20  # of gradients that a GPU sends while it computes others


class StepResult(NamedTuple):
    """What one optimizer step saw, over all processes."""

    nats: float
    n_targets: int
    grad_norm: float


class MicroBatch(NamedTuple):
    """Rows of the step's global batch that go through the model together."""

    inputs_BT: Tensor
    targets_BT: Tensor
    rows_B: Tensor
    begins_B: Tensor  # bool: the row does not continue that of the step before


class Batch(NamedTuple):
    """This process's share of a step's global batch, on the device; n_targets is of all of it."""

    micro_batches: list[MicroBatch]
    n_targets: int


@dataclass
class State:
    """Everything that changes while training: `step` optimizer steps are done or launched.

    nats and n_targets are sums since the last row of train.jsonl. memory is that of all rows of the
    global batch, of which a process keeps its own up to date; None if the scheme has none. failed
    is 1 from the first step on whose loss or gradient is not finite: no update is made any more.
    last is of that step, or else of the last one: its number, the nats of this process's share and
    the gradient's norm.
    """

    config: Config
    step: int
    nats: Tensor
    n_targets: int
    model: Transformer
    optimizer: torch.optim.AdamW
    memory: Memory | None
    failed: Tensor
    last: Tensor

    @property
    def device(self) -> torch.device:
        return self.nats.device


def train(
    config: Config,
    corpus: TokenizedCorpus,
    model: Transformer,
    device: torch.device,
    *,
    ranks: Ranks,
    show: Progress,
    log: Callable[[dict[str, Any]], None],
) -> None:
    """Runs the steps that are left of a run, with checkpoints and a row every log_every steps.

    `model` was just created; a checkpoint's weights replace those it has. `log` takes the rows, on
    the main process. Raises Diverged, and Stopped if a signal came.
    """
    train, runtime, run_dir = config.train, config.runtime, config.run_dir
    windows = windows_of(config, corpus)
    state = _state(config, corpus, model, device, show=show)
    if ranks.is_main:
        directory.train_rows(run_dir, run=config.run_id)  # refuses those of another run
        keep_rows(run_dir / "train.jsonl", lambda row: row["train/step"] <= state.step)
    show.say(devices.summary(train.precision, device, multiplies_bf16=cpu_multiplies_bf16()))
    compiled = devices.compiles(runtime, device) and type(state.model) is Transformer
    if compiled:
        show.say("compiling: the first steps take a minute; runtime.compile=false does without")
    logging.getLogger(__name__).info("compiled: %s", compiled)
    forward = forward_of(state, compiled=compiled)
    done = state.step * train.batch_tokens
    show.start(f"train {config.scheme.name}", train.steps * train.batch_tokens, done=done)
    stopping = _take_steps(state, windows, ranks=ranks, forward=forward, show=show, log=log)
    show.finish()
    if ranks.is_main and state.step == train.steps:
        weights = checkpoints.weights_sha256(run_dir, step=state.step)
        rows = read_rows(run_dir / "train.jsonl", run=config.run_id)
        status.mark_trained(run_dir, step=state.step, weights=weights, rows=rows)
    ranks.barrier()
    if stopping:
        raise Stopped(
            f"stopped by {signal.Signals(stopping).name} after step {state.step} of "
            f"{train.steps}, with a checkpoint; the same command continues",
            exit_code=128 + stopping,
        )


def _take_steps(
    state: State,
    windows: TrainingWindows,
    *,
    ranks: Ranks,
    forward: Callable[..., Any],
    show: Progress,
    log: Callable[[dict[str, Any]], None],
) -> int:
    """Takes the steps that are left; returns the number of the signal that ended them, or 0."""
    train, log_every = state.config.train, state.config.runtime.log_every
    stop, stopping, began, began_at = signals.TrainingStop(), 0, time.perf_counter(), state.step
    batch = batch_of(state, windows, ranks=ranks)
    with stop.listening():
        while state.step < train.steps and not stopping:
            launch_step(state, batch, ranks=ranks, forward=forward)
            batch = batch_of(state, windows, ranks=ranks)  # the next one, while a GPU works
            stopping = ranks.max(stop.received)
            last = state.step == train.steps
            logs = state.step % log_every == 0 or last
            saves = last or stopping or state.step % train.checkpoint_every == 0
            if logs or saves or state.device.type != "cuda":
                check_finite(state, ranks)
            if logs:
                now = time.perf_counter()
                tokens_per_s = (state.step - began_at) * train.batch_tokens / (now - began)
                if ranks.is_main:
                    row = _train_row(state, batch, tokens_per_s=tokens_per_s)
                    log(row)
                    show.advance(0, loss=row["train/loss"], tokens_per_s=tokens_per_s)
                state.nats, state.n_targets = torch.zeros_like(state.nats), 0
                began, began_at = now, state.step
            show.advance(train.batch_tokens)
            if saves:
                _save(state, ranks)
    return stopping


def _train_row(state: State, batch: Batch, *, tokens_per_s: float) -> dict[str, Any]:
    """Returns the row of train.jsonl on the steps since the last one; `batch` is the next step's.

    Where positions are embedded, it holds how large they are next to tokens.
    """
    train = state.config.train
    row: dict[str, Any] = {
        "run": state.config.run_id,
        "train/step": state.step,
        "train/tokens": state.step * train.batch_tokens,
        "train/loss": float(state.nats) / state.n_targets,
        "train/lr": lr_at(state.step - 1, train),
        "train/scheme_lr_ratio": state.config.scheme_lr_ratio,
        "train/grad_norm": float(state.last[2]),
        "train/tokens_per_s": tokens_per_s,
        "train/peak_mib": devices.peak_memory(state.device) / 2**20,
    }
    if state.model.scheme.embeds:
        inputs_BT = batch.micro_batches[0].inputs_BT[:, : train.length]
        ratio = state.model.position_token_rms_ratio(inputs_BT, generator=_generator(state))
        row["train/positions_to_tokens"] = ratio
    return row


def _save(state: State, ranks: Ranks) -> None:
    """Writes a checkpoint, on the main process."""
    memory = _whole_memory(state.memory, ranks)
    if ranks.is_main:
        checkpoints.save(
            state.config.run_dir,
            run=state.config.run_id,
            step=state.step,
            unlogged=(float(state.nats), state.n_targets),
            memory=memory,
            model=state.model,
            optimizer=state.optimizer,
        )


def windows_of(config: Config, corpus: TokenizedCorpus) -> TrainingWindows:
    """Returns the windows that training rows are made of."""
    return training_windows(corpus, objective_of(config).window_targets)


def fresh_state(config: Config, model: Transformer, *, device: torch.device) -> State:
    """Returns the state before the first step of a model that was just created."""
    model = model.to(device).train()
    memory = None
    if isinstance(model, RecurrentTransformer) and model.n_remembered:
        memory = model.empty_memory(config.train.batch, size=model.n_remembered)
    return State(
        config=config,
        step=0,
        nats=torch.zeros((), dtype=_wide(device), device=device),
        n_targets=0,
        model=model,
        optimizer=adamw(model, config.train),
        memory=memory,
        failed=torch.zeros((), device=device),
        last=torch.zeros(3, dtype=_wide(device), device=device),
    )


def forward_of(state: State, *, compiled: bool) -> Callable[..., Any]:
    """Returns what train_step calls: the model, or its segments if it remembers."""
    forward = state.model
    if state.memory is not None:
        assert isinstance(state.model, RecurrentTransformer)
        forward = state.model.segment
    return kernels.compiled(forward) if compiled else forward


def train_step(
    state: State, windows: TrainingWindows, *, ranks: Ranks, forward: Callable[..., Any]
) -> StepResult:
    """Takes one optimizer step on the step's global batch, and waits for it.

    Raises Diverged if loss or gradient is not finite, naming step and rank; no update was made.
    """
    batch = batch_of(state, windows, ranks=ranks)
    nats = launch_step(state, batch, ranks=ranks, forward=forward)
    check_finite(state, ranks)
    return StepResult(float(nats), batch.n_targets, float(state.last[2]))


def launch_step(state: State, batch: Batch, *, ranks: Ranks, forward: Callable[..., Any]) -> Tensor:
    """Launches one optimizer step, and returns the nats of its global batch.

    The loss is the sum of nats over all processes divided once by their number of targets, so that
    any split of the batch over processes and micro-batches gives the same gradient. Nothing here
    waits for a GPU, though a few schemes read a value from it: it is the device itself that makes
    no update after a loss or gradient that is not finite, and check_finite() reports it.
    """
    model, optimizer, device, train = state.model, state.optimizer, state.device, state.config.train
    nats = torch.zeros_like(state.nats)

    def accumulate(micro: MicroBatch) -> None:
        generator = _generator(state)
        with torch.autocast(device.type, torch.bfloat16, enabled=train.precision == "bf16"):
            if state.memory is None:
                starts = model.answer_starts(micro.targets_BT)
                x_BTD = forward(micro.inputs_BT, generator=generator, **starts)
            else:
                x_BTD = _forward_with_memory(state.memory, micro, forward, generator)
            sum_nats = model.sum_token_nll(x_BTD, micro.targets_BT)
        (sum_nats / batch.n_targets).backward()
        nats.add_(sum_nats.detach())

    for micro in batch.micro_batches[:-1]:
        accumulate(micro)
    bucket_bytes = BUCKET_BYTES if device.type == "cuda" else None
    with ranks.summing_gradients(model.parameters(), bucket_bytes=bucket_bytes):
        for micro in batch.micro_batches[-1:]:
            accumulate(micro)
    total = ranks.sum(nats.clone())
    grad_norm = nn.utils.clip_grad_norm_(model.parameters(), train.clip)
    seen = torch.stack([torch.full_like(nats, state.step + 1), nats, grad_norm.to(nats.dtype)])
    state.last = torch.where(state.failed.bool(), state.last, seen)
    state.failed = torch.where(total.isfinite() & grad_norm.isfinite(), state.failed, 1.0)
    set_rates(optimizer, state.step, state.config)
    # The device decides: weights, moments and step count stay as they are where found_inf is 1.
    optimizer.found_inf = state.failed  # pyright: ignore[reportAttributeAccessIssue]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    model.scheme.clamp_parameters()
    state.step += 1
    state.nats = state.nats + total
    state.n_targets += batch.n_targets
    return total


def check_finite(state: State, ranks: Ranks) -> None:
    """Waits for the steps that were launched.

    Raises Diverged in every process if the loss or gradient of one was not finite, naming the first
    such step and rank; the state is that of the step before.
    """
    if not state.failed:
        return
    step, nats, grad_norm = state.last.tolist()
    state.step = int(step) - 1
    # No rate has acted before the first step.
    cause = "lower train.lr" if step > 1 else "correct the scheme or lower model.init_std"
    remedy = f"no update was made; {cause}, or use train.precision=fp32"
    for rank, loss in enumerate(ranks.gather(nats)):
        if not math.isfinite(loss):
            raise Diverged(f"the loss is {loss} in step {int(step)} on rank {rank}; {remedy}")
    raise Diverged(f"the gradient's norm is {grad_norm} in step {int(step)}; {remedy}")


def _forward_with_memory(
    memory: Memory, micro: MicroBatch, forward: Callable[..., Any], generator: torch.Generator
) -> Tensor:
    """Returns the hidden states of a micro-batch after its rows' memory, and updates that."""
    x_NBMD, left_padding_B = memory
    size, rows_B = x_NBMD.shape[2], micro.rows_B
    known_B = left_padding_B[rows_B].masked_fill(micro.begins_B, size)
    before = Memory(x_NBMD[:, rows_B], known_B)
    x_BTD, after = forward(
        micro.inputs_BT, before, n_last=micro.inputs_BT.shape[1], generator=generator
    )
    x_NBMD[:, rows_B], left_padding_B[rows_B] = after.x_NBMD.to(x_NBMD.dtype), after.left_padding_B
    return x_BTD


def _generator(state: State) -> torch.Generator:
    """Returns the draws of the state's next step, which all its micro-batches share."""
    return generator_of("step", state.config.seed, state.step)


def _state(
    config: Config,
    corpus: TokenizedCorpus,
    model: Transformer,
    device: torch.device,
    *,
    show: Progress,
) -> State:
    """Returns the state of the newest valid checkpoint, or a fresh one."""
    run_dir, state = config.run_dir, fresh_state(config, model, device=device)
    found = checkpoints.newest(run_dir, run=config.run_id, say=show.say)
    if found is not None:
        state.model.load_state_dict(found.weights)
        # The groups' settings follow from the configuration; older versions had two groups.
        moments = {**state.optimizer.state_dict(), "state": found.optimizer["state"]}
        state.optimizer.load_state_dict(moments)
        state.step, (nats, state.n_targets) = found.step, found.unlogged
        state.nats = torch.full_like(state.nats, nats)
        if found.memory is not None:
            state.memory = Memory(*(tensor.to(device) for tensor in found.memory))
        show.say(f"resuming after step {found.step} of {config.train.steps}")
    elif isinstance(config.train.init_from, InitFrom):
        init_from.load_weights(state.model, config.train.init_from, corpus, say=show.say)
    parameters = sum(p.numel() for p in state.model.parameters())
    logging.getLogger(__name__).info("%s: %d parameters on %s", run_dir.name, parameters, device)
    of_scheme = sum(p.numel() for p in state.model.scheme.parameters())
    if of_scheme and config.scheme_lr_ratio != 1:
        ratio = f"{config.scheme_lr_ratio:.15g}"
        show.say(f"{of_scheme:,} parameters of the scheme at {ratio} times train.lr")
    return state


def _whole_memory(memory: Memory | None, ranks: Ranks) -> Memory | None:
    """Returns the memory of all rows, each from the process that keeps it up to date."""
    if memory is None or ranks.world_size == 1:
        return memory
    batch, n = len(memory.left_padding_B), ranks.world_size
    mine = list(range(ranks.rank, batch, n))
    parts = ranks.gather((memory.x_NBMD[:, mine].cpu(), memory.left_padding_B[mine].cpu()))
    whole = Memory(memory.x_NBMD.cpu().clone(), memory.left_padding_B.cpu().clone())
    for rank, (x_NBMD, left_padding_B) in enumerate(parts):
        rows = list(range(rank, batch, n))
        whole.x_NBMD[:, rows], whole.left_padding_B[rows] = x_NBMD, left_padding_B
    return whole


def batch_of(state: State, windows: TrainingWindows, *, ranks: Ranks) -> Batch:
    """Returns this process's share of the windows of the state's next step."""
    config = state.config
    which: dict[str, int] = {"seed": config.seed, "step": state.step, "batch": config.train.batch}
    if state.memory is None:
        batch, begins = train_batch(windows, **which), np.ones(config.train.batch, dtype=bool)
    else:
        batch, begins = consecutive_batch(windows, **which)
    vocab_size = windows.corpus.vocab_size
    batch = objective_of(config).batch(batch, vocab_size=vocab_size, step=state.step)
    mine = np.arange(ranks.rank, config.train.batch, ranks.world_size)
    size = devices.micro_batch(config.runtime, state.device, config.train.length)
    share = [
        devices.to_device(torch.from_numpy(array), state.device)
        for array in (batch.inputs_BT[mine], batch.targets_BT[mine], mine, begins[mine])
    ]
    micro_batches = [
        MicroBatch(*(tensor[first : first + size] for tensor in share))
        for first in range(0, len(mine), size)
    ]
    return Batch(micro_batches, int((batch.targets_BT != IGNORED).sum()))


def _wide(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64
