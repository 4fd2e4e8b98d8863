"""The Slurm jobs of a sweep's points: who owns a point, its state by squeue, its last message."""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from lengthgen.files import read_bytes, replace_file

if TYPE_CHECKING:  # the grid imports torch, and a task of Slurm handles signals before
    from lengthgen.sweep.grid import Point

SECONDS_FOR_SQUEUE = 60
BEGINNING = "lengthgen: begins in job "  # what each start writes: a log holds all of them
STOPPED = "stopped by "  # the beginning of the message of a run that a signal ended
WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT")
ENDED = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "REVOKED", "TIMEOUT"),
)


class Job(NamedTuple):
    """The Slurm job that owns a point, or owned it: `gone` if Slurm will not run it any more.

    `reason` is why it waits or how it ended, as Slurm writes it, or why its state is unknown.
    """

    id: str
    logs: Path
    state: Literal["queued", "running", "gone", "unknown"] = "gone"
    reason: str | None = None


def record(point: "Point", *, job: str, logs: Path) -> None:
    """Writes into the run directory of a point which job owns it. Raises UserError if it cannot."""
    owner = {"job": job, "logs": str(logs)}
    replace_file(point.run_dir / "slurm.json", json.dumps(owner).encode())


def jobs(points: Sequence["Point"]) -> dict[str, Job]:
    """Returns the job of each point that was ever submitted, by run id, with one call of squeue.

    On a machine without squeue there is none: runs were copied from a cluster.
    """
    known = {p.run_id: job for p in points if (job := _recorded(p)) is not None}
    if not known or shutil.which("squeue") is None:
        return {}
    arrays = sorted({job.id.partition("_")[0] for job in known.values()})
    command = ["squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%r"]
    command.append(f"--jobs={','.join(arrays)}")
    unknown: str | None = None
    listed: dict[str, tuple[str, str]] = {}
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS_FOR_SQUEUE, check=False
        )
        if ran.returncode and "Invalid job id" not in ran.stderr:  # of a job that ended long ago
            unknown = f"squeue failed: {ran.stderr.strip()}"
        for line in ran.stdout.splitlines():
            id, state, reason = line.split("|", 2)
            listed[id] = state, reason
    except (OSError, subprocess.TimeoutExpired) as error:
        unknown = f"squeue cannot be run: {error}"
    if unknown is not None:
        return {key: job._replace(state="unknown", reason=unknown) for key, job in known.items()}
    return {key: _listed(job, *listed.get(job.id, ("", "None"))) for key, job in known.items()}


def _listed(job: Job, state: str, reason: str) -> Job:
    """Returns a job with the state and reason that squeue lists, both empty if it lists none."""
    if not state or state in ENDED:
        return job._replace(reason=state or None)
    why = None if reason == "None" else reason
    return job._replace(state="queued" if state in WAITING else "running", reason=why)


def failure(point: "Point") -> str | None:
    """Returns the last message of the last start of a point's job; None if there is none.

    That of the process that ended first: the others end because of it.
    """
    logs = {rank: path.read_text("utf-8", "replace") for rank, path in _logs(point).items()}
    texts = {rank: log.split(BEGINNING)[-1] for rank, log in logs.items()}
    srun = r"^srun: error: \S+: tasks? (\d+)\S*: (.+)$"
    first = re.search(srun, texts.get("0", ""), re.MULTILINE)
    text = "\n".join(texts.values()) if first is None else texts.get(first[1], "")
    # A task's own last line, or the end of a traceback from before it could write one.
    messages = re.findall(rf"^(?:error: |{STOPPED}|[\w.]+Error: ).*$", text, re.MULTILINE)
    if messages:
        return messages[-1].removeprefix("error: ")
    if first is not None:
        return f"process {first[1]}: {first[2]}"
    slurm = re.findall(r"^slurmstepd\S* error: (.+)$", text, re.MULTILINE)
    return slurm[-1] if slurm else None


def _recorded(point: "Point") -> Job | None:
    """Returns the job in slurm.json, state unset; damage counts as never submitted."""
    try:
        owner = json.loads(read_bytes(point.run_dir / "slurm.json"))
        return Job(str(owner["job"]), Path(owner["logs"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _logs(point: "Point") -> dict[str, Path]:
    """Returns the error logs of the processes of a point's job, by rank."""
    job = _recorded(point)
    logs = [] if job is None else sorted(job.logs.glob(f"{job.id}_*_log.err"))
    return {path.name.split("_")[-2]: path for path in logs if path.is_file()}


def logs_are_newer(point: "Point") -> bool:
    """True if no other process has worked on the point since its job ended."""
    status = point.run_dir / "status.json"
    written = [path.stat().st_mtime for path in _logs(point).values()]
    return bool(written) and (not status.exists() or max(written) >= status.stat().st_mtime)
