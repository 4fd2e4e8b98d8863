"""The training loop: a run of steps that can be killed at any of them, and continues exactly."""

import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from lengthgen.config.schema import Config
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.windows import TrainingWindows
from lengthgen.errors import Refused, Say, Stopped, UserError
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
    launch_step,
    loss_function,
)

Log = Callable[[dict[str, Any]], None]
Validate = Callable[[Transformer], dict[str, float]]


@plugin_errors()
def train(
    state: TrainingState,
    corpus: TokenizedCorpus,
    *,
    ranks: Ranks,
    show: Progress,
    log: Log,
    validate: Validate | None = None,
) -> None:
    """Takes the steps that are left of a run, whose state has the first weights.

    `log` is given each row of train.jsonl, with what `validate` returns every val_every steps.
    Raises Diverged, Stopped and UserError.
    """
    config = state.config
    _refuse_idle_processes(config, ranks)
    _resume(state, ranks, say=show.say)
    _announce(state, show)
    loss = loss_function(state, ranks=ranks)
    windows = TrainingWindows(corpus, state.objective.window_targets)
    rows = Rows(state, ranks, log, validate)
    batch = batch_of(state, windows, ranks=ranks)
    stop, stopping = signals.StopRequest(), 0
    with stop.listening():  # to the end, also after a first signal: another may follow
        while not (state.is_last or stopping):
            launch_step(state, batch, ranks=ranks, loss=loss)
            batch = batch_of(state, windows, ranks=ranks)  # the next one, while a GPU works
            stopping = max(ranks.gather(stop.received))
            logs = state.is_last or state.step % config.runtime.log_every == 0
            saves = state.is_last or stopping or state.step % config.train.checkpoint_every == 0
            keeps = state.step in config.train.kept_steps
            if logs or saves or keeps or state.device.type != "cuda":
                check_finite(state, ranks)
            show.advance(config.train.batch_tokens, **(rows.add() if logs else {}))
            if keeps:  # first: a run that resumes after this step has them
                _save(state, ranks, trainer=None)
            if saves:
                _save(state, ranks, trainer=_to_resume(state))
        show.finish()
        if state.is_last and ranks.is_main:
            keep = config.train.keep_optimizer
            checkpoints.mark_trained(config.run_dir, run=config.run_id, keep_optimizer=keep)
        if stopping := max(ranks.gather(stop.received)) or stopping:  # in the last step, too
            raise Stopped(
                f"stopped by {signal.Signals(stopping).name} after step {state.step} of "
                f"{config.train.steps}, with a checkpoint; rerun to resume",
                exit_code=128 + stopping,
            )


def _refuse_idle_processes(config: Config, ranks: Ranks) -> None:
    train = config.train
    if train.batch < ranks.world_size:
        raise UserError(
            f"train.batch_tokens={train.batch_tokens}: {train.batch} windows of {train.length} "
            f"tokens are too few for {ranks.world_size} processes; start {train.batch} or fewer"
        )


def _resume(state: TrainingState, ranks: Ranks, *, say: Say) -> None:
    """Continues from the newest checkpoint, if there is one: the steps after it are taken again."""
    ranks.agreed(partial(_load_newest, state, say=say))
    run_dir, run = state.config.run_dir, state.config.run_id
    if len(set(ranks.gather(state.step))) > 1:
        raise Refused(
            f"{run_dir}: processes see different checkpoints; set runtime.root to one folder that "
            "all of them see"
        )
    if ranks.is_main:
        rows = directory.read_log(run_dir, run=run)
        kept = [row for row in rows if row["train/step"] <= state.step]
        if len(kept) < len(rows):
            write_rows(run_dir / "train.jsonl", kept)


def _load_newest(state: TrainingState, *, say: Say) -> None:
    """Sets the state to that of the newest whole checkpoint, if there is one."""
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


def _to_resume(state: TrainingState) -> dict[str, Any]:
    """Returns what `_load_newest` reads besides the weights."""
    return {
        "unlogged": (float(state.nats), state.n_targets),
        "carried": state.model.carried(),  # of all processes
        "optimizers": [optimizer.state_dict() for optimizer in state.optimizers],
    }


def _save(state: TrainingState, ranks: Ranks, *, trainer: dict[str, Any] | None) -> None:
    """Writes a checkpoint, on the main process."""
    if ranks.is_main:
        run_dir, run, weights = state.config.run_dir, state.config.run_id, state.model.state_dict()
        checkpoints.save(run_dir, run=run, step=state.step, weights=weights, trainer=trainer)


def _announce(state: TrainingState, show: Progress) -> None:
    """Says what is trained and how, and begins to show how far it is."""
    config, train = state.config, state.config.train
    n, without = directory.n_parameters(dict(state.model.named_parameters())).values()
    show.say(
        f"training in {train.precision} on {state.device}: {n:,} parameters, {without:,} without "
        f"the embedding; {train.steps:,} steps"
    )
    if compiles_steps(state):
        show.say("compiling: the first steps take a minute; runtime.compile=false does without")
    elif config.runtime.compile:
        show.say("not compiled: runtime.compile=true is for plain decoders")
    total, done = train.steps * train.batch_tokens, state.step * train.batch_tokens
    show.start(f"train {config.scheme.name}", total, done=done)


class Rows:
    """The rows of train.jsonl, each on the steps since the one before."""

    def __init__(
        self, state: TrainingState, ranks: Ranks, log: Log, validate: Validate | None
    ) -> None:
        self.state, self.ranks, self.log, self.validate = state, ranks, log, validate
        provenance = directory.read_provenance(state.config.run_dir, run=state.config.run_id)
        self.training: str | None = provenance.get("training")
        self.step, self.began = state.step, time.perf_counter()

    def add(self) -> dict[str, float]:
        """Writes a row; returns what of it is shown on a terminal."""
        state, train = self.state, self.state.config.train
        n_tokens = (state.step - self.step) * train.batch_tokens
        rate = n_tokens / (time.perf_counter() - self.began)
        row: dict[str, Any] = {
            "run": state.config.run_id,
            "training": self.training,
            "train/step": state.step,
            "train/tokens": state.step * train.batch_tokens,
            "train/loss": float(state.nats) / state.n_targets,
            "train/lr": lr_at(state.step - 1, train),
            "train/scheme_lr_ratio": state.config.scheme_lr_ratio,
            "train/grad_norm": float(state.last[2]),
            "train/tokens_per_s": rate,
            "train/peak_mib": devices.peak_memory(state.device) / 2**20,
        }
        losses = self.validate(state.model) if self.validate and _is_due(state) else {}
        if self.ranks.is_main:
            append_rows(state.config.run_dir / "train.jsonl", [row | losses])
            self.log(row | losses)
        state.nats, state.n_targets = torch.zeros_like(state.nats), 0
        self.step, self.began = state.step, time.perf_counter()
        shown = {key.replace("/loss", ""): loss for key, loss in losses.items()}
        return {"loss": row["train/loss"], **shown, "tokens_per_s": rate}


def _is_due(state: TrainingState) -> bool:
    """True if a multiple of val_every lies behind the last row, or this is the last one."""
    log_every, every = state.config.runtime.log_every, state.config.train.validates_every
    before = (state.step - 1) // log_every * log_every
    return state.is_last or state.step // every > before // every
