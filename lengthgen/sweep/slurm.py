"""Points of a sweep as one Slurm job array: how it is submitted, and what its tasks do."""

import os
import re
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Literal

from lengthgen.errors import Stopped, UserError
from lengthgen.sweep.slurm_options import Options

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission

    from lengthgen.sweep.points import Point

# Only what a task needs before it listens to signals is imported at module level: torch is not.

TIME_LIMITS = 100  # that a job may reach and be put back; a run that never advances ends then
BEGINNING = "lengthgen: begins in job "  # of what a start writes: a log holds all of them


# Submitting


def submit(
    points: Sequence["Point"], options: Options, *, root: Path, say: Callable[[str], None]
) -> None:
    """Submits all points as one job array, and writes into each run directory which job owns it.

    Raises UserError if that is not possible here, or if Slurm refuses.
    """
    try:
        import submitit
        from submitit.core.utils import FailedJobError
    except ImportError:
        raise UserError('--slurm needs submitit; pip install "lengthgen[slurm]"') from None
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise UserError("--slurm: there is no sbatch here; run it on the cluster's login node")
    from lengthgen.sweep.slurm_jobs import record

    folder = (root / ".slurm").absolute()
    tasks = [Task.of(point) for point in points]
    executor = submitit.SlurmExecutor(folder, max_num_timeout=TIME_LIMITS)
    executor.update_parameters(**options.sbatch, array_parallelism=options.parallel or len(points))
    try:
        for made in (folder, *(point.run_dir for point in points)):
            made.mkdir(parents=True, exist_ok=True)
        with _user_environment():
            jobs = [str(job.job_id) for job in executor.submit_array(tasks)]
    except FailedJobError as error:
        said = re.findall(r"^sbatch: error: (.+)", str(error), re.MULTILINE) or [str(error)]
        raise UserError(f"--slurm: Slurm refused the sweep: {'; '.join(said)}") from None
    except OSError as error:
        raise UserError(
            f"runtime.root: cannot write {error.filename} ({error.strerror}); "
            "give runtime.root=FOLDER, one that all nodes see"
        ) from None
    array = jobs[0].partition("_")[0]
    try:
        for point, job in zip(points, jobs, strict=True):
            record(point, job=job, logs=folder)
    except BaseException:  # nobody would know of these jobs, and a second sweep would submit anew
        subprocess.run(["scancel", array], check=False)
        raise
    say(
        f"submitted {len(jobs)} points as job {array}: squeue -j {array} shows them, "
        f"scancel {array} ends them with a checkpoint, their logs are {folder}/{array}_*"
    )


@contextmanager
def _user_environment() -> Generator[None]:
    """Hides what Slurm and torchrun tell this process of its own job, and keeps users' settings."""
    from submitit.helpers import clean_env

    kept = {k: v for k, v in os.environ.items() if k == "SLURM_CONF" or k.startswith("SBATCH_")}
    with clean_env():
        os.environ.update(kept)
        yield


# Within the job


@dataclass(frozen=True, kw_only=True)
class Task:
    """What each process of a job calls; submitit pickles it.

    A stop with a checkpoint puts the job back into the queue where Slurm does not do that itself:
    before a time limit (SIGUSR2), and while a preempted job has time left (SIGTERM). The main
    process speaks for all; the others just end, since their exit code would kill it.
    """

    run_id: str
    overrides: tuple[str, ...]
    config_dir: Path | None
    plugins: tuple[Path, ...]
    words: tuple[str, ...]

    @staticmethod
    def of(point: "Point") -> "Task":
        # A node's processor may not be that of this machine, which decided about `auto`.
        pinned: tuple[str, ...] = (f"train.precision={point.config.train.precision}",)
        if any(word.startswith("train.precision=") for word in point.overrides):
            pinned = ()
        return Task(
            words=(*point.words, *pinned),
            run_id=point.run_id,
            overrides=(*point.overrides, *pinned),
            config_dir=point.config_dir,
            plugins=point.plugins,
        )

    def __call__(self) -> None:
        from submitit.core.job_environment import JobEnvironment
        from submitit.helpers import TorchDistributedEnvironment

        job = JobEnvironment().job_id
        # A process takes the GPU of its local rank; which are visible is Slurm's decision.
        place = TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)
        _write(f"{BEGINNING}{job}: process {place.rank} of {place.world_size}")
        put_back = signal.getsignal(signal.SIGUSR2)  # submitit's: put back, and exit
        assert callable(put_back), f"submitit does not listen to SIGUSR2: {put_back}"
        is_main = place.rank == 0
        signals = _Signals(job, is_main=is_main, alone=place.world_size == 1)
        _listen(signals)
        try:
            self._train()
        except (Stopped, KeyboardInterrupt) as stopped:
            _listen(signal.SIG_IGN)
            code = stopped.exit_code if isinstance(stopped, Stopped) else 128 + signals.received
            _write(str(stopped))
            if is_main:
                if code == 128 + signal.SIGUSR2 or _outlook(job) == "preempted":
                    put_back(code - 128, None)
                sys.exit(code)
        except UserError as error:
            _write(f"error: {error}")
            sys.exit(2)
        except Exception as error:
            traceback.print_exc()
            _write(f"error: {type(error).__name__}: {error}")
            sys.exit(1)

    def checkpoint(self) -> "DelayedSubmission":
        """Says to submitit what is to be done after the job was put back: the same."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def _train(self) -> None:
        from lengthgen import pipeline
        from lengthgen.config import schema

        sys.argv = ["lengthgen", *self.words]  # what env.json says of the run, and list runs
        built = schema.from_words(self.overrides, config_dir=self.config_dir, plugins=self.plugins)
        if built.run_id != self.run_id:
            raise UserError(
                f"{self.run_id}: a file of its configuration was changed after it was submitted, "
                f"which makes it {built.run_id}; run the same sweep again"
            )
        cpus = os.environ.get("SLURM_CPUS_PER_TASK")
        if built.runtime.threads is None and cpus is not None:
            runtime = built.runtime.model_copy(update={"threads": int(cpus)})
            built = built.model_copy(update={"runtime": runtime})
        pipeline.train(pipeline.validate(built))


class _Signals:
    """What SIGTERM and SIGUSR2 do outside of training, which has its own way to stop.

    KeyboardInterrupt, since this may come anywhere: matplotlib, for one, imports parts of itself
    under `except Exception`, and the job went on to its time limit.
    """

    def __init__(self, job: str, *, is_main: bool, alone: bool) -> None:
        self.received = 0
        self._job = job
        self._is_main = is_main
        self._alone = alone

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self._is_main:  # the main process ends the run; Slurm then kills what is left
            return
        if number == signal.SIGTERM and not self._alone and _outlook(self._job) == "runs on":
            return  # srun does this when another process fails: the failure is the news, not this
        self.received = number
        raise KeyboardInterrupt(
            f"stopped by {signal.Signals(number).name} outside of training; "
            "the same command continues"
        )


def _listen(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for kind in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(kind, handler)


def _outlook(job: str) -> Literal["runs on", "preempted", "ends"]:
    """Returns what Slurm has in mind for this job: after a SIGTERM only Slurm knows.

    A preempted job that ends in its partition's GraceTime counts as failed: it must ask for its
    place in the queue. Without GraceTime, and when it is cancelled, it is completing by now.
    """
    asked = subprocess.run(
        ["squeue", "--noheader", f"--jobs={job}", "--Format=State:20,PreemptTime:30"],
        capture_output=True,
        text=True,
        check=False,
    )
    state, preempted, *_ = [*asked.stdout.split(), "", ""]
    if state not in ("RUNNING", "SIGNALING"):
        return "ends"
    return "runs on" if preempted == "N/A" else "preempted"


def _write(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
