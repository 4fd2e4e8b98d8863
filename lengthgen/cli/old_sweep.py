"""lengthgen sweep and tune: plan a grid, estimate its cost, run what is left, here or on Slurm."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from lengthgen import pipeline
from lengthgen.cli.arguments import ConfigDir, Overrides, Plugin
from lengthgen.cli.console import echo, print_table, warn_once
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.errors import UserError
from lengthgen.runs import devices
from lengthgen.runs.distributed import Ranks
from lengthgen.sweep import grid, local, tuning
from lengthgen.sweep.dashboard import Dashboard
from lengthgen.sweep.estimate import estimate, makespan
from lengthgen.sweep.grid import Point
from lengthgen.sweep.resources import Machine, slots
from lengthgen.sweep.slurm import Options, options, submit
from lengthgen.sweep.states import (
    BUSY,
    PointState,
    counted,
    matrix,
    pending,
    states_of,
    unsuccessful,
)
from lengthgen.terminal import Progress

Jobs = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Runs at a time; default: the GPUs or the cores."),
]
Gpus = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Processes of one run, by torchrun.")
]
PerGpu = Annotated[int, typer.Option(min=1, metavar="N", help="Small runs that share a GPU.")]
Slurm = Annotated[
    Any,
    typer.Option(
        parser=options,
        metavar="KEY=VALUE,...",
        help="Submit a job array: partition=..., gpus=..., nodes=..., time=..., parallel=...",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check every point, print what would be done, stop.")
]
ShowStatus = Annotated[
    bool, typer.Option("--status", help="Show the state of each point, and stop.")
]


@dataclass(frozen=True)
class Engine:
    """How the points of a grid are run: the options of the command."""

    jobs: int | None
    gpus: int | None
    per_gpu: int
    slurm: Options | None
    dry_run: bool = field(kw_only=True)
    status: bool = field(kw_only=True)

    def __post_init__(self) -> None:
        if self.slurm is not None and (self.jobs or self.gpus or self.per_gpu > 1):
            raise UserError("--slurm: jobs and GPUs are Slurm's; give --slurm gpus=N,parallel=N")
        if "RANK" in os.environ:
            raise UserError("sweep: it starts torchrun itself; drop torchrun and give --gpus N")

    @property
    def overrides(self) -> list[str]:
        """Overrides that stand before the user's own: the GPUs are those of Slurm's nodes."""
        return ["runtime.device=cuda"] if self.slurm is not None and self.slurm.gpus else []


def sweep(
    overrides: Overrides = None,
    jobs: Jobs = None,
    gpus: Gpus = None,
    per_gpu: PerGpu = 1,
    slurm: Slurm = None,
    dry_run: DryRun = False,
    status: ShowStatus = False,
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
) -> None:
    """Run every combination of a,b or range() or glob() values. Run again: it continues.

    All points are checked before the first starts. A point that fails stops no other; the exit
    code is 1 then.
    """
    engine = Engine(jobs, gpus, per_gpu, slurm, dry_run=dry_run, status=status)
    combined = [*engine.overrides, *(overrides or [])]
    points = grid.points(combined, config_dir=config_dir, plugins=plugin or [])
    states = _run(points, engine, name="sweep")
    if states is not None:
        _finish(points, states, gpus=gpus)


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
    status: ShowStatus = False,
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
) -> None:
    """Choose a rate per scheme: scheme=a,b train.lr=1e-3,2e-3,4e-3. Run again: it continues.

    Every combination is trained without 1 in 20 training documents and scored on those, at T alone.
    train and sweep take the rates of least loss: train.tuned=DIR/tuned.yaml.
    """
    engine = Engine(jobs, gpus, per_gpu, slurm, dry_run=dry_run, status=status)
    combined = [*engine.overrides, *(overrides or [])]
    points = tuning.points(combined, out=out, config_dir=config_dir, plugins=plugin or [])
    states = _run(points, engine, name="tune")
    if states is None:
        return
    if any(point.state not in ("done", "diverged") for point in states.values()):
        _finish(points, states, gpus=gpus)
    readable = tuning.readable(points, say=warn_once)
    written = tuning.write(readable, out)
    echo(written[0].read_text(encoding="utf-8").rstrip("\n"))
    for path in written:
        echo(path)
    if len(readable) < len(points):
        sys.exit(1)


def _run(points: Sequence[Point], engine: Engine, *, name: str) -> Mapping[str, PointState] | None:
    """Runs what is left of the points, and returns the states of all of them then.

    None if nothing was run here: in a dry run, or once jobs are submitted.
    """
    states = states_of(points)
    if engine.status:
        _finish(points, states, gpus=engine.gpus)
    todo = pending(points, states)
    warn_once(f"{name}: {len(points)} point{'s' * (len(points) > 1)}: {counted(states)}")
    busy = any(point.state in BUSY for point in states.values())
    if not todo and (not busy or engine.slurm is not None):
        return states
    if busy and engine.slurm is None:
        warn_once("points that run elsewhere are waited for, and taken over if they fail there")
    if engine.dry_run:
        for point in todo:
            echo(point.command)
    if engine.slurm is None:
        return _run_here(points, todo, engine)
    if not engine.dry_run:
        _prepare(todo)
        submit(todo, engine.slurm, root=points[0].config.runtime.root, say=warn_once)
    return None


def _run_here(
    points: Sequence[Point], todo: Sequence[Point], engine: Engine
) -> Mapping[str, PointState] | None:
    """Runs what is left on this machine, after an estimate of how long it will take."""
    for point in todo:
        devices.device_of(point.config.runtime, Ranks.from_env())  # refuses one that is not here
    machine = Machine.this()
    if all(point.config.runtime.device == "cpu" for point in points):
        machine = machine._replace(gpus=())
    gpus = engine.gpus
    free = slots(machine, jobs=engine.jobs, gpus=gpus, per_gpu=engine.per_gpu, n_points=len(todo))
    if not engine.dry_run:
        _prepare(todo)
    if todo:
        warn_once("measuring a step of each kind of point ...")
        seconds = estimate(todo, threads=free[0].threads, processes=gpus or 1)
        takes = "for an unknown time, since no step could be measured"
        if seconds is not None:
            takes = "about " + _duration(makespan([seconds[p.run_id] for p in todo], len(free)))
        warn_once(f"{len(todo)} to do, {len(free)} at a time: {takes}")
    if engine.dry_run:
        return None
    with Dashboard(points) as dashboard:
        return local.run(points, free, gpus=gpus, dashboard=dashboard)


def _prepare(points: Sequence[Point]) -> None:
    """Builds every corpus once, and checks what needs its tokens or plugins, before any run."""
    loaded: dict[str, TokenizedCorpus] = {}
    with Progress(is_main=True) as show:
        for point in points:
            try:
                pipeline.prepare(point.config, loaded, say=show.say)
            except UserError as error:
                where = f"{point.title}: " if point.varied else ""
                raise UserError(f"{where}{error}") from None


def _finish(
    points: Sequence[Point], states: Mapping[str, PointState], *, gpus: int | None
) -> NoReturn:
    """Prints the state of every point and how to repeat what failed; exits with 1 if any did."""
    print_table(*matrix(points, states), head_in_pipes=True)
    bad = unsuccessful(points, states)
    processes = "" if gpus is None else f" --gpus {gpus}"
    for point in bad:
        warn_once(f"to repeat {point.title} alone: {point.command}{processes}")
    sys.exit(1 if bad else 0)


def _duration(seconds: float) -> str:
    """Returns seconds in words as coarse as an estimate."""
    if seconds < 90:
        return f"{max(1, round(seconds))} seconds"
    if seconds < 5400:
        return f"{round(seconds / 60)} minutes"
    return f"{seconds / 3600:.1f} hours"
