"""lengthgen train: in this process, or in several under torchrun."""

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from lengthgen.cli.arguments import ConfigDir, Overrides, Plugin
from lengthgen.cli.console import echo, warn, warn_once
from lengthgen.errors import UserError

if TYPE_CHECKING:
    from lengthgen.config.schema import Runtime


def train(
    overrides: Overrides = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Start N processes with torchrun.")
    ] = None,
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
) -> None:
    """Train a scheme, then evaluate its curve. Run again: it resumes, or is done at once."""
    if gpus is not None and "RANK" in os.environ:
        raise UserError("--gpus: torchrun has started this process already; drop --gpus")
    from lengthgen.config import schema

    config = schema.from_overrides(overrides or [], config_dir=config_dir, plugins=plugin or [])
    from lengthgen import pipeline
    from lengthgen.runs import devices, distributed, status
    from lengthgen.sweep.grid import train_arguments
    from lengthgen.terminal import Progress, from_here

    config = pipeline.validate(config)
    if gpus is not None:
        _refuse_missing(gpus, config.runtime)
        with Progress(is_main=True) as show:
            pipeline.prepare(config, {}, say=show.say)
        # torchrun would set it to 1 with a banner.
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, devices.cores() // gpus)))
        sys.stdout.flush()
        words = train_arguments(overrides or [], config_dir=config_dir, plugins=plugin or [])
        failed = distributed.launch(gpus, words)
        if failed is None:
            return
        if failed.rank:  # rank 0 has written how it ended
            failure = status.Status("failed", reason=failed.reason)
            status.write(config.run_dir, failure, run=config.run_id)
        warn(f"error: {failed.reason}")
        sys.exit(failed.exit_code)
    run_dir = pipeline.train(config)
    if distributed.Ranks.from_env().is_main:
        from lengthgen.report import report  # not before: it takes a second, and the run begins

        echo(report.terminal([run_dir]))
        echo(f"run: {from_here(run_dir)}")


def _refuse_missing(gpus: int, runtime: "Runtime") -> None:
    """Raises UserError if this machine has fewer GPUs than are requested; says if it has none."""
    import torch

    from lengthgen.runs import devices
    from lengthgen.runs.distributed import ALONE

    device, there = devices.device_of(runtime, ALONE).type, torch.cuda.device_count()
    if device == "cuda" and gpus > there:
        raise UserError(
            f"--gpus: {gpus} requested, {there} in this machine; give --gpus {there}, or "
            "runtime.device=cpu for processes on the CPU"
        )
    if runtime.device == "auto" and device == "cpu":
        warn_once(f"--gpus: there is no GPU in this machine; {gpus} processes on the CPU")
