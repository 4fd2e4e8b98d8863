"""lengthgen tune."""

from pathlib import Path
from typing import Annotated

import typer

from lengthgen.cli.arguments import ConfigDir, Overrides, Plugin
from lengthgen.cli.sweep import DryRun, Gpus, Jobs, PerGpu, Slurm


def tune(
    overrides: Overrides = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder to write: tables, tuned.yaml, runs.")
    ] = Path("tune"),
    jobs: Jobs = None,
    gpus: Gpus = None,
    per_gpu: PerGpu = 1,
    slurm: Slurm = None,
    dry_run: DryRun = False,
    status: Annotated[bool, typer.Option("--status")] = False,
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
) -> None:
    """Choose a rate per scheme: scheme=a,b train.lr=1e-3,2e-3,4e-3. Run again: it continues.

    Every combination is trained without 1 in 20 training documents and scored on those, at T alone.
    train and sweep take the rates of least loss: train.tuned=DIR/tuned.yaml.
    """
    from lengthgen.cli import old_sweep

    given = old_sweep.options(slurm) if slurm is not None else None
    old_sweep.tune(overrides, out, jobs, gpus, per_gpu, given, dry_run, status, config_dir, plugin)
