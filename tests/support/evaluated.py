"""Runs that a test evaluates with other settings, or gives other weights."""

from pathlib import Path
from typing import Any

from lengthgen.config.schema import Config, from_plain, to_plain
from lengthgen.model.transformer import Transformer
from lengthgen.runs import checkpoints, status
from lengthgen.runs.distributed import Ranks
from lengthgen.terminal import Progress

ALONE = Ranks(rank=0, world_size=1, local_rank=0)
QUIET = Progress(is_main=False)


def with_eval(config: Config, **changed: Any) -> Config:
    """Returns the configuration with other values of eval.*."""
    plain = to_plain(config)
    plain["eval"].update(changed)
    return from_plain(plain)


def save_model(run_dir: Path, model: Transformer, config: Config, *, step: int) -> None:
    """Writes a checkpoint of a model, and DONE again if it was there, as training does."""
    trainer = {"unlogged": (0.0, 0), "carried": (), "optimizer": {}}
    weights = model.state_dict()
    checkpoints.save(run_dir, run=config.run_id, step=step, weights=weights, trainer=trainer)
    if status.is_trained(run_dir):
        sha256 = checkpoints.weights_sha256(run_dir, step=step)
        status.mark_trained(run_dir, run=config.run_id, weights=sha256)
