"""One process of a run, whoever started it: a user, torchrun, the local sweep or Slurm."""

from pathlib import Path

from lengthgen import devices, sharing
from lengthgen import train as training
from lengthgen.config import Config
from lengthgen.progress import Progress
from lengthgen.ranks import Ranks


def train(config: Config) -> Path:
    """Trains and evaluates as the rank that the environment names; returns the run directory.

    Raises UserError for what the user can mend, and Stopped if a signal asked for the end.
    """
    ranks = Ranks.from_env()
    device = devices.device_of(config.runtime, ranks)
    with ranks.connected(device.type), Progress(is_main=ranks.is_main) as show:
        return training.train(config, ranks=ranks, show=show, results=sharing.results)
