"""How the points of a sweep stand: by their run directories and the queue of Slurm."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from lengthgen.runs import status
from lengthgen.sweep import slurm
from lengthgen.sweep.grid import Point

SweepState = Literal["done", "diverged", "failed", "killed", "stopped", "running", "queued", "new"]
SETTLED = ("done", "diverged")  # running such a point again would end in the same way
BUSY = ("queued", "running")  # in another process
FAILED = ("failed", "diverged", "killed", "stopped")  # was tried and did not end well


class PointState(NamedTuple):
    """new: nothing is there; queued: its Slurm job waits; the others are those of the run."""

    state: SweepState
    reason: str | None = None

    @property
    def is_pending(self) -> bool:
        """True if the point is to be run."""
        return self.state not in (*SETTLED, *BUSY)


def states_of(points: Sequence[Point]) -> dict[str, PointState]:
    """Returns the state of each point, by run id.

    A point whose job waits or runs is queued or running whatever its run directory shows, since
    locks do not reach across the nodes of every cluster.
    """
    jobs = {point.run_id: slurm.job_of(point.run_dir) for point in points}
    queue = slurm.queue(job.id for job in jobs.values() if job)
    return {point.run_id: _with_job(point, jobs[point.run_id], queue) for point in points}


def _with_job(
    point: Point, job: slurm.SlurmJob | None, queue: Mapping[str, tuple[str, str]]
) -> PointState:
    """Returns the state of a point by its run directory, its job and the queue.

    What the run reported before its job was submitted says nothing of that job.
    """
    run = state_of(point)
    if job is None or run.state in SETTLED:
        return run
    if job.id in queue:
        state, reason = queue[job.id]
        if state in ("RUNNING", "COMPLETING"):
            ending = " is ending" if state == "COMPLETING" else ""
            return PointState("running", f"job {job.id}{ending}")
        return PointState("queued", None if reason == "None" else reason)
    submitted = (point.run_dir / "slurm.json").stat().st_mtime_ns
    if run.state == "running" or status.written_ns(point.run_dir) >= submitted:
        return run
    end = f"ended without a report; see {job.log}"
    end = end if job.log.is_file() else "was cancelled or removed before it started"
    return PointState("failed", f"job {job.id} {end}")


def state_of(point: Point) -> PointState:
    """Returns the state of a point by its run directory alone."""
    run = status.read_status(point.run_dir, run=point.run_id)
    if run.state != "failed" and not (point.run_dir / "config.yaml").exists():
        return PointState("new")
    if run.state == "done" and run.evaluated != point.config.evaluation_id:
        return PointState("stopped", "its curve is to be measured as requested")
    if run.state == "running" and run.pid is not None:
        return PointState("running", f"process {run.pid} on {run.host}")
    return PointState(run.state, run.reason)


def pending(points: Sequence[Point], states: Mapping[str, PointState]) -> list[Point]:
    """Returns the points that are to be run; `states` is by run id."""
    return [point for point in points if states[point.run_id].is_pending]


def counted(states: Mapping[str, PointState]) -> str:
    """Returns "3 done, 1 failed, 4 new", in the order of a point's life from its end."""
    every = [point.state for point in states.values()]
    return ", ".join(f"{every.count(s)} {s}" for s in get_args(SweepState) if s in every)
