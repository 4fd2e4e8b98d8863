"""lengthgen sweep: plan a grid, then run what is left of it, here or on Slurm."""

import math
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lengthgen.cli.arguments import ConfigDir, Gpus, Overrides, PluginFiles
from lengthgen.cli.console import print_table, warn, warn_once
from lengthgen.errors import UserError

if TYPE_CHECKING:
    from lengthgen.sweep.grid import Point
    from lengthgen.sweep.states import PointState

Jobs = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Runs at a time; default: the GPUs or cores, 1 with --search; more share GPUs.",
    ),
]
Slurm = Annotated[
    str | None,
    typer.Option(
        metavar="KEY=VALUE,...",
        help="Submit a job array: time=..., partition=..., gpus=..., parallel=...",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check and list every point, measure steps, and stop.")
]


def sweep(
    overrides: Overrides = None,
    jobs: Jobs = None,
    gpus: Gpus = None,
    slurm: Slurm = None,
    dry_run: DryRun = False,
    search: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="N points by Optuna: least loss at T.")
    ] = None,
    config_dir: ConfigDir = None,
    plugin: PluginFiles = None,
) -> None:
    """Run every combination of a,b or range() or glob() values. Run again: it continues.

    All points are checked before the first starts. A point that fails stops no other; the exit
    code is 1 then, and if points are at work elsewhere.
    """
    from lengthgen.sweep import grid

    given: dict[str, Any] = {"config_dir": config_dir, "plugins": plugin or []}
    if search is not None:
        if slurm is not None or dry_run:
            raise UserError("--search: each point depends on those before; drop --slurm, --dry-run")
        return _search(overrides or [], search, jobs or 1, gpus, **given)
    combined = [*slurm_overrides(slurm), *(overrides or [])]
    if not combined:
        raise UserError("sweep: name what varies: scheme=rope,alibi seed=1,2, or study=NAME")
    points = grid.points(combined, **given)
    states = run_all(points, jobs=jobs, gpus=gpus, slurm=slurm, dry_run=dry_run)
    if print_states(points, states, submitted=slurm is not None) and not dry_run:
        sys.exit(1)


def _search(overrides: list[str], n: int, jobs: int, gpus: int | None, **given: Any) -> None:
    """Searches, then prints the points from the best one on."""
    from lengthgen.sweep.search import search
    from lengthgen.terminal import from_here

    trials = search(
        overrides, n, jobs=jobs, run=partial(run_all, jobs=jobs, gpus=gpus), say=warn_once, **given
    )
    rows = [
        [*point.varied.values(), f"{loss:.4f}", state.state, from_here(point.run_dir)]
        for point, state, loss in trials
    ]
    print_table([*trials[0].point.varied, "loss at T", "state", "run"], rows)
    failed = [trial for trial in trials if trial.state.state not in ("done", "diverged")]
    if failed:
        print_states([t.point for t in failed], {t.point.run_id: t.state for t in failed})
        sys.exit(1)
    if trials[0].loss == math.inf:
        raise UserError("--search: no point has a finite loss at T; lower train.lr")
    warn_once(f"least loss: {trials[0].point.title}")


def slurm_overrides(slurm: str | None) -> list[str]:
    """Returns overrides that stand before the user's own: the GPUs are those of Slurm's nodes."""
    if slurm is None:
        return []
    from lengthgen.sweep.slurm import options

    return ["runtime.device=cuda"] if options(slurm).gpus else []


def run_all(
    points: Sequence["Point"],
    *,
    jobs: int | None,
    gpus: int | None,
    slurm: str | None = None,
    dry_run: bool = False,
) -> Mapping[str, "PointState"]:
    """Runs or submits what is left of the points, and returns the states of all of them then."""
    from lengthgen.runs import devices
    from lengthgen.sweep import local, states
    from lengthgen.sweep.slurm import check_available, options, submit
    from lengthgen.terminal import Board, duration

    if slurm is not None and (jobs or gpus):
        raise UserError("--slurm: jobs and GPUs are Slurm's; give --slurm gpus=N,parallel=N")
    if "RANK" in os.environ:
        raise UserError("sweep: it starts torchrun itself; drop torchrun and give --gpus N")
    before = states.states_of(points)
    todo = states.pending(points, before)
    warn_once(f"{len(points)} point{'s' * (len(points) > 1)}: {states.counted(before)}")
    if not todo or (slurm is not None and dry_run):
        return before
    needs = any(point.config.runtime.device == "cuda" for point in todo)
    asks = any(name.startswith(("SBATCH_GRES", "SBATCH_GPUS")) for name in os.environ)
    if slurm is not None and needs and not (options(slurm).gpus or asks):
        raise UserError("--slurm: runtime.device=cuda needs a GPU; add gpus=1, or set SBATCH_GRES")
    available = local.gpus_for(todo) if slurm is None else []
    if slurm is not None:
        check_available()
    _prepare(todo, here=slurm is None)
    if slurm is not None:
        if todo := states.pending(points, states.states_of(points)):  # others may be queued by now
            submit(todo, options(slurm), root=points[0].config.runtime.root, say=warn_once)
        return states.states_of(points)
    slots = local.slots(devices.cores(), available, jobs=jobs, gpus=gpus, n_points=len(todo))
    if not dry_run:
        with Board() as board:
            return local.run(points, slots, gpus=gpus, say=board.say, show=board.show)
    expected = local.expected(todo, slots[0], say=warn)._asdict()
    together = {what: s / (len(slots) * (gpus or 1)) for what, s in expected.items()}
    each = ", ".join(f"{what} {duration(seconds)}" for what, seconds in together.items())
    total = duration(sum(together.values()))
    warn(f"{len(todo)} points to do, {len(slots)} at a time: about {total} ({each})")
    return before


def _prepare(points: Sequence["Point"], *, here: bool) -> None:
    """Builds every corpus once, and checks what needs its tokens, before any run.

    Runs that are to be `here` need their device, which a login node may lack.
    """
    from lengthgen.runs import devices
    from lengthgen.runs.distributed import ALONE

    loaded: dict[str, Any] = {}
    if line := next(filter(None, (point.experiment.begun_elsewhere for point in points)), None):
        warn(line)
    for point in points:
        try:
            if here:
                devices.device_of(point.config.runtime, ALONE)
            point.experiment.opened(say=warn, loaded=loaded)
        except UserError as error:
            raise UserError(f"{point.title}: {error}" if point.varied else str(error)) from None


def print_states(
    points: Sequence["Point"], states: Mapping[str, "PointState"], *, submitted: bool = False
) -> bool:
    """Prints the state of every point, and how to go on; returns if there is more to do.

    Of points that were submitted just now, those at work are left to Slurm.
    """
    from lengthgen.sweep.states import BUSY, FAILED
    from lengthgen.terminal import from_here

    rows: list[list[str]] = []
    failed = [point for point in points if states[point.run_id].state in FAILED]
    for point in points:
        state, reason = states[point.run_id]
        rows.append([*point.varied.values(), from_here(point.run_dir), state, reason or ""])
    print_table([*points[0].varied, "run", "state", "reason"], rows)
    for point in failed:
        warn_once(f"to repeat {point.title} alone: {point.command}")
    left = 0 if submitted else sum(state.state in BUSY for state in states.values())
    if left:
        warn_once(f"{left} of {len(points)} points run elsewhere, or are queued; rerun later")
    return bool(failed or left)
