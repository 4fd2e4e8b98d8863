"""The state of each point of a sweep, by its run directory and the Slurm job that owns it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from lengthgen.runs import status
from lengthgen.sweep import slurm_jobs
from lengthgen.sweep.slurm_jobs import Job

if TYPE_CHECKING:  # the grid imports torch, and a task of Slurm handles signals before
    from lengthgen.sweep.grid import Point

State = Literal[
    "new", "queued", "running", "stopped", "killed", "failed", "diverged", "trained", "done"
]
SETTLED = ("done", "diverged")  # running such a point again would find the same
BUSY = ("queued", "running")  # in another process


class PointState(NamedTuple):
    """new: nothing is there; trained: its curve is still to be measured as requested; the other
    states are those of status.py, and queued is Slurm's.
    """

    state: State
    reason: str | None = None


def states_of(points: Sequence["Point"]) -> dict[str, PointState]:
    """Returns the state of each point, by run id.

    A point whose job waits or runs is queued or running whatever its run directory shows, since
    locks do not reach across the nodes of every cluster. One whose job is unknown counts as queued.
    """
    owned = slurm_jobs.jobs(points)
    return {p.run_id: _of_job(p, owned.get(p.run_id)) for p in points}


def _of_job(point: "Point", job: Job | None) -> PointState:
    run = state_of(point)
    if job is None or run.state in SETTLED:
        return run
    if job.state == "queued":
        return PointState("queued", job.reason)
    if job.state == "running":
        return PointState("running")
    if job.state == "unknown":
        why = f"job {job.id} may still run; {job.reason}"
        return run if run.state == "running" else PointState("queued", why)
    message = slurm_jobs.failure(point) if slurm_jobs.logs_are_newer(point) else None
    if message is None or run.state in ("running", "trained"):
        return run
    if run.state in ("failed", "killed"):
        return PointState(run.state, message)
    return run if message.startswith(slurm_jobs.STOPPED) else PointState("failed", message)


def state_of(point: "Point") -> PointState:
    """Returns the state of a point, by status.json, lock and DONE of its run."""
    if not point.run_dir.is_dir():
        return PointState("new")
    run = status.read_status(point.run_dir, run=point.run_id)
    if run.state == "done" and run.evaluated != point.config.evaluation_id:
        return PointState("trained", "its curve is to be measured as requested")
    if run.state == "stopped" and not (point.run_dir / "config.yaml").exists():
        return PointState("new")
    if run.state == "running" and run.pid is not None:
        return PointState("running", f"process {run.pid} on {run.host}")
    return PointState(run.state, run.reason)


def pending(points: Sequence["Point"], states: Mapping[str, PointState]) -> list["Point"]:
    """Returns the points that are to be run; `states` is by run id."""
    return [p for p in points if states[p.run_id].state not in (*SETTLED, *BUSY)]


def unsuccessful(points: Sequence["Point"], states: Mapping[str, PointState]) -> list["Point"]:
    """Returns the points that were tried and did not end well."""
    bad = ("failed", "diverged", "killed", "stopped")
    return [p for p in points if states[p.run_id].state in bad]


def matrix(
    points: Sequence["Point"], states: Mapping[str, PointState]
) -> tuple[list[str], list[list[str]]]:
    """Returns the columns, and a row per point: swept values, run, state, the reason of that."""
    keys = list(points[0].varied) if points else []
    rows = [
        [
            *(point.varied[key] for key in keys),
            str(point.run_dir),
            states[point.run_id].state,
            states[point.run_id].reason or "",
        ]
        for point in points
    ]
    return [*keys, "run", "state", "reason"], rows


def counted(states: Mapping[str, PointState]) -> str:
    """Returns "3 done, 1 failed, 4 new", in the order of a point's life from its end."""
    order = ("done", "diverged", "failed", "killed", "stopped", "trained", "running", "queued")
    found = [point.state for point in states.values()]
    return ", ".join(f"{found.count(s)} {s}" for s in (*order, "new") if s in found)
