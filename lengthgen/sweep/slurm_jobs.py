"""How the points of a sweep stand on a Slurm cluster: what squeue, their logs and runs say."""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lengthgen.storage import replace_file
from lengthgen.sweep.points import Point
from lengthgen.sweep.slurm import BEGINNING
from lengthgen.sweep.states import SETTLED, PointState, state_of

SECONDS_FOR_SQUEUE = 60
STOPPED = "stopped by "  # the beginning of what a run says that a signal ended
WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT")
ENDED = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "REVOKED", "TIMEOUT"),
)


@dataclass(frozen=True, kw_only=True)
class Job:
    """The Slurm job that owns a point, or owned it: `gone` if Slurm will not work on it any more.

    `reason` is why Slurm lets it wait or how it ended, in Slurm's words, or why it is unknown.
    """

    id: str
    logs: Path
    state: Literal["queued", "running", "gone", "unknown"]
    reason: str | None


def record(point: Point, *, job: str, logs: Path) -> None:
    """Writes into the run directory of a point which job owns it. Raises UserError if it cannot."""
    said = {"job": job, "logs": str(logs)}
    replace_file(point.run_dir / "slurm.json", json.dumps(said).encode())


def states(points: Sequence[Point]) -> dict[str, PointState]:
    """Returns how each point stands, by run id.

    A point whose job waits or runs is queued or running whatever its run says, since locks do not
    reach across the nodes of every cluster. One whose job cannot be asked for counts as queued.
    """
    owned = jobs(points)
    return {p.run_id: _state(p, owned.get(p.run_id)) for p in points}


def jobs(points: Sequence[Point]) -> dict[str, Job]:
    """Returns the job of each point that was ever submitted, by run id, with one call of squeue.

    A machine without squeue has the runs from a cluster, and what they say must do.
    """
    known = {p.run_id: found for p in points if (found := _recorded(p)) is not None}
    if not known or shutil.which("squeue") is None:
        return {}
    arrays = sorted({job.partition("_")[0] for job, _ in known.values()})
    command = ["squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%r"]
    try:
        asked = subprocess.run(
            [*command, f"--jobs={','.join(arrays)}"],
            capture_output=True,
            text=True,
            timeout=SECONDS_FOR_SQUEUE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return _all_unknown(known, f"squeue cannot be asked: {error}")
    if asked.returncode and "Invalid job id" not in asked.stderr:  # that of a job long gone
        return _all_unknown(known, f"squeue failed: {asked.stderr.strip()}")
    listed = dict[str, tuple[str, str]]()
    for line in asked.stdout.splitlines():
        job, state, reason = line.split("|", 2)
        listed[job] = state, reason
    return {run_id: _job(job, logs, listed.get(job)) for run_id, (job, logs) in known.items()}


def failure(point: Point) -> str | None:
    """Returns what the last start of a point's job said at its end; None if it said nothing.

    That is the word of the process that ended first: the others end because of it.
    """
    texts = {rank: _last_start(path) for rank, path in _logs(point).items()}
    srun = r"^srun: error: \S+: tasks? (\d+)\S*: (.+)$"
    first = re.search(srun, texts.get("0", ""), re.MULTILINE)
    heard = "\n".join(texts.values()) if first is None else texts.get(first[1], "")
    # A task's own last line, or the end of a traceback from before it could write one.
    words = re.findall(rf"^(?:error: |{STOPPED}|[\w.]+Error: ).*$", heard, re.MULTILINE)
    if words:
        return words[-1].removeprefix("error: ")
    if first is not None:
        return f"process {first[1]}: {first[2]}"
    slurm = re.findall(r"^slurmstepd\S* error: (.+)$", heard, re.MULTILINE)
    return slurm[-1] if slurm else None


def _state(point: Point, job: Job | None) -> PointState:
    run = state_of(point)
    if job is None or run.state in SETTLED:
        return run
    if job.state == "queued":
        return PointState("queued", job.reason)
    if job.state == "running":
        return PointState("running")
    if job.state == "unknown":
        why = f"job {job.id} may be at work; {job.reason}"
        return run if run.state == "running" else PointState("queued", why)
    word = failure(point) if _logs_are_newer(point) else None
    if word is None or run.state in ("running", "trained"):
        return run
    if run.state in ("failed", "killed"):
        return PointState(run.state, word)
    return run if word.startswith(STOPPED) else PointState("failed", word)


def _logs_are_newer(point: Point) -> bool:
    """True if no other process has worked on the point since its job ended."""
    status = point.run_dir / "status.json"
    said = [path.stat().st_mtime for path in _logs(point).values()]
    return bool(said) and (not status.exists() or max(said) >= status.stat().st_mtime)


def _recorded(point: Point) -> tuple[str, Path] | None:
    """Returns the job id and the folder of logs in slurm.json; damage counts as never submitted."""
    try:
        said = json.loads((point.run_dir / "slurm.json").read_text(encoding="utf-8"))
        return str(said["job"]), Path(said["logs"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _logs(point: Point) -> dict[str, Path]:
    """Returns the error logs of the processes of a point's job, by rank."""
    known = _recorded(point)
    if known is None:
        return {}
    job, folder = known
    return {path.name.split("_")[-2]: path for path in sorted(folder.glob(f"{job}_*_log.err"))}


def _last_start(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace").split(BEGINNING)[-1]


def _all_unknown(known: Mapping[str, tuple[str, Path]], why: str) -> dict[str, Job]:
    return {
        run_id: Job(id=job, logs=logs, state="unknown", reason=why)
        for run_id, (job, logs) in known.items()
    }


def _job(id: str, logs: Path, listed: tuple[str, str] | None) -> Job:
    if listed is None:
        return Job(id=id, logs=logs, state="gone", reason=None)
    state, reason = listed
    if state in ENDED:
        return Job(id=id, logs=logs, state="gone", reason=state)
    now = "queued" if state in WAITING else "running"
    return Job(id=id, logs=logs, state=now, reason=None if reason == "None" else reason)
