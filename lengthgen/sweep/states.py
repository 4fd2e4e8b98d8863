"""How the points of a sweep stand: by their run directories and the queue of Slurm."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from lengthgen.runs import status
from lengthgen.sweep import slurm
from lengthgen.sweep.grid import Point

State = Literal["done", "diverged", "failed", "killed", "stopped", "running", "queued", "new"]
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
    jobs = {p.run_id: job for p in points if (job := slurm.job_of(p.run_dir))}
    queue = slurm.queue(job.id for job in jobs.values())
    states = {p.run_id: state_of(p) for p in points}
    for run_id, job in jobs.items():
        state, reason = queue.get(job.id, ("", ""))
        if state and states[run_id].state not in SETTLED:
            states[run_id] = _of_job(job, state, reason)
        elif states[run_id].state == "new":
            ended = f"job {job.id} ended before the run began; see {job.log}"
            states[run_id] = PointState("failed", ended)
    return states


def _of_job(job: slurm.SlurmJob, state: str, reason: str) -> PointState:
    """Returns the state of a point whose job Slurm lists with a state and a reason."""
    if state in ("RUNNING", "COMPLETING"):
        ending = " is ending" if state == "COMPLETING" else ""
        return PointState("running", f"job {job.id}{ending}")
    return PointState("queued", None if reason == "None" else reason)


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
    every = [point.state for point in states.values()]
    return ", ".join(f"{every.count(s)} {s}" for s in get_args(State) if s in every)
