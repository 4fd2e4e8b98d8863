"""A sweep on a Slurm cluster: the options of a job array, its submission, its tasks, its jobs."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, ValidationError

from lengthgen.config.sections import Section, one_line
from lengthgen.errors import UserError

if TYPE_CHECKING:  # a task of Slurm is to handle signals soon after its start
    from submitit.helpers import DelayedSubmission

    from lengthgen.sweep.grid import Point

SECONDS_OF_GRACE = 120  # a step and a checkpoint, between Slurm's signal and its time limit
MAX_REQUEUES = 100  # at the time limit of a job; a run that never advances ends then
SECONDS_FOR_SQUEUE = 60
WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT")
AT_WORK = ("RUNNING", "CONFIGURING", "COMPLETING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED")


def _minutes(value: object) -> object:
    """Returns the minutes of H:MM:SS or D-HH:MM:SS, seconds rounded up; other values unchanged."""
    parts = re.fullmatch(r"(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)", str(value))
    if parts is None:
        return value
    days, hours, minutes, seconds = (int(group or 0) for group in parts.groups())
    return (days * 24 + hours) * 60 + minutes + (seconds > 0)


Count = Annotated[int, Field(gt=0)]


class Options(Section):
    """What --slurm requests for each point, on one node; None leaves it to the cluster."""

    time: Annotated[Count, BeforeValidator(_minutes)]  # minutes
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gpus: Count | None = None  # each with a process of its own, by torchrun
    cpus: Count | None = None
    mem: Annotated[float, Field(gt=0)] | None = None  # GB
    parallel: Count | None = None  # points that run at the same time

    @property
    def sbatch(self) -> dict[str, Any]:
        """The parameters of submitit's Slurm executor."""
        # srun of Slurm 22.05 and later no longer takes it from sbatch.
        srun = [f"--cpus-per-task={self.cpus}"] if self.cpus is not None else []
        parameters = {
            **self.model_dump(include={"time", "partition", "account", "qos", "constraint"}),
            "job_name": "lengthgen",
            "gpus_per_node": self.gpus,
            "cpus_per_task": self.cpus,
            "mem": None if self.mem is None else f"{round(self.mem * 1024)}MB",
            "srun_args": srun,
            "additional_parameters": {
                "signal": f"USR2@{min(SECONDS_OF_GRACE, self.time * 15)}",  # 3/4 of a short limit
                "requeue": True,  # even where JobRequeue=0 is the default
            },
        }
        return {key: value for key, value in parameters.items() if value is not None}


def options(text: str) -> Options:
    """Reads partition=main,gpus=2,time=4:00:00 and the like. Raises UserError for a mistake."""
    words = [word.partition("=") for word in text.split(",")]
    given = {key.strip(): value.strip() for key, _, value in words}
    try:
        return Options.model_validate(given)
    except ValidationError as error:
        raise UserError(f"--slurm: {one_line(error, given, known=Options.model_fields)}") from None


def submit(
    points: Sequence["Point"], options: Options, *, root: Path, say: Callable[[str], None]
) -> None:
    """Submits all points as one job array, and writes into each run directory which job owns it.

    Raises UserError if that is not possible here, or if Slurm refuses.
    """
    try:
        import submitit
        from submitit.core.utils import FailedJobError
        from submitit.helpers import clean_env
    except ImportError:
        raise UserError('--slurm needs submitit; pip install "lengthgen[slurm]"') from None
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise UserError("--slurm: there is no sbatch here; run it on the cluster's login node")
    folder = (root / ".slurm").absolute()
    executor = submitit.SlurmExecutor(folder, max_num_timeout=MAX_REQUEUES)
    executor.update_parameters(**options.sbatch, array_parallelism=options.parallel or len(points))
    kept = {k: v for k, v in os.environ.items() if k == "SLURM_CONF" or k.startswith("SBATCH_")}
    try:
        for made in (folder, *(point.run_dir for point in points)):
            made.mkdir(parents=True, exist_ok=True)
        with clean_env():  # of a Slurm job or a torchrun that this process itself is in
            os.environ.update(kept)
            jobs = executor.submit_array([Task.of(point, options) for point in points])
        for point, job in zip(points, jobs, strict=True):
            record = {"job": str(job.job_id), "log": str(job.paths.stderr)}
            (point.run_dir / "slurm.json").write_text(json.dumps(record))
    except FailedJobError as error:
        refused = re.findall(r"^sbatch: error: (.+)", str(error), re.MULTILINE) or [str(error)]
        raise UserError(f"--slurm: Slurm refused the sweep: {'; '.join(refused)}") from None
    except OSError as error:
        raise UserError(
            f"runtime.root: cannot write {error.filename} ({error.strerror}); "
            "give runtime.root=FOLDER, one that all nodes see"
        ) from None
    array = str(jobs[0].job_id).partition("_")[0]
    say(
        f"submitted {len(jobs)} points as job {array}: squeue -j {array} shows them, "
        f"scancel {array} ends them with a checkpoint, their logs are {folder}/{array}_*"
    )


@dataclass
class Task:
    """What a job calls: `lengthgen train` of a point in a process of its own; submitit pickles it.

    Before the time limit submitit calls `checkpoint` and requeues the job. So does the task itself
    where a preempted job has time left, which Slurm would not start again.
    """

    arguments: tuple[str, ...]

    @staticmethod
    def of(point: "Point", options: Options) -> "Task":
        """Returns the task of a point; what depends on the machine was decided where it is made."""
        words = [*point.arguments, f"train.precision={point.config.train.precision}"]
        if options.cpus is not None and point.config.runtime.threads is None:
            words.append(f"runtime.threads={max(1, options.cpus // (options.gpus or 1))}")
        if options.gpus is not None and options.gpus > 1:
            words += ["--gpus", str(options.gpus)]
        return Task(tuple(words))

    def __call__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-m", "lengthgen", *self.arguments])
        while self._process.poll() is None:  # not wait(): a signal's handler waits, too
            time.sleep(0.2)
        code = self._process.returncode
        if abs(code) % 128 == signal.SIGUSR2:
            time.sleep(SECONDS_OF_GRACE)  # submitit has the signal too, and ends this process
        if code == 128 + signal.SIGTERM and _is_preempted():
            signal.raise_signal(signal.SIGUSR2)
        if code:
            sys.exit(code if code > 0 else 128 - code)

    def checkpoint(self) -> "DelayedSubmission":
        """Stops the run with a checkpoint; returns what submitit runs once the job starts again."""
        from submitit.helpers import DelayedSubmission

        if self._process.poll() is None:
            self._process.terminate()
        while self._process.poll() is None:
            time.sleep(0.1)
        return DelayedSubmission(Task(self.arguments))


def _is_preempted() -> bool:
    """True if Slurm has ended this job in a partition's GraceTime; else it requeues the job itself.

    A job that is cancelled is completing by now.
    """
    job = f"--jobs={os.environ['SLURM_JOB_ID']}"
    command = ["squeue", "--noheader", job, "--Format=State:20,PreemptTime:30"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    state, preempted, *_ = [*listed.split(), "", ""]
    return state in ("RUNNING", "SIGNALING") and preempted not in ("", "N/A")


class Job(NamedTuple):
    """The Slurm job that owns a point, or owned it: without a state once Slurm has ended it."""

    id: str
    log: str
    state: Literal["queued", "running"] | None = None
    reason: str | None = None


def jobs_of(points: Sequence["Point"]) -> dict[str, Job]:
    """Returns the job of each point that was ever submitted, by run id, with one call of squeue.

    Raises UserError if Slurm does not answer: a job may run that a second one would disturb.
    """
    known: dict[str, Job] = {}
    for point in points:
        path = point.run_dir / "slurm.json"
        if path.is_file():
            record = json.loads(path.read_text())
            known[point.run_id] = Job(record["job"], record["log"])
    if not known or shutil.which("squeue") is None:  # runs that were copied from a cluster
        return known
    arrays = ",".join(sorted({job.id.partition("_")[0] for job in known.values()}))
    command = ["squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%r"]
    asked = subprocess.run(
        [*command, f"--jobs={arrays}"],
        capture_output=True,
        text=True,
        timeout=SECONDS_FOR_SQUEUE,
        check=False,
    )
    if asked.returncode and "Invalid job id" not in asked.stderr:  # of jobs that ended long ago
        raise UserError(f"squeue: {asked.stderr.strip()}; run the command again when it answers")
    listed = dict(line.split("|", 1) for line in asked.stdout.splitlines())
    return {key: _listed(job, listed.get(job.id, "|")) for key, job in known.items()}


def _listed(job: Job, line: str) -> Job:
    """Returns a job with the state and the reason that squeue lists of it."""
    state, _, reason = line.partition("|")
    if state in WAITING:
        return job._replace(state="queued", reason=reason)
    if state in AT_WORK:
        return job._replace(state="running", reason=f"job {job.id}")
    return job
