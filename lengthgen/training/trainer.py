"""The training loop: a run of steps that can be killed at any of them, and continues exactly."""

import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from lengthgen.config.schema import Config
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.objective import Objective
from lengthgen.data.windows import TrainingWindows
from lengthgen.errors import Refused, Stopped, UserError
from lengthgen.files import append_rows, reading, write_rows
from lengthgen.model.transformer import Transformer
from lengthgen.model.trial import plugin_errors
from lengthgen.runs import checkpoints, devices, directory, signals
from lengthgen.runs.distributed import Ranks
from lengthgen.terminal import Progress
from lengthgen.training.optim import lr_at
from lengthgen.training.step import (
    TrainingState,
    batch_of,
    check_finite,
    compiles_steps,
    fresh_state,
    launch_step,
    loss_function,
)


@plugin_errors()
def train(
    config: Config,
    objective: Objective,
    corpus: TokenizedCorpus,
    model: Transformer,
    device: torch.device,
    *,
    ranks: Ranks,
    show: Progress,
    log: Callable[[dict[str, Any]], None],
    validate: Callable[[Transformer], dict[str, float]] | None = None,
) -> None:
    """Takes the steps that are left of a run of a model with its first weights.

    `log` is given each row of train.jsonl, with what `validate` returns every val_every steps.
    Raises Diverged, Stopped and UserError.
    """
    train, file = config.train, config.run_dir / "train.jsonl"
    if train.batch < ranks.world_size:
        raise UserError(
            f"train.batch_tokens={train.batch_tokens}: {train.batch} windows of {train.length} "
            f"tokens are too few for {ranks.world_size} processes; start {train.batch} or fewer"
        )
    windows = TrainingWindows(corpus, objective.window_targets)
    state = fresh_state(config, objective, model, device=device)
    ranks.agreed(partial(_resume, state, say=show.say))
    if len(set(ranks.gather(state.step))) > 1:
        raise Refused(
            f"{config.run_dir}: processes see different checkpoints; set runtime.root to one "
            "folder that all of them see"
        )
    began_at = state.step
    training = directory.read_provenance(config.run_dir, run=config.run_id).get("training")
    if ranks.is_main:  # the steps after the checkpoint are taken again
        rows = directory.read_log(config.run_dir, run=config.run_id)
        kept = [row for row in rows if row["train/step"] <= began_at]
        if len(kept) < len(rows):
            write_rows(file, kept)
    n, without = directory.n_parameters(dict(model.named_parameters())).values()
    show.say(
        f"training in {train.precision} on {device}: {n:,} parameters, {without:,} without the "
        f"embedding; {train.steps:,} steps"
    )
    if compiles_steps(state):
        show.say("compiling: the first steps take a minute; runtime.compile=false does without")
    elif config.runtime.compile:
        show.say("not compiled: runtime.compile=true is for plain decoders")
    loss = loss_function(state, ranks=ranks)
    done = state.step * train.batch_tokens
    show.start(f"train {config.scheme.name}", train.steps * train.batch_tokens, done=done)
    stop, stopping, began = signals.StopRequest(), 0, time.perf_counter()
    batch = batch_of(state, windows, ranks=ranks)
    with stop.listening():  # to the end, also after a first signal: another may follow
        while state.step < train.steps and not stopping:
            launch_step(state, batch, ranks=ranks, loss=loss)
            batch = batch_of(state, windows, ranks=ranks)  # the next one, while a GPU works
            stopping = max(ranks.gather(stop.received))
            last = state.step == train.steps
            logs = state.step % config.runtime.log_every == 0 or last
            saves = last or stopping or state.step % train.checkpoint_every == 0
            keeps = state.step in train.kept_steps
            if logs or saves or keeps or device.type != "cuda":
                check_finite(state, ranks)
            if logs:
                n_tokens = (state.step - began_at) * train.batch_tokens
                rate = n_tokens / (time.perf_counter() - began)
                row = _row(state, training=training, tokens_per_s=rate)
                losses = validate(model) if validate is not None and _is_due(state) else {}
                began, began_at = time.perf_counter(), state.step
                state.nats, state.n_targets = torch.zeros_like(state.nats), 0
                if ranks.is_main:
                    append_rows(file, [row | losses])
                    log(row | losses)
                losses = {key.replace("/loss", ""): loss for key, loss in losses.items()}
                show.advance(0, loss=row["train/loss"], **losses, tokens_per_s=rate)
            show.advance(train.batch_tokens)
            if keeps and ranks.is_main:  # first: a run that resumes after this step has them
                run, weights = config.run_id, model.state_dict()
                checkpoints.save(config.run_dir, run=run, step=state.step, weights=weights)
            if saves:
                _save(state, ranks)
        show.finish()
        if ranks.is_main and state.step == train.steps:
            keep = train.keep_optimizer
            checkpoints.mark_trained(config.run_dir, run=config.run_id, keep_optimizer=keep)
        stopping = max(ranks.gather(stop.received)) or stopping  # in the last step, too
        if stopping:
            raise Stopped(
                f"stopped by {signal.Signals(stopping).name} after step {state.step} of "
                f"{train.steps}, with a checkpoint; rerun to resume",
                exit_code=128 + stopping,
            )


def _resume(state: TrainingState, *, say: Callable[[str], None]) -> None:
    """Continues from the newest checkpoint, if there is one."""
    config = state.config
    checkpoint = checkpoints.newest(config.run_dir, run=config.run_id, files=checkpoints.FILES)
    if checkpoint is not None:
        with reading(checkpoint.folder):
            trainer = checkpoint.trainer_state()
            state.model.load_state_dict(checkpoint.weights)
            for optimizer, kept in zip(state.optimizers, trainer["optimizers"], strict=True):
                optimizer.load_state_dict(kept)
            state.step, (nats, state.n_targets) = checkpoint.step, trainer["unlogged"]
            state.nats = torch.full_like(state.nats, nats)
            state.model.carry_on(trainer["carried"])
        say(f"resuming after step {checkpoint.step} of {config.train.steps}")


def _is_due(state: TrainingState) -> bool:
    """True if a multiple of val_every lies behind the last row, or this is the last one."""
    before = (state.step - 1) // state.config.runtime.log_every * state.config.runtime.log_every
    every, last = state.config.train.validates_every, state.step == state.config.train.steps
    return last or state.step // every > before // every


def _row(state: TrainingState, *, training: str | None, tokens_per_s: float) -> dict[str, Any]:
    """Returns the row of train.jsonl on the steps since the last one."""
    train = state.config.train
    return {
        "run": state.config.run_id,
        "training": training,
        "train/step": state.step,
        "train/tokens": state.step * train.batch_tokens,
        "train/loss": float(state.nats) / state.n_targets,
        "train/lr": lr_at(state.step - 1, train),
        "train/scheme_lr_ratio": state.config.scheme_lr_ratio,
        "train/grad_norm": float(state.last[2]),
        "train/tokens_per_s": tokens_per_s,
        "train/peak_mib": devices.peak_memory(state.device) / 2**20,
    }


def _save(state: TrainingState, ranks: Ranks) -> None:
    """Writes a checkpoint, on the main process."""
    trainer = {
        "unlogged": (float(state.nats), state.n_targets),
        "carried": state.model.carried(),  # of all processes
        "optimizers": [optimizer.state_dict() for optimizer in state.optimizers],
    }
    if ranks.is_main:
        run_dir, run, weights = state.config.run_dir, state.config.run_id, state.model.state_dict()
        checkpoints.save(run_dir, run=run, step=state.step, weights=weights, trainer=trainer)
