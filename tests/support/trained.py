"""What runs leave behind, and the processes that they are."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from lengthgen.config.schema import Config, from_plain, to_plain
from lengthgen.data.windows import TrainingWindows
from lengthgen.files import read_rows
from lengthgen.model.transformer import Transformer
from lengthgen.runs import checkpoints
from lengthgen.runs.distributed import ALONE
from lengthgen.terminal import Progress
from lengthgen.training.step import State, batch_of, check_finite, launch_step, loss_of

QUIET = Progress(is_main=False)
CLOCKED = ("train/tokens_per_s", "train/peak_mib", "seconds")  # what no two runs have in common


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


def take_steps(state: State, windows: TrainingWindows, *, n: int = 1) -> list[float]:
    """Takes optimizer steps in this process, and returns the nats of each."""
    loss, nats = loss_of(state, ranks=ALONE), list[float]()
    for _ in range(n):
        batch = batch_of(state, windows, ranks=ALONE)
        nats.append(float(launch_step(state, batch, ranks=ALONE, loss=loss)))
        check_finite(state, ALONE)
    return nats


def with_eval(config: Config, **changed: Any) -> Config:
    """Returns the configuration with other values of eval.*."""
    plain = to_plain(config)
    plain["eval"].update(changed)
    return from_plain(plain)


def save_model(run_dir: Path, model: Transformer, config: Config, *, step: int) -> None:
    """Writes a checkpoint of a model, and DONE again if it was there, as training does."""
    trainer = {"unlogged": (0.0, 0), "carried": (), "optimizers": []}
    weights = model.state_dict()
    checkpoints.save(run_dir, run=config.run_id, step=step, weights=weights, trainer=trainer)
    if (run_dir / "DONE").exists():
        checkpoints.mark_trained(run_dir, run=config.run_id)
