"""lengthgen sweep: plan a grid, say what it costs, run what is left, here or on Slurm."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from lengthgen.cli.printing import print_rows, say_once
from lengthgen.cli.words import ConfigDir, Overrides, Plugin, positive
from lengthgen.errors import UserError

if TYPE_CHECKING:
    from lengthgen.sweep.points import Point
    from lengthgen.sweep.states import PointState


def sweep(
    overrides: Overrides = None,
    jobs: Annotated[
        str | None,
        typer.Option("--jobs", metavar="N", help="Runs at a time; default: the GPUs or the cores."),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", metavar="N", help="Processes of one run, by torchrun.")
    ] = None,
    per_gpu: Annotated[
        str, typer.Option("--per-gpu", metavar="N", help="Small runs that share a GPU.")
    ] = "1",
    slurm: Annotated[
        str | None,
        typer.Option(
            "--slurm",
            metavar="KEY=VALUE,...",
            help="Submit a job array: partition=..., gpus=..., nodes=..., time=..., parallel=...",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check every point, say what would be done, stop.")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Show how each point stands, and stop.")
    ] = False,
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
) -> None:
    """Run every combination of a,b or range() or glob() values. Run again: it continues.

    All points are checked before the first starts. A point that fails stops no other; the exit
    code is 1 then.
    """
    n_jobs = None if jobs is None else positive(jobs, "--jobs", "a number of runs, like --jobs 2")
    n_gpus = None if gpus is None else positive(gpus, "--gpus", "a number of processes")
    n_per_gpu = positive(per_gpu, "--per-gpu", "a number of runs, like --per-gpu 2")
    if slurm is not None and (jobs or gpus or n_per_gpu > 1):
        raise UserError("--slurm: jobs and GPUs are Slurm's; give --slurm gpus=N,parallel=N")
    if "RANK" in os.environ:
        raise UserError("sweep: it starts torchrun itself; drop torchrun and give --gpus N")
    from lengthgen.sweep import slurm as clusters
    from lengthgen.sweep import slurm_jobs, slurm_options
    from lengthgen.sweep.points import points as points_of
    from lengthgen.sweep.states import BUSY, counted, left

    options = None if slurm is None else slurm_options.options(slurm)
    points = points_of(overrides or [], config_dir=config_dir, plugins=plugin or [])
    states = slurm_jobs.states(points)
    if status:
        _finish(points, states, gpus=n_gpus)
    todo = left(points, states)
    say_once(f"sweep: {len(points)} point{'s' * (len(points) > 1)}: {counted(states)}")
    busy = any(one.state in BUSY for one in states.values())
    if not todo and (not busy or options is not None):
        _finish(points, states, gpus=n_gpus)
    if busy and options is None:
        say_once("points that others work on are waited for, and taken over if they fail there")
    if dry_run:
        for point in todo:
            print(point.command)
    if options is not None:
        if not dry_run:
            _prepare(todo)
            clusters.submit(todo, options, root=points[0].config.runtime.root, say=say_once)
        return
    _run_here(points, todo, jobs=n_jobs, gpus=n_gpus, per_gpu=n_per_gpu, dry_run=dry_run)


def _run_here(
    points: Sequence["Point"],
    todo: Sequence["Point"],
    *,
    jobs: int | None,
    gpus: int | None,
    per_gpu: int,
    dry_run: bool,
) -> None:
    """Runs what is left on this machine, after saying how long it will take."""
    from lengthgen import devices
    from lengthgen.ranks import Ranks
    from lengthgen.sweep import local
    from lengthgen.sweep.board import Board
    from lengthgen.sweep.estimate import estimate, makespan
    from lengthgen.sweep.slots import Machine, slots

    for point in todo:
        devices.device_of(point.config.runtime, Ranks.from_env())  # refuses one that is not here
    machine = Machine.this()
    if all(point.config.runtime.device == "cpu" for point in points):
        machine = machine._replace(gpus=())
    places = slots(machine, jobs=jobs, gpus=gpus, per_gpu=per_gpu, n_points=len(todo))
    if not dry_run:
        _prepare(todo)
    if todo:
        say_once("measuring a step of each kind of point ...")
        seconds = estimate(todo, threads=places[0].threads, processes=gpus or 1)
        takes = "for an unknown time, since no step could be measured"
        if seconds is not None:
            total = makespan([seconds[point.run_id] for point in todo], len(places))
            takes = f"about {_duration(total)}"
        say_once(f"{len(todo)} to do, {len(places)} at a time: {takes}")
    if dry_run:
        return
    with Board(points) as board:
        states = local.run(points, places, gpus=gpus, board=board)
    _finish(points, states, gpus=gpus)


def _prepare(points: Sequence["Point"]) -> None:
    """Builds every corpus once, and checks what needs its tokens or plugins, before any run."""
    from lengthgen import corpora, plans
    from lengthgen.progress import Progress
    from lengthgen.rehearsal import rehearse

    with Progress(is_main=True) as show:
        loaded: dict[str, corpora.TokenizedCorpus] = {}
        for point in points:
            config, key = point.config, point.config.corpus.model_dump_json()
            try:
                if key not in loaded:
                    cache_dir = config.runtime.cache_dir
                    loaded[key] = corpora.load(config.corpus, cache_dir=cache_dir, say=show.say)
                plans.plan(config, loaded[key])
                rehearse(config)
            except UserError as error:
                where = f"{point.title}: " if point.varied else ""
                raise UserError(f"{where}{error}") from None


def _finish(
    points: Sequence["Point"], states: Mapping[str, "PointState"], *, gpus: int | None
) -> NoReturn:
    """Prints how every point stands and how to repeat what went wrong; exits with 1 if any did."""
    from lengthgen.listing import Listing
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
