"""lengthgen sweep: plan a grid, then run what is left of it, here or on Slurm."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from lengthgen.cli.arguments import ConfigDir, Overrides, Plugin
from lengthgen.cli.console import print_table, warn, warn_once
from lengthgen.errors import UserError

if TYPE_CHECKING:
    from lengthgen.sweep.grid import Point
    from lengthgen.sweep.states import PointState

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
        help="Submit a job array: time=..., partition=..., gpus=..., parallel=...",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check and list every point, measure a step, and stop.")
]


def sweep(
    overrides: Overrides = None,
    jobs: Jobs = None,
    gpus: Gpus = None,
    per_gpu: PerGpu = 1,
    slurm: Slurm = None,
    dry_run: DryRun = False,
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
) -> None:
    """Run every combination of a,b or range() or glob() values. Run again: it continues.

    All points are checked before the first starts. A point that fails stops no other; the exit
    code is 1 then.
    """
    from lengthgen.sweep import grid

    combined = [*slurm_overrides(slurm), *(overrides or [])]
    points = grid.points(combined, config_dir=config_dir, plugins=plugin or [])
    states = run(points, jobs=jobs, gpus=gpus, per_gpu=per_gpu, slurm=slurm, dry_run=dry_run)
    finish(points, states, dry_run=dry_run)


def slurm_overrides(slurm: str | None) -> list[str]:
    """Returns overrides that stand before the user's own: the GPUs are those of Slurm's nodes."""
    if slurm is None:
        return []
    from lengthgen.sweep.slurm import options

    return ["runtime.device=cuda"] if options(slurm).gpus else []


def run(
    points: Sequence["Point"],
    *,
    jobs: int | None,
    gpus: int | None,
    per_gpu: int,
    slurm: str | None,
    dry_run: bool,
) -> Mapping[str, "PointState"]:
    """Runs or submits what is left of the points, and returns the states of all of them then."""
    from lengthgen.runs import devices
    from lengthgen.sweep import local, states
    from lengthgen.sweep.slurm import options, submit

    if slurm is not None and (jobs or gpus or per_gpu > 1):
        raise UserError("--slurm: jobs and GPUs are Slurm's; give --slurm gpus=N,parallel=N")
    if "RANK" in os.environ:
        raise UserError("sweep: it starts torchrun itself; drop torchrun and give --gpus N")
    before = states.states_of(points)
    todo = states.pending(points, before)
    warn_once(f"{len(points)} point{'s' * (len(points) > 1)}: {states.counted(before)}")
    if slurm is not None:
        if todo and not dry_run:
            _prepare(todo)
            submit(todo, options(slurm), root=points[0].config.runtime.root, say=warn_once)
            return states.states_of(points)
    elif todo or any(state.state in states.BUSY for state in before.values()):
        slots = local.slots(
            devices.cores(),
            local.gpus_for(todo or points),
            jobs=jobs,
            gpus=gpus,
            per_gpu=per_gpu,
            n_points=len(todo or points),
        )
        _prepare(todo)
        if not dry_run:
            return local.run(points, slots, gpus=gpus, say=warn)
        seconds = local.seconds_per_step(todo[0], slots[0]) if todo else None
        if seconds is not None:
            steps, n = todo[0].config.train.steps, min(len(slots), len(todo))
            rate = f"{todo[0].title}: {seconds:.3g} s a step, {steps:,} steps"
            warn_once(f"{rate}; {len(todo)} points to do, {n} at a time")
    return before


def _prepare(points: Sequence["Point"]) -> None:
    """Builds every corpus once, and checks what needs its tokens or plugins, before any run."""
    from lengthgen import pipeline
    from lengthgen.data.corpora import TokenizedCorpus
    from lengthgen.runs import devices
    from lengthgen.runs.distributed import ALONE
    from lengthgen.terminal import Progress

    loaded: dict[str, TokenizedCorpus] = {}
    with Progress(is_main=True) as show:
        for point in points:
            try:
                devices.device_of(point.config.runtime, ALONE)  # refuses one that is not here
                pipeline.prepare(point.config, loaded, say=show.say)
            except UserError as error:
                where = f"{point.title}: " if point.varied else ""
                raise UserError(f"{where}{error}") from None


def finish(
    points: Sequence["Point"], states: Mapping[str, "PointState"], *, dry_run: bool
) -> NoReturn:
    """Prints the state of every point and how to repeat what failed; exits with 1 if any did.

    A dry run ran nothing that could fail: it exits with 0.
    """
    from lengthgen.sweep.states import rows, unsuccessful

    print_table(*rows(points, states), head_in_pipes=True)
    bad = unsuccessful(points, states)
    for point in bad:
        warn_once(f"to repeat {point.title} alone: {point.command}")
    sys.exit(1 if bad and not dry_run else 0)
