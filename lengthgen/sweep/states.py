"""The state of each point of a sweep, by its run directory and its Slurm job."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from lengthgen.runs import status
from lengthgen.sweep import slurm
from lengthgen.sweep.grid import Point

State = Literal["new", "queued", "running", "stopped", "killed", "failed", "diverged", "done"]
SETTLED = ("done", "diverged")  # running such a point again would end in the same way
BUSY = ("queued", "running")  # in another process
FAILED = ("failed", "diverged", "killed", "stopped")  # was tried and did not end well


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
    if job.state is None and run.state == "new":
        return PointState("failed", f"job {job.id} ended before the run began; see {job.log}")
    return run if job.state is None else PointState(job.state, job.reason)


def state_of(point: Point) -> PointState:
    """Returns the state of a point by its run directory alone."""
    if not (point.run_dir / "config.yaml").exists():
        return PointState("new")
    run = status.read_status(point.run_dir, run=point.run_id)
    if run.state == "done" and run.evaluated != point.config.evaluation_id:
        return PointState("stopped", "its curve is to be measured as requested")
    if run.state == "running" and run.pid is not None:
        return PointState("running", f"process {run.pid} on {run.host}")
    return PointState(run.state, run.reason)


def pending(points: Sequence[Point], states: Mapping[str, PointState]) -> list[Point]:
    """Returns the points that are to be run; `states` is by run id."""
    return [p for p in points if states[p.run_id].state not in (*SETTLED, *BUSY)]


def counted(states: Mapping[str, PointState]) -> str:
    """Returns "3 done, 1 failed, 4 new", in the order of a point's life from its end."""
    order = ("done", "diverged", "failed", "killed", "stopped", "running", "queued", "new")
    every = [point.state for point in states.values()]
    return ", ".join(f"{every.count(s)} {s}" for s in order if s in every)
