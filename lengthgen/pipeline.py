"""One process of a run, whoever started it: a user, torchrun, the local sweep or Slurm."""

from pathlib import Path

from lengthgen.config.schema import Config
from lengthgen.runs import devices
from lengthgen.runs.distributed import Ranks
from lengthgen.terminal import Progress
from lengthgen.tracking import results
from lengthgen.training import trainer as training


def train(config: Config) -> Path:
    """Trains and evaluates as the rank that the environment names; returns the run directory.

    Raises UserError for what the user can mend, and Stopped if a signal asked for the end.
    """
    ranks = Ranks.from_env()
    device = devices.device_of(config.runtime, ranks)
    with ranks.connected(device.type), Progress(is_main=ranks.is_main) as show:
        return training.train(config, ranks=ranks, show=show, results=results.results)
