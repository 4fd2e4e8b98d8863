"""What runs leave behind, and the processes that they are."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from small import experiment_of
from torch import Tensor

from lengthgen import pipeline
from lengthgen.config.drafts import from_stored
from lengthgen.config.schema import Config, to_plain
from lengthgen.data.windows import TrainingWindows
from lengthgen.evaluation.evaluator import Kept
from lengthgen.evaluation.protocols import Evaluation, TimeLimit
from lengthgen.files import read_rows
from lengthgen.model.transformer import Transformer
from lengthgen.runs import checkpoints
from lengthgen.runs.distributed import ALONE, Ranks
from lengthgen.terminal import Progress
from lengthgen.training.step import (
    TrainingState,
    batch_of,
    check_finite,
    fresh_state,
    launch_step,
    loss_function,
)

QUIET = Progress(is_main=False)
# What no two runs have in common:
CLOCKED = ("train/tokens_per_s", "train/peak_mib", "seconds", "training")


def rows_of(log: Path) -> list[dict[str, Any]]:
    """Returns the rows of a log without what differs between two runs of one command."""
    return [{k: v for k, v in row.items() if k not in CLOCKED} for row in read_rows(log)]


def newest_checkpoint(run_dir: Path) -> Path:
    return max(run_dir.glob("checkpoints/step-*"))


def weights_of(run_dir: Path) -> dict[str, Tensor]:
    """Returns the weights of the newest checkpoint."""
    return load_file(newest_checkpoint(run_dir) / "model.safetensors")


def assert_same_bits(one: Path, other: Path) -> None:
    """Asserts that two runs have the same weights, and the same rows of training."""
    assert newest_checkpoint(one).name == newest_checkpoint(other).name
    assert rows_of(one / "train.jsonl") == rows_of(other / "train.jsonl")
    torch.testing.assert_close(weights_of(one), weights_of(other), rtol=0, atol=0)


def is_alive(pid: int) -> bool:
    """True if a process is there and no zombie."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def take_steps(state: TrainingState, windows: TrainingWindows, *, n: int = 1) -> list[float]:
    """Takes optimizer steps in this process, and returns the nats of each."""
    loss, nats = loss_function(state, ranks=ALONE), list[float]()
    for _ in range(n):
        batch = batch_of(state, windows, ranks=ALONE)
        nats.append(float(launch_step(state, batch, ranks=ALONE, loss=loss)))
        check_finite(state, ALONE)
    return nats


def with_eval(config: Config, **changed: Any) -> Config:
    """Returns the configuration with other values of eval.*."""
    plain = to_plain(config)
    plain["eval"].update(changed)
    return from_stored(plain)


def train(config: Config) -> Path:
    """Trains and evaluates as `lengthgen train` does."""
    pipeline.train(experiment_of(config))
    return config.run_dir


def train_and_evaluate(config: Config, *, ranks: Ranks = ALONE, show: Progress = QUIET) -> Path:
    pipeline.train_and_evaluate(experiment_of(config), ranks=ranks, show=show)
    return config.run_dir


def evaluate(
    config: Config,
    run_dir: Path,
    *,
    ranks: Ranks = ALONE,
    show: Progress = QUIET,
    kept: Kept = (),
    limit: TimeLimit | None = None,
) -> list[dict[str, Any]]:
    return pipeline.evaluate(
        experiment_of(config), run_dir, ranks=ranks, show=show, kept=kept, limit=limit
    )


def state_of(config: Config, *, vocab_size: int, device: torch.device) -> TrainingState:
    """Returns the state of a model before its first step."""
    experiment = experiment_of(config)
    model = experiment.create(vocab_size=vocab_size)
    return fresh_state(experiment.config, experiment.objective, model, device=device)


def open_run(
    config: Config, run_dir: Path, *, ranks: Ranks = ALONE, show: Progress = QUIET
) -> Evaluation:
    return experiment_of(config).opened(run_dir, say=show.say).trained(ranks=ranks, show=show)


def save_model(run_dir: Path, model: Transformer, config: Config, *, step: int) -> None:
    """Writes a checkpoint of a model, and DONE again if it was there, as training does."""
    trainer = {"unlogged": (0.0, 0), "carried": (), "optimizers": []}
    weights = model.state_dict()
    checkpoints.save(run_dir, run=config.run_id, step=step, weights=weights, trainer=trainer)
    if (run_dir / "DONE").exists():
        checkpoints.mark_trained(run_dir, run=config.run_id)
