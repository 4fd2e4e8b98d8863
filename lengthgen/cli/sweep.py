"""lengthgen sweep."""

from typing import Annotated

import typer

from lengthgen.cli.arguments import ConfigDir, Overrides, Plugin

Jobs = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Runs at a time; default: the GPUs or the cores."),
]
Gpus = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Processes of one run, by torchrun.")
]
PerGpu = Annotated[int, typer.Option(min=1, metavar="N", help="Small runs that share a GPU.")]
Slurm = Annotated[
    str | None,
    typer.Option(
        metavar="KEY=VALUE,...",
        help="Submit a job array: partition=..., gpus=..., time=..., parallel=...",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check every point, print what would be done, stop.")
]


def sweep(
    overrides: Overrides = None,
    jobs: Jobs = None,
    gpus: Gpus = None,
    per_gpu: PerGpu = 1,
    slurm: Slurm = None,
    dry_run: DryRun = False,
    status: Annotated[bool, typer.Option("--status")] = False,
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
) -> None:
    """Run every combination of a,b or range() or glob() values. Run again: it continues.

    All points are checked before the first starts. A point that fails stops no other; the exit
    code is 1 then.
    """
    from lengthgen.cli import old_sweep

    given = old_sweep.options(slurm) if slurm is not None else None
    old_sweep.sweep(overrides, jobs, gpus, per_gpu, given, dry_run, status, config_dir, plugin)
