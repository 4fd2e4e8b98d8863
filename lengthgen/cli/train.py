"""lengthgen train: in this process, or in several under torchrun."""

import os
import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer
import yaml

from lengthgen.cli.arguments import ConfigDir, Overrides, Plugin
from lengthgen.cli.console import echo, warn
from lengthgen.errors import UserError

if TYPE_CHECKING:
    from lengthgen.config.schema import Config


def train(
    overrides: Overrides = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Start N processes with torchrun.")
    ] = None,
    cfg: Annotated[
        str | None, typer.Option(metavar="job", help="Print the configuration and stop.")
    ] = None,
    multirun: Annotated[bool, typer.Option("--multirun", "-m", hidden=True)] = False,
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
) -> None:
    """Train a scheme, then evaluate its curve. Run again: it resumes, or is done at once."""
    if multirun:
        line = shlex.join(["lengthgen", "sweep", *(overrides or [])])
        raise UserError(f"-m: one run takes one value of each key; for several, give {line}")
    if gpus is not None and "RANK" in os.environ:
        raise UserError("--gpus: torchrun has started this process already; drop --gpus")
    from lengthgen.config import schema

    config = schema.from_overrides(overrides or [], config_dir=config_dir, plugins=plugin or [])
    from lengthgen import pipeline

    config = pipeline.validate(config)
    if cfg is not None:
        echo(yaml.safe_dump(schema.to_plain(config), sort_keys=False).rstrip())
        return
    from lengthgen.runs import distributed
    from lengthgen.terminal import from_here

    if gpus is not None:
        from lengthgen.sweep.grid import train_arguments

        words = train_arguments(overrides or [], config_dir=config_dir, plugins=plugin or [])
        return _start_processes(gpus, config, words)
    run_dir = pipeline.train(config)
    if distributed.Ranks.from_env().is_main:
        from lengthgen.report import report  # not before: it takes a second, and the run begins

        echo(report.terminal([run_dir]))
        echo(f"run: {from_here(run_dir)}")


def _start_processes(gpus: int, config: "Config", words: list[str]) -> None:
    """Runs `lengthgen WORDS` in processes of torchrun; exits as they do if one of them fails."""
    import torch

    from lengthgen import pipeline
    from lengthgen.runs import devices, distributed, status
    from lengthgen.terminal import Progress

    there = torch.cuda.device_count()
    if gpus > there and devices.device_of(config.runtime, distributed.ALONE).type == "cuda":
        raise UserError(
            f"--gpus: {gpus} requested, {there} in this machine; give --gpus {there}, or "
            "runtime.device=cpu for processes on the CPU"
        )
    with Progress(is_main=True) as show:
        pipeline.prepare(config, {}, say=show.say)
    # torchrun would set it to 1 with a banner.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, devices.cores() // gpus)))
    sys.stdout.flush()
    failed = distributed.launch(gpus, words)
    if failed is None:
        return
    if failed.rank:  # rank 0 has written how it ended
        failure = status.Status("failed", reason=failed.reason)
        status.write(config.run_dir, failure, run=config.run_id)
    warn(f"error: {failed.reason}")
    sys.exit(failed.exit_code)
