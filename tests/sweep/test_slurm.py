"""Sweeps on a real Slurm: job arrays, signals, preemption, dead processes, and what is said of it.

Runs on Slurm are compared with the same runs in this process.
"""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import NamedTuple

import commands
import pytest
import slurm_cluster
import torch
from repository import PYTHONPATH
from slurm_cluster import Cluster, program, read, swept
from small import SMALL
from trained import assert_same_bits, rows_of, weights_of

from lengthgen import pipeline
from lengthgen.errors import UserError
from lengthgen.runs import directory
from lengthgen.sweep import slurm, slurm_jobs
from lengthgen.sweep.grid import Point, points
from lengthgen.sweep.states import pending, states_of

pytestmark = pytest.mark.slow
# Some seconds: a signal, or Slurm, comes in the middle of training.
LONG = ("seed=2", "train.tokens=128000")
SECONDS = 240  # that a test waits for a cluster which shares its machine with other tests


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[Cluster]:
    reason = slurm_cluster.lacking()
    if reason is not None:
        pytest.skip(f"no Slurm cluster can be started: {reason}")
    folder = tmp_path_factory.mktemp("slurm")
    with slurm_cluster.started(folder) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(cluster.conf))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield cluster


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A token cache that all runs of this file share."""
    return tmp_path_factory.mktemp("cache")


def submitted(
    root: Path,
    cache: Path,
    *overrides: str,
    options: str = "time=5,cpus=1",
    plugins: Sequence[Path] = (),
) -> Point:
    """Returns a point after its submission."""
    [point] = swept(root, cache, *overrides, plugins=plugins)
    slurm.submit([point], slurm.options(options), root=root, say=lambda message: None)
    return point


def locally(root: Path, cache: Path, *overrides: str, plugins: Sequence[Path] = ()) -> Path:
    """Returns the directory of a run that nothing interrupted, in this process."""
    [point] = swept(root, cache, "runtime.threads=1", *overrides, plugins=plugins)
    return pipeline.train(point.config)


@pytest.fixture(scope="session")
def long_alone(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the long run that nothing interrupted."""
    return locally(tmp_path_factory.mktemp("alone"), cache, *LONG)


def until(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < end, "it does not come to that"
        time.sleep(0.02)


def finished(cluster: Cluster, *submitted: Point) -> None:
    """Waits until Slurm has nothing to do for the points.

    A job that is put back into the queue is missing in squeue for a moment; scontrol shows it.
    """
    jobs = [job_of(point) for point in submitted]
    arrays = {job.partition("_")[0] for job in jobs}
    waiting = {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED", "SUSPENDED"}

    def is_over() -> bool:
        if cluster.ask("squeue", "--noheader", "--jobs", f"1,{','.join(arrays)}"):
            return False
        return waiting.isdisjoint(cluster.of_job(job, "JobState") for job in jobs)

    until(is_over)


def job_of(point: Point) -> str:
    return slurm_jobs.jobs([point])[point.run_id].id


def state_of(point: Point) -> tuple[str, str | None]:
    return states_of([point])[point.run_id]


def steps_of(point: Point) -> int:
    log = point.run_dir / "train.jsonl"
    return log.read_text().count("\n") if log.exists() else 0


def log_of(point: Point, rank: int = 0) -> str:
    log = point.run_dir.parent / ".slurm" / f"{job_of(point)}_{rank}_log.err"
    return log.read_text()


# A sweep


PART = """
import time
from pathlib import Path
from lengthgen.schemes import Part

class Hold(Part):
    "Waits for as long as there is a file, but for the call of 8 tokens before the training."
    def __init__(self, shape, *, path: str):
        super().__init__(shape)
        self.path = Path(path)

    def bias(self, c):
        while self.path.exists() and c.k_pos.shape[-1] != 8:
            time.sleep(0.02)
"""
EARLY = """
import os, signal
if "SLURM_PROCID" in os.environ and "SLURM_RESTART_COUNT" not in os.environ:
    try:
        os.kill(os.getpid(), signal.SIGUSR2)
    except Exception:
        pass
"""


def held_evaluation(folder: Path) -> list[str]:
    """Returns overrides of a run that writes rows, and then waits for folder/hold to go."""
    hold = folder / "hold"
    hold.touch()
    return [f"+scheme.variants.held.hold.path='{hold}'", "eval.variants=[held]"]


@pytest.fixture(scope="session")
def array(
    cluster: Cluster, cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Point]:
    """A finished sweep: a good point, one warned in training, one warned before by a plugin that
    swallows exceptions, and three that cannot succeed: the last is edited after its submission.
    """
    root = tmp_path_factory.mktemp("array")
    names = ("good", "warned", "early", "diverging", "edited", "pathless")
    early, edited = root / "early.py", root / "edited.py"
    early.write_text(PART + EARLY)
    edited.write_text(PART)
    of_files = [word for word in SMALL if not word.startswith("corpus")]
    nowhere = ["corpus=files", f"corpus.path={root}/nothing", f"runtime.root={root}"]
    asked = [
        *swept(root, cache),
        *swept(root, cache, *LONG),
        *swept(root, cache, plugins=[early]),
        *swept(root, cache, "train.lr=1e15"),
        *swept(root, cache, plugins=[edited]),
        *points([*of_files, *nowhere], config_dir=None, plugins=[]),
    ]
    slurm.submit(asked, slurm.options("time=5,cpus=1"), root=root, say=lambda message: None)
    edited.write_text(PART + "# edited")
    until(lambda: steps_of(asked[1]) > 5)
    # To the step: while a job array has pending tasks, scancel repeats a signal to one of its jobs,
    # and kills it at its next start, which does not listen to signals yet.
    cluster.ask("scancel", "--signal=USR2", f"{job_of(asked[1])}.0")
    finished(cluster, *asked)
    return dict(zip(names, asked, strict=True))


def test_a_point_on_slurm_ends_with_the_bits_of_a_local_run(
    array: dict[str, Point], tmp_path: Path, cache: Path
) -> None:
    assert state_of(array["good"]) == ("done", None)
    assert_same_bits(array["good"].run_dir, locally(tmp_path, cache))


def test_a_point_that_slurm_warns_ends_with_the_bits_of_a_local_run(
    array: dict[str, Point], long_alone: Path
) -> None:
    assert state_of(array["warned"]) == ("done", None)
    assert_same_bits(array["warned"].run_dir, long_alone)


@pytest.mark.parametrize("name", ["good", "early"])
def test_a_run_on_slurm_is_listed_with_the_command_that_continues_it(
    array: dict[str, Point], name: str
) -> None:
    found = {one.run_id: one.command for one in directory.list_runs(array[name].run_dir.parent)}
    assert found[array[name].run_id] == array[name].command


def test_a_job_that_slurm_warns_stops_with_a_checkpoint_and_is_put_back(
    array: dict[str, Point], cluster: Cluster
) -> None:
    said = log_of(array["warned"])
    assert cluster.of_job(job_of(array["warned"]), "Restarts") == "1"
    stopped = said.index("stopped by SIGUSR2 after step")
    assert said.index("resuming after step") > stopped


def test_a_warning_before_training_puts_the_job_back_whatever_code_it_interrupts(
    array: dict[str, Point], cluster: Cluster
) -> None:
    assert "stopped by SIGUSR2 outside of training" in log_of(array["early"])
    assert cluster.of_job(job_of(array["early"]), "Restarts") == "1"
    assert state_of(array["early"]) == ("done", None)


@pytest.mark.parametrize(
    ("name", "state", "word"),
    [
        ("diverging", "diverged", "train.lr"),
        ("pathless", "failed", "corpus.path"),
        ("edited", "failed", "was changed after it was submitted"),
    ],
)
def test_a_point_that_fails_leaves_the_others_alone_and_says_why(
    array: dict[str, Point], cluster: Cluster, name: str, state: str, word: str
) -> None:
    found, reason = state_of(array[name])
    assert found == state
    assert word in str(reason)
    assert "Traceback" not in log_of(array[name])
    assert cluster.of_job(job_of(array[name]), "ExitCode") == "2:0"
    assert cluster.of_job(job_of(array[name]), "Restarts") == "0"


def test_a_sweep_is_one_job_array(array: dict[str, Point]) -> None:
    jobs = [job_of(point) for point in array.values()]
    assert len({job.partition("_")[0] for job in jobs}) == 1
    assert sorted(job.partition("_")[2] for job in jobs) == [str(i) for i in range(len(array))]


def test_a_process_takes_as_many_threads_as_it_was_given_cpus(array: dict[str, Point]) -> None:
    assert array["good"].config.runtime.threads is None
    assert directory.load_config(array["good"].run_dir).runtime.threads == 1


# Two nodes


STRAY = """
import os, signal
if "SLURM_PROCID" in os.environ:
    main = os.environ["SLURM_PROCID"] == "0"
    os.kill(os.getpid(), signal.SIGTERM if main else signal.SIGUSR2)
"""


class TwoNodes(NamedTuple):
    """A finished run on two nodes, warned in training and in evaluation, and the same run here.

    `begun` is what eval.jsonl held at the second warning, and held still until after it. A plugin
    sends each start two signals that are not the run's: srun's SIGTERM, as when another process
    fails, to the main process, and a warning to the other, which the main process answers.
    """

    point: Point
    begun: str
    alone: Path


@pytest.fixture(scope="session")
def two_nodes(cluster: Cluster, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> TwoNodes:
    root, here = tmp_path_factory.mktemp("two"), tmp_path_factory.mktemp("one")
    stray = root / "stray.py"
    stray.write_text(PART + STRAY)
    overrides = held_evaluation(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MASTER_PORT", "that of another job")  # which a sweep may be started from
        options = "time=5,nodes=2,cpus=1"
        point = submitted(root, cache, *overrides, options=options, plugins=[stray])
    until(lambda: steps_of(point) > 5)
    cluster.ask("scancel", "--signal=USR2", job_of(point))
    until(lambda: "stopped by SIGUSR2 after step" in log_of(point))
    until(lambda: state_of(point)[0] == "queued")
    until(lambda: (point.run_dir / "eval.jsonl").exists())
    begun = (point.run_dir / "eval.jsonl").read_text()
    cluster.ask("scancel", "--signal=USR2", job_of(point))
    until(lambda: "stopped by SIGUSR2 outside of training" in log_of(point))
    (root / "hold").unlink()
    finished(cluster, point)
    return TwoNodes(point, begun, locally(here, cache, *overrides, plugins=[stray]))


def test_two_nodes_train_as_one_process_does(two_nodes: TwoNodes) -> None:
    run_dir, alone = two_nodes.point.run_dir, two_nodes.alone
    assert "process 1 of 2" in log_of(two_nodes.point, rank=1)
    for name, weight in weights_of(alone).items():
        # Sums over two processes round otherwise than one sum.
        torch.testing.assert_close(weights_of(run_dir)[name], weight, rtol=0, atol=2e-5)
    trained = rows_of(run_dir / "train.jsonl")
    for one, other in zip(trained, rows_of(alone / "train.jsonl"), strict=True):
        assert one["train/loss"] == pytest.approx(other["train/loss"], abs=1e-5)


def test_an_evaluation_that_is_warned_is_put_back_and_goes_on_where_it_was(
    two_nodes: TwoNodes,
) -> None:
    log = two_nodes.point.run_dir / "eval.jsonl"
    assert "stopped by SIGUSR2 outside of training" in log_of(two_nodes.point)
    assert log.read_text().startswith(two_nodes.begun)
    assert two_nodes.begun.count("\n") < len(rows_of(log))
    for one, other in zip(rows_of(log), rows_of(two_nodes.alone / "eval.jsonl"), strict=True):
        assert (one["length"], one["variant"]) == (other["length"], other["variant"])
        assert one["nats"] == pytest.approx(other["nats"], rel=1e-4)


def test_only_warnings_to_the_main_process_put_a_job_back(
    two_nodes: TwoNodes, cluster: Cluster
) -> None:
    assert cluster.of_job(job_of(two_nodes.point), "Restarts") == "2"
    assert state_of(two_nodes.point) == ("done", None)
    assert "stopped by SIGTERM" not in log_of(two_nodes.point)


def test_the_others_end_in_a_way_that_leaves_the_main_process_the_time_it_needs(
    two_nodes: TwoNodes,
) -> None:
    stopped = log_of(two_nodes.point).split(slurm_jobs.BEGINNING)[1]
    assert "stopped by SIGUSR2 after step" in stopped
    assert "task 1: Exited with exit code" not in stopped


# Signals


def test_a_preempted_job_with_time_left_is_put_back_with_a_checkpoint(
    cluster: Cluster, tmp_path: Path, cache: Path, long_alone: Path
) -> None:
    options = "time=5,cpus=1,partition=graced"
    point = submitted(tmp_path, cache, *LONG, options=options)
    until(lambda: steps_of(point) > 5)
    urgent = ["sbatch", "--partition=urgent", "--exclusive", "--nodes=2", "--time=1"]
    cluster.ask(*urgent, "--output=/dev/null", "--wrap=true")
    finished(cluster, point)
    assert "stopped by SIGTERM after step" in log_of(point)
    assert cluster.of_job(job_of(point), "Restarts") == "1"
    assert_same_bits(point.run_dir, long_alone)


def test_a_cancelled_job_stops_with_a_checkpoint_and_is_not_put_back(
    cluster: Cluster, tmp_path: Path, cache: Path
) -> None:
    point = submitted(tmp_path, cache, "train.tokens=1280000")
    until(lambda: steps_of(point) > 5)
    cluster.ask("scancel", job_of(point))
    finished(cluster, point)
    assert cluster.of_job(job_of(point), "JobState") == "CANCELLED"
    state, reason = state_of(point)
    assert state == "stopped"
    assert "stopped by SIGTERM after step" in str(reason)
    assert list((point.run_dir / "checkpoints").glob("step-*"))
    assert pending([point], states_of([point])) == [point]


REQUEUED_OFTEN = """
import os, signal, sys
from pathlib import Path
from submitit.core.job_environment import JobEnvironment, SignalHandler
from submitit.core.utils import DelayedSubmission
from slurm_cluster import swept
from lengthgen.sweep.slurm import Task

[point] = swept(Path("runs"), Path("cache"))
delayed, job = DelayedSubmission(Task.of(point)), JobEnvironment()
delayed.set_timeout(1, 0)  # minutes, and time limits that are left
handler = SignalHandler(job, job.paths, delayed)
signal.signal(signal.SIGUSR2, handler.checkpoint_and_try_requeue)
warned = []

def warn(event, given):
    if event == "open" and str(given[0]).endswith("config.yaml") and not warned:
        warned.append(event)
        os.kill(os.getpid(), signal.SIGUSR2)

sys.addaudithook(warn)
delayed.function()
"""


def test_a_job_that_is_not_requeued_any_more_says_so_and_what_to_do(tmp_path: Path) -> None:
    of_task = {"PROCID": 0, "LOCALID": 0, "NODEID": 0, "NTASKS": 1, "NNODES": 1, "JOB_ID": 7}
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("SLURM_")},
        **{f"SLURM_{key}": str(value) for key, value in of_task.items()},
        **{"SLURM_JOB_NODELIST": "localhost", "SUBMITIT_EXECUTOR": "slurm"},
        "SUBMITIT_FOLDER": str(tmp_path),
        "PYTHONPATH": PYTHONPATH,
    }
    ran = commands.run("-c", REQUEUED_OFTEN, cwd=tmp_path, env=environment)
    lines = ran.stderr.splitlines()
    assert any(line.startswith("stopped by SIGUSR2 outside of training") for line in lines)
    assert lines[-1].startswith(
        "error: not requeued: 100 times the job was, at its time limit; run "
    )
    assert ran.returncode == 128 + signal.SIGUSR2


# Processes that die


def test_a_hard_killed_job_is_told_from_one_that_runs(
    cluster: Cluster, tmp_path: Path, cache: Path
) -> None:
    point = submitted(tmp_path, cache, "train.tokens=1280000")
    until(lambda: steps_of(point) > 5)
    assert state_of(point) == ("running", None)
    os.kill(process_of(job_of(point), rank=0), signal.SIGKILL)
    finished(cluster, point)
    assert state_of(point) == ("killed", "process 0: Killed")
    assert pending([point], states_of([point])) == [point]


@pytest.mark.parametrize("work", ["train", "eval"])
def test_a_process_that_dies_ends_the_job_with_its_own_message(
    cluster: Cluster, tmp_path: Path, cache: Path, work: str
) -> None:
    plugin = tmp_path / "hold.py"
    plugin.write_text(PART)
    long = ["train.tokens=1280000"] if work == "train" else held_evaluation(tmp_path)
    options = "time=5,processes=2,cpus=1"
    point = submitted(tmp_path, cache, *long, options=options, plugins=[plugin])
    until(lambda: (point.run_dir / f"{work}.jsonl").exists())
    os.kill(process_of(job_of(point), rank=1), signal.SIGKILL)
    finished(cluster, point)
    assert cluster.of_job(job_of(point), "Restarts") == "0"
    state, reason = state_of(point)
    assert state in ("failed", "killed")  # the main process misses the other one, or is killed too
    assert reason == "process 1: Killed"


def process_of(job: str, *, rank: int) -> int:
    """Returns the id of a process of a job on this machine."""
    wanted = {f"SLURM_JOB_ID={job}".encode(), f"SLURM_PROCID={rank}".encode()}
    [found] = [
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if wanted <= set(read(folder / "environ").split(b"\0"))
        and read(folder / "cmdline").split(b"\0")[2:4] == [b"-m", b"submitit.core._submit"]
    ]
    return found


# Jobs that wait


@pytest.fixture
def waiting(cluster: Cluster, tmp_path: Path, cache: Path) -> Generator[list[Point]]:
    """Points whose jobs wait for a partition that is closed."""
    found = swept(tmp_path, cache, "seed=1,2")
    said: list[str] = []
    slurm.submit(found, slurm.options("time=5,partition=closed"), root=tmp_path, say=said.append)
    (tmp_path / "said").write_text("\n".join(said))
    yield found
    cluster.ask("scancel", job_of(found[0]).partition("_")[0])


def test_a_point_whose_job_waits_is_queued_for_slurms_reason_and_not_left_to_do(
    waiting: list[Point], tmp_path: Path, cache: Path
) -> None:
    asked = swept(tmp_path, cache, "seed=1,2,3")
    until(lambda: state_of(waiting[0])[1] is not None)  # Slurm's scheduler has looked at it
    states = states_of(asked)
    assert [states[point.run_id] for point in asked[:2]] == [("queued", "PartitionDown")] * 2
    assert pending(asked, states) == asked[2:]


def test_a_submission_says_its_job_how_to_watch_it_and_where_its_logs_are(
    waiting: list[Point], tmp_path: Path
) -> None:
    array = job_of(waiting[0]).partition("_")[0]
    said = (tmp_path / "said").read_text()
    assert said.startswith(f"submitted 2 points as job {array}:")
    for word in (f"squeue -j {array}", f"scancel {array}", f"{tmp_path}/.slurm/{array}_"):
        assert word in said


def test_a_point_whose_job_was_cancelled_before_it_began_is_left_to_do(
    waiting: list[Point], cluster: Cluster
) -> None:
    cluster.ask("scancel", job_of(waiting[0]))
    assert state_of(waiting[0]) == ("new", None)
    assert pending(waiting, states_of(waiting)) == waiting[:1]


def test_jobs_are_asked_for_no_more_than_once_however_many_points_there_are(
    waiting: list[Point], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "asked"
    program(tmp_path, "squeue", f'echo x >> {asked}; exec {shutil.which("squeue")} "$@"')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert {job.state for job in slurm_jobs.jobs(waiting).values()} == {"queued"}
    assert asked.read_text() == "x\n"


def test_a_submission_that_cannot_be_recorded_is_cancelled(
    cluster: Cluster, tmp_path: Path, cache: Path
) -> None:
    asked = swept(tmp_path, cache, "seed=1,2")
    (asked[1].run_dir / "slurm.json").mkdir(parents=True)
    with pytest.raises(UserError, match="cannot be written"):
        slurm.submit(asked, slurm.options("time=5,partition=closed"), root=tmp_path, say=print)
    job = json.loads((asked[0].run_dir / "slurm.json").read_text())["job"]
    assert cluster.of_job(job, "JobState") == "CANCELLED"


def test_a_sweep_that_slurm_refuses_says_its_reason(
    cluster: Cluster, tmp_path: Path, cache: Path
) -> None:
    asked = swept(tmp_path, cache)
    with pytest.raises(UserError, match="invalid partition specified: nowhere"):
        slurm.submit(asked, slurm.options("time=5,partition=nowhere"), root=tmp_path, say=print)
