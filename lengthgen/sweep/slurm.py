"""A sweep on a Slurm cluster: the options of a job array, its submission, its tasks, its jobs.

states.py finds failed jobs, from `queue` and the run directories.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from lengthgen.config.sections import Section, validate
from lengthgen.errors import Say, UserError
from lengthgen.files import Unreadable, replace_file
from lengthgen.runs import signals

if TYPE_CHECKING:  # a task of Slurm is to handle signals soon after its start
    from submitit.helpers import DelayedSubmission

    from lengthgen.sweep.grid import Point

SECONDS_OF_GRACE = 120  # a step and a checkpoint, between Slurm's signal and its time limit
SECONDS_UNTIL_KILLED = 3600  # by Slurm, which has sent SIGTERM
MAX_REQUEUES = 100  # at the time limit of a job; a run that never advances ends then
SECONDS_TO_ANSWER = 60
ENDED = "COMPLETED CANCELLED FAILED TIMEOUT PREEMPTED NODE_FAIL OUT_OF_MEMORY BOOT_FAIL DEADLINE"


def _minutes(value: object) -> object:
    """Returns the minutes of H:MM:SS or D-HH:MM:SS, seconds rounded up; other values unchanged."""
    parts = re.fullmatch(r"(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)", str(value))
    if parts is None:
        return value
    days, hours, minutes, seconds = (int(group or 0) for group in parts.groups())
    return (days * 24 + hours) * 60 + minutes + (seconds > 0)


PositiveCount = Annotated[int, Field(gt=0)]
FORMATS = {"time": " (minutes, H:MM:SS or D-HH:MM:SS)", "mem": " (in GB, such as mem=4)"}


class Options(Section):
    """What --slurm requests for each point, on one node; None leaves it to the cluster."""

    time: Annotated[PositiveCount, BeforeValidator(_minutes)]  # minutes
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gpus: PositiveCount | None = None  # each with a process of its own, by torchrun
    cpus: PositiveCount | None = None
    mem: PositiveCount | None = None  # GB
    parallel: PositiveCount | None = None  # points that run at the same time

    @property
    def sbatch(self) -> dict[str, Any]:
        """The parameters of submitit's Slurm executor."""
        grace = min(SECONDS_OF_GRACE, self.time * 15)  # a quarter of a short limit
        parameters = {
            **self.model_dump(include={"time", "partition", "account", "qos", "constraint"}),
            "job_name": "lengthgen",
            "gpus_per_node": self.gpus,
            "cpus_per_task": self.cpus,
            "mem": self.mem and f"{self.mem}GB",
            # srun of Slurm 22.05 and later no longer takes cpus from sbatch. export: for submitit's
            # own variable, also where SBATCH_EXPORT=NONE is the rule.
            "srun_args": ["--export=ALL", *([f"--cpus-per-task={self.cpus}"] * bool(self.cpus))],
            # requeue: even where JobRequeue=0 is the default
            "additional_parameters": {"signal": f"USR2@{grace}", "requeue": True},
        }
        return {key: value for key, value in parameters.items() if value is not None}


def options(text: str) -> Options:
    """Reads partition=main,gpus=2,time=4:00:00 and the like. Raises UserError for a mistake."""
    words = [word.partition("=") for word in text.split(",") if word.strip()]
    given = {key.strip(): value.strip() for key, _, value in words}
    try:
        return validate(Options, given)
    except UserError as error:
        form = FORMATS.get(str(error).partition(":")[0], "")
        raise UserError(f"--slurm: {error}{form}") from None


class SlurmJob(Section):
    """The job that a point was submitted as; slurm.json in its run directory."""

    id: str
    log: Path


def job_of(run_dir: Path) -> SlurmJob | None:
    """Returns the job that owns a run directory, if one does or did.

    Raises UserError for a record that is damaged or cannot be read: a job may run that a second one
    would disturb.
    """
    path = run_dir / "slurm.json"
    try:
        return SlurmJob.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Unreadable(path, error) from None
    except ValueError:
        why = "not the record of a Slurm job; restore it, or remove it if no job trains this run"
        raise UserError(f"{path}: {why}") from None


def check_available() -> None:
    """Raises UserError where nothing can be submitted, which is told before text is prepared."""
    if find_spec("submitit") is None:
        raise UserError('--slurm needs submitit; pip install "lengthgen[slurm]"')
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise UserError("--slurm: there is no sbatch here; run it on the cluster's login node")


def submit(points: Sequence["Point"], options: Options, *, root: Path, say: Say) -> None:
    """Submits all points as job arrays, and writes into each run directory which job owns it.

    `check_available` comes first.
    """
    import submitit
    from submitit.core.utils import FailedJobError
    from submitit.helpers import clean_env

    folder = (root / ".slurm").absolute()
    kept = {k: v for k, v in os.environ.items() if k == "SLURM_CONF" or k.startswith("SBATCH_")}
    executor = submitit.SlurmExecutor(folder, max_num_timeout=MAX_REQUEUES)
    most = _largest_array()
    arrays = [points[i : i + most] for i in range(0, len(points), most)]
    parallel = max(1, options.parallel // len(arrays)) if options.parallel else most
    # wckey: submitit's own is refused where Slurm has a list of them.
    executor.update_parameters(**options.sbatch, array_parallelism=parallel, wckey=None)
    for array in arrays:
        with signals.held_back():  # a job without a record would be submitted again
            try:
                with clean_env():  # of a Slurm job or a torchrun that this process itself is in
                    os.environ.update(kept)
                    jobs = executor.submit_array([ArrayTask.of(point, options) for point in array])
            except FailedJobError as error:
                refused = re.findall(r"^sbatch: error: (.+)", str(error), re.M) or [str(error)]
                raise UserError(f"--slurm: Slurm refused the sweep: {'; '.join(refused)}") from None
            id = str(jobs[0].job_id).partition("_")[0]
            say(
                f"submitted {len(jobs)} points as job {id}: squeue -j {id} shows them, scancel "
                f"{id} ends them with a checkpoint, their logs are {folder}/{id}_*"
            )
            for point, job in zip(array, jobs, strict=True):
                record = SlurmJob(id=str(job.job_id), log=job.paths.stderr)
                replace_file(point.run_dir / "slurm.json", record.model_dump_json().encode())


def _largest_array() -> int:
    """Returns how many jobs an array of this cluster may have: indices are below MaxArraySize."""
    shown = _asked("scontrol", "show", "config").stdout
    return int((re.findall(r"^MaxArraySize\s*=\s*(\d+)", shown, re.MULTILINE) or ["1001"])[0])


def _asked(*command: str) -> subprocess.CompletedProcess[str]:
    """Returns how a command of Slurm ended. Raises UserError if it does not end in time."""
    seconds = SECONDS_TO_ANSWER
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        why = f"no answer within {seconds} seconds; run the command again when it answers"
        raise UserError(f"{command[0]}: {why}") from None


@dataclass
class ArrayTask:
    """What a job calls: `lengthgen train` of a point in a process of its own; submitit pickles it.

    Before the time limit submitit calls `checkpoint` and requeues the job.
    """

    arguments: tuple[str, ...]

    @staticmethod
    def of(point: "Point", options: Options) -> "ArrayTask":
        """Returns the task of a point; what depends on the machine was decided where it is made."""
        words = [*point.submission, f"train.precision={point.config.train.precision}"]
        if options.cpus is not None and point.config.runtime.threads is None:
            words.append(f"runtime.threads={max(1, options.cpus // (options.gpus or 1))}")
        if options.gpus is not None and options.gpus > 1:
            words += ["--gpus", str(options.gpus)]
        return ArrayTask(tuple(words))

    def __call__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-P", "-m", "lengthgen", *self.arguments])
        with signals.handled([signal.SIGTERM], self._pass_on):  # which submitit ignores
            code = self._wait()
        if abs(code) % 128 in (signal.SIGUSR2, signal.SIGTERM):
            # submitit has the first signal, too, and requeues the job. After the second, Slurm ends
            # a job that is cancelled and requeues one that is preempted, unless it ends by itself.
            time.sleep(SECONDS_UNTIL_KILLED)
        if code:
            sys.exit(code if code > 0 else 128 - code)

    def _pass_on(self, *_: object) -> None:
        """Stops the run with a checkpoint: where jobs are cgroups Slurm signals the task alone."""
        if self._process.poll() is None:
            self._process.terminate()

    def checkpoint(self) -> "DelayedSubmission":
        """Stops the run with a checkpoint; returns what submitit runs once the job starts again."""
        from submitit.helpers import DelayedSubmission

        self._pass_on()
        self._wait()
        return DelayedSubmission(ArrayTask(self.arguments))

    def _wait(self) -> int:
        while (code := self._process.poll()) is None:  # not wait(): a signal's handler waits, too
            time.sleep(0.1)
        return code


def queue(jobs: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Returns state and reason of the jobs that have not ended, by id, with one call of squeue.

    Raises UserError if Slurm does not answer: a job may run that a second one would disturb.
    """
    arrays = ",".join(sorted({id.partition("_")[0] for id in jobs}))
    if not arrays or shutil.which("squeue") is None:  # runs that were copied from a cluster
        return {}
    columns = ["--noheader", "--array", "--states=all", "--format=%i|%T|%r"]
    asked = _asked("squeue", *columns, f"--jobs={arrays}")
    if asked.returncode and "Invalid job id" not in asked.stderr:  # of jobs that ended long ago
        raise UserError(f"squeue: {asked.stderr.strip()}; run the command again when it answers")
    listed = (line.split("|", 2) for line in asked.stdout.splitlines())
    return {id: (state, reason) for id, state, reason in listed if state not in ENDED.split()}
