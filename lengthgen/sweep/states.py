"""The state of each point of a sweep, by its run directory and its Slurm job, and their table."""

import sys
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Self

from rich.live import Live
from rich.table import Table
from rich.text import Text

from lengthgen.escaping import visible
from lengthgen.runs import status
from lengthgen.sweep import slurm
from lengthgen.sweep.grid import Point
from lengthgen.terminal import Screen

State = Literal["new", "queued", "running", "stopped", "killed", "failed", "diverged", "done"]
SETTLED = ("done", "diverged")  # running such a point again would end in the same way
BUSY = ("queued", "running")  # in another process
COLOURS = {"done": "green", "running": "cyan", "failed": "red", "diverged": "red", "killed": "red"}


class PointState(NamedTuple):
    """new: nothing is there; queued: its Slurm job waits; the others are those of the run."""

    state: State
    reason: str | None = None


def states_of(points: Sequence[Point]) -> dict[str, PointState]:
    """Returns the state of each point, by run id.

    A point whose job waits or runs is queued or running whatever its run directory shows, since
    locks do not reach across the nodes of every cluster.
    """
    jobs = slurm.jobs_of(points)
    return {p.run_id: _with_job(state_of(p), jobs.get(p.run_id)) for p in points}


def _with_job(run: PointState, job: slurm.Job | None) -> PointState:
    if job is None or run.state in SETTLED:
        return run
    if job.state is not None:
        return PointState(job.state, job.reason)
    if run.state == "new":
        return PointState("failed", f"job {job.id} ended before the run began; see {job.log}")
    return run


def state_of(point: Point) -> PointState:
    """Returns the state of a point by its run directory alone."""
    if not point.run_dir.is_dir():
        return PointState("new")
    run = status.read_status(point.run_dir, run=point.run_id)
    if run.state == "done" and run.evaluated != point.config.evaluation_id:
        return PointState("stopped", "its curve is to be measured as requested")
    if run.state == "stopped" and not (point.run_dir / "config.yaml").exists():
        return PointState("new")
    if run.state == "running" and run.pid is not None:
        return PointState("running", f"process {run.pid} on {run.host}")
    return PointState(run.state, run.reason)


def pending(points: Sequence[Point], states: Mapping[str, PointState]) -> list[Point]:
    """Returns the points that are to be run; `states` is by run id."""
    return [p for p in points if states[p.run_id].state not in (*SETTLED, *BUSY)]


def unsuccessful(points: Sequence[Point], states: Mapping[str, PointState]) -> list[Point]:
    """Returns the points that were tried and did not end well."""
    bad = ("failed", "diverged", "killed", "stopped")
    return [p for p in points if states[p.run_id].state in bad]


def rows(
    points: Sequence[Point], states: Mapping[str, PointState]
) -> tuple[list[str], list[list[str]]]:
    """Returns the columns, and a row per point: swept values, run, state, the reason of that."""
    keys = list(points[0].varied) if points else []
    cells = [
        [*p.varied.values(), str(p.run_dir), states[p.run_id].state, states[p.run_id].reason or ""]
        for p in points
    ]
    return [*keys, "run", "state", "reason"], cells


def counted(states: Mapping[str, PointState]) -> str:
    """Returns "3 done, 1 failed, 4 new", in the order of a point's life from its end."""
    order = ("done", "diverged", "failed", "killed", "stopped", "running", "queued", "new")
    every = [point.state for point in states.values()]
    return ", ".join(f"{every.count(s)} {s}" for s in order if s in every)


class StateTable:
    """Shows the states of points when they change: a table on a terminal, else a line each."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._points = points
        self._screen = Screen(sys.stderr)
        self._live = Live(console=self._screen, auto_refresh=False, transient=True)
        self._shown: dict[str, PointState] = {}

    def __enter__(self) -> Self:
        if self._screen.is_live:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def say(self, message: str) -> None:
        """Writes a line, above the table if there is one."""
        self._screen.print(visible(message, keep="\n\t"))

    def show(self, states: Mapping[str, PointState]) -> None:
        """Shows the states, by run id, if one is not as it was shown before."""
        changed = [p for p in self._points if states[p.run_id] != self._shown.get(p.run_id)]
        if changed and self._screen.is_live:
            self._live.update(self._table(states), refresh=True)
        elif changed:
            for point in changed if self._shown else ():  # the first states are counted elsewhere
                state, reason = states[point.run_id]
                self.say(f"{point.title}: {state}" + (f": {reason}" if reason else ""))
        self._shown = dict(states)

    def _table(self, states: Mapping[str, PointState]) -> Table:
        """Returns the points, those that are at work or went wrong first if not all have room."""
        head = list(self._points[0].varied) or ["run"]
        table = Table(*head, "state", "", box=None, caption=counted(states), caption_justify="left")
        room = max(1, self._screen.height - 5)
        shown = list(self._points)
        if len(shown) > room:
            shown.sort(key=lambda p: states[p.run_id].state in ("new", "queued", "done"))
        for point in shown[:room]:
            state, reason = states[point.run_id]
            names = [*point.varied.values()] or [point.run_id]
            cells = [Text(visible(cell)) for cell in (*names, state, reason or "")]
            cells[-2].stylize(COLOURS.get(state, ""))
            table.add_row(*cells)
        for column in table.columns:
            column.no_wrap, column.overflow = True, "ellipsis"
        return table
