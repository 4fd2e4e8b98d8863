"""lengthgen tune."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from lengthgen.cli.arguments import ConfigDir, Gpus, Overrides, PluginFiles
from lengthgen.cli.console import echo, warn_once
from lengthgen.cli.sweep import DryRun, Jobs, Slurm, print_states, run_all, slurm_overrides


def tune(
    overrides: Overrides = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder to write: tables, tuned.yaml, runs.")
    ] = Path("tune"),
    jobs: Jobs = None,
    gpus: Gpus = None,
    slurm: Slurm = None,
    dry_run: DryRun = False,
    config_dir: ConfigDir = None,
    plugin: PluginFiles = None,
) -> None:
    """Choose a rate per scheme: scheme=a,b train.lr=5e-3,1e-2,2e-2. Run again: it continues.

    Every combination is trained without 1 in 20 training documents and scored on those, at T alone.
    train and sweep take the rates of least loss: train.tuned=DIR/tuned.yaml.
    """
    from lengthgen.sweep import tuning

    combined = [*slurm_overrides(slurm), *(overrides or [])]
    points = tuning.tuning_points(
        combined, out=out, config_dir=config_dir, plugins=plugin or [], say=warn_once
    )
    states = run_all(points, jobs=jobs, gpus=gpus, slurm=slurm, dry_run=dry_run)
    if dry_run or any(point.state not in ("done", "diverged") for point in states.values()):
        more = print_states(points, states, submitted=slurm is not None)
        sys.exit(more and not dry_run)
    written = tuning.write_rates(points, out)
    echo(written[0].read_text(encoding="utf-8").rstrip("\n"))
    for path in written:
        echo(path)
