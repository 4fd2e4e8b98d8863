"""lengthgen sweep: plan a grid, say what it costs, run what is left, here or on Slurm."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from lengthgen.cli.printing import print_rows, say_once
from lengthgen.cli.words import ConfigDir, Overrides, Plugin, positive
from lengthgen.errors import UserError

if TYPE_CHECKING:
    from lengthgen.sweep.points import Point
    from lengthgen.sweep.slurm_options import Options
    from lengthgen.sweep.states import PointState

Jobs = Annotated[
    str | None,
    typer.Option("--jobs", metavar="N", help="Runs at a time; default: the GPUs or the cores."),
]
Gpus = Annotated[
    str | None, typer.Option("--gpus", metavar="N", help="Processes of one run, by torchrun.")
]
PerGpu = Annotated[str, typer.Option("--per-gpu", metavar="N", help="Small runs that share a GPU.")]
Slurm = Annotated[
    str | None,
    typer.Option(
        "--slurm",
        metavar="KEY=VALUE,...",
        help="Submit a job array: partition=..., gpus=..., nodes=..., time=..., parallel=...",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check every point, say what would be done, stop.")
]
ShowStatus = Annotated[bool, typer.Option("--status", help="Show how each point stands, and stop.")]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How the points of a grid are run: the options of the command, checked."""

    jobs: int | None
    gpus: int | None
    per_gpu: int
    slurm: "Options | None"
    dry_run: bool
    status: bool

    @property
    def overrides(self) -> list[str]:
        """What points are given before the user's words: the GPUs are those of Slurm's nodes."""
        return ["runtime.device=cuda"] if self.slurm is not None and self.slurm.gpus else []


def sweep(
    overrides: Overrides = None,
    jobs: Jobs = None,
    gpus: Gpus = None,
    per_gpu: PerGpu = "1",
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
    engine = engine_of(jobs, gpus, per_gpu, slurm, dry_run=dry_run, status=status)
    from lengthgen.sweep.points import points as points_of

    words = [*engine.overrides, *(overrides or [])]
    points = points_of(words, config_dir=config_dir, plugins=plugin or [])
    states = run(points, engine, name="sweep")
    if states is not None:
        finish(points, states, gpus=engine.gpus)


def engine_of(
    jobs: str | None,
    gpus: str | None,
    per_gpu: str,
    slurm: str | None,
    *,
    dry_run: bool,
    status: bool,
) -> Engine:
    """Checks the options of a command that runs a grid."""
    n_jobs = None if jobs is None else positive(jobs, "--jobs", "a number of runs, like --jobs 2")
    n_gpus = None if gpus is None else positive(gpus, "--gpus", "a number of processes")
    n_per_gpu = positive(per_gpu, "--per-gpu", "a number of runs, like --per-gpu 2")
    if slurm is not None and (jobs or gpus or n_per_gpu > 1):
        raise UserError("--slurm: jobs and GPUs are Slurm's; give --slurm gpus=N,parallel=N")
    if "RANK" in os.environ:
        raise UserError("sweep: it starts torchrun itself; drop torchrun and give --gpus N")
    from lengthgen.sweep import slurm_options

    return Engine(
        jobs=n_jobs,
        gpus=n_gpus,
        per_gpu=n_per_gpu,
        slurm=None if slurm is None else slurm_options.options(slurm),
        dry_run=dry_run,
        status=status,
    )


def run(
    points: Sequence["Point"], engine: Engine, *, name: str
) -> Mapping[str, "PointState"] | None:
    """Runs what is left of the points, and returns how all of them stand then.

    None if nothing was run here: in a dry run, or once jobs are submitted.
    """
    from lengthgen.sweep import slurm, slurm_jobs
    from lengthgen.sweep.states import BUSY, counted, left

    states = slurm_jobs.states(points)
    if engine.status:
        finish(points, states, gpus=engine.gpus)
    todo = left(points, states)
    say_once(f"{name}: {len(points)} point{'s' * (len(points) > 1)}: {counted(states)}")
    busy = any(one.state in BUSY for one in states.values())
    if not todo and (not busy or engine.slurm is not None):
        return states
    if busy and engine.slurm is None:
        say_once("points that others work on are waited for, and taken over if they fail there")
    if engine.dry_run:
        for point in todo:
            print(point.command)
    if engine.slurm is None:
        return _run_here(points, todo, engine)
    if not engine.dry_run:
        _prepare(todo)
        slurm.submit(todo, engine.slurm, root=points[0].config.runtime.root, say=say_once)
    return None


def _run_here(
    points: Sequence["Point"], todo: Sequence["Point"], engine: Engine
) -> Mapping[str, "PointState"] | None:
    """Runs what is left on this machine, after saying how long it will take."""
    from lengthgen.runs import devices
    from lengthgen.runs.distributed import Ranks
    from lengthgen.sweep import local
    from lengthgen.sweep.board import Board
    from lengthgen.sweep.estimate import estimate, makespan
    from lengthgen.sweep.slots import Machine, slots

    for point in todo:
        devices.device_of(point.config.runtime, Ranks.from_env())  # refuses one that is not here
    machine = Machine.this()
    if all(point.config.runtime.device == "cpu" for point in points):
        machine = machine._replace(gpus=())
    gpus = engine.gpus
    places = slots(machine, jobs=engine.jobs, gpus=gpus, per_gpu=engine.per_gpu, n_points=len(todo))
    if not engine.dry_run:
        _prepare(todo)
    if todo:
        say_once("measuring a step of each kind of point ...")
        seconds = estimate(todo, threads=places[0].threads, processes=gpus or 1)
        takes = "for an unknown time, since no step could be measured"
        if seconds is not None:
            total = makespan([seconds[point.run_id] for point in todo], len(places))
            takes = f"about {_duration(total)}"
        say_once(f"{len(todo)} to do, {len(places)} at a time: {takes}")
    if engine.dry_run:
        return None
    with Board(points) as board:
        return local.run(points, places, gpus=gpus, board=board)


def _prepare(points: Sequence["Point"]) -> None:
    """Builds every corpus once, and checks what needs its tokens or plugins, before any run."""
    from lengthgen.data import corpora
    from lengthgen.evaluation import plan
    from lengthgen.model.plugin_check import check_plugins
    from lengthgen.terminal import Progress

    with Progress(is_main=True) as show:
        loaded: dict[str, corpora.TokenizedCorpus] = {}
        for point in points:
            config, key = point.config, point.config.corpus.model_dump_json()
            try:
                if key not in loaded:
                    cache_dir = config.runtime.cache_dir
                    loaded[key] = corpora.load(config.corpus, cache_dir=cache_dir, say=show.say)
                plan.plan(config, loaded[key])
                check_plugins(config)
            except UserError as error:
                where = f"{point.title}: " if point.varied else ""
                raise UserError(f"{where}{error}") from None


def finish(
    points: Sequence["Point"], states: Mapping[str, "PointState"], *, gpus: int | None
) -> NoReturn:
    """Prints how every point stands and how to repeat what went wrong; exits with 1 if any did."""
    from lengthgen.cli.listing import Listing
    from lengthgen.sweep.states import matrix, unsuccessful

    print_rows(Listing(*matrix(points, states)), head_in_pipes=True)
    bad = unsuccessful(points, states)
    processes = "" if gpus is None else f" --gpus {gpus}"
    for point in bad:
        say_once(f"to repeat {point.title} alone: {point.command}{processes}")
    sys.exit(1 if bad else 0)


def _duration(seconds: float) -> str:
    """Returns seconds as words that are as vague as an estimate is."""
    if seconds < 90:
        return f"{max(1, round(seconds))} seconds"
    if seconds < 5400:
        return f"{round(seconds / 60)} minutes"
    return f"{seconds / 3600:.1f} hours"
