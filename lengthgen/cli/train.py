"""lengthgen train: in this process, or in several under torchrun."""

import os
import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer
import yaml

from lengthgen.cli.arguments import (
    ConfigDir,
    Gpus,
    Limit,
    Overrides,
    PluginFiles,
    complete_runs,
    limited,
    refuse_limit,
)
from lengthgen.cli.console import echo, warn, warn_once
from lengthgen.errors import UserError

MORE = "train.init_from=RUN begins with the weights of a run, without its optimizer"

if TYPE_CHECKING:
    from lengthgen.config.schema import Config


def train(
    overrides: Overrides = None,
    gpus: Gpus = None,
    cfg: Annotated[
        Literal["job"] | None, typer.Option(help="Print the configuration and stop.")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="Start from the configuration of RUN.",
            autocompletion=complete_runs,
        ),
    ] = None,
    limit: Limit = None,
    submitted: Annotated[str | None, typer.Option(metavar="RUN_ID", hidden=True)] = None,
    config_dir: ConfigDir = None,
    plugin: PluginFiles = None,
) -> None:
    """Train a scheme, then evaluate its curve. Run again: it resumes, or is done at once."""
    if gpus and "RANK" in os.environ:
        raise UserError("--gpus: torchrun has started this process already; drop --gpus")
    from lengthgen.config.schema import to_plain
    from lengthgen.experiment import changed, resolve
    from lengthgen.runs.directory import load_config

    overrides = [*(overrides or []), *limited(limit)]
    files, options = plugin or [], list[str]()
    if base is None:
        experiment = resolve(overrides, config_dir=config_dir, plugins=files)
    else:
        run_dir, experiment = changed(base, overrides, config_dir=config_dir, plugins=files)
        options = ["--from", str(run_dir)]
        if load_config(run_dir).train.tokens not in (0, experiment.config.train.tokens):
            warn_once(f"another budget, whose schedule is another: it begins at step 0; {MORE}")
    config = experiment.config
    refuse_limit(limit, [config])
    if cfg is not None:
        echo(yaml.safe_dump(to_plain(config), sort_keys=False).rstrip())
        return
    from lengthgen import pipeline
    from lengthgen.runs import distributed, status
    from lengthgen.terminal import from_here

    if submitted not in (None, config.run_id):  # by a sweep, before this process began
        why = (
            f"{submitted}: the configuration or a plugin has changed since this run was submitted, "
            f"and is that of {config.run_id} now; restore it, or rerun the sweep"
        )
        failed = status.Status("failed", reason=why)
        status.write_status(config.runtime.root / submitted, failed, run=submitted)
        raise UserError(why)
    if gpus is not None:
        from lengthgen.runs import devices
        from lengthgen.sweep.grid import train_arguments

        last = distributed.Ranks(rank=gpus - 1, world_size=gpus, local_rank=gpus - 1)
        devices.device_of(config.runtime, last)  # refuses more processes than GPUs
        experiment.opened(say=warn)
        words = train_arguments(overrides, config_dir=config_dir, plugins=files)
        return _start_processes(gpus, config, words + options)
    measured = pipeline.train(experiment)
    if distributed.Ranks.from_env().is_main:
        from lengthgen.report import report  # not before: it takes a second, and the run begins

        echo(report.terminal([config.run_dir], measured))
        echo(f"run: {from_here(config.run_dir)}")


def _start_processes(gpus: int, config: "Config", words: list[str]) -> None:
    """Runs `lengthgen WORDS` in processes of torchrun; exits as they do if one of them fails."""
    from lengthgen.runs import devices, distributed, status

    # torchrun would set it to 1 with a banner.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, devices.cores() // gpus)))
    sys.stdout.flush()
    failed = distributed.launch(gpus, words)
    if failed is None:
        return
    if failed.reason:
        warn(f"error: {failed.reason}")
        if failed.rank:  # rank 0 has written how it ended
            failure = status.Status("failed", reason=failed.reason)
            status.write_status(config.run_dir, failure, run=config.run_id)
    sys.exit(failed.exit_code)
