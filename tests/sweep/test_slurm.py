"""Sweeps on a real Slurm: a job array, the time limit, preemption, cancellation.

Runs on Slurm are compared with the same runs in this process.
"""

import json
from collections.abc import Generator
from pathlib import Path

import pytest
import slurm_cluster
from commands import until
from slurm_cluster import Cluster, state_of, swept
from trained import assert_same_bits

from lengthgen import pipeline
from lengthgen.errors import UserError
from lengthgen.sweep import slurm
from lengthgen.sweep.grid import Point
from lengthgen.sweep.states import PointState, pending, states_of

pytestmark = pytest.mark.slow
# Some seconds: a signal, or Slurm, comes in the middle of training.
LONG = ("seed=2", "train.tokens=64000")


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


def submitted(
    root: Path, cache: Path, *overrides: str, options: str = "time=5,cpus=1"
) -> list[Point]:
    """Returns points after their submission."""
    points = swept(root, cache, *overrides)
    slurm.submit(points, slurm.options(options), root=root, say=lambda message: None)
    return points


def locally(root: Path, cache: Path, *overrides: str) -> Path:
    """Returns the directory of a run that nothing interrupted, in this process."""
    [point] = swept(root, cache, "runtime.threads=1", *overrides)
    return pipeline.train(point.config)


@pytest.fixture(scope="session")
def long_alone(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the long run that nothing interrupted."""
    return locally(tmp_path_factory.mktemp("alone"), cache, *LONG)


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
    return json.loads((point.run_dir / "slurm.json").read_text())["id"]


def steps_of(point: Point) -> int:
    log = point.run_dir / "train.jsonl"
    return log.read_text().count("\n") if log.exists() else 0


def test_a_sweep_is_one_job_array_whose_points_end_as_on_this_machine(
    cluster: Cluster, tmp_path: Path, cache: Path
) -> None:
    good, diverging = submitted(tmp_path / "swept", cache, "train.lr=1e-3,1e15")
    assert {state_of(point).state for point in (good, diverging)} <= {"queued", "running"}
    assert pending([good, diverging], states_of([good, diverging])) == []
    finished(cluster, good, diverging)
    assert job_of(good).partition("_")[0] == job_of(diverging).partition("_")[0]
    assert state_of(good) == PointState("done")
    assert state_of(diverging).state == "diverged"
    assert_same_bits(good.run_dir, locally(tmp_path / "alone", cache, "train.lr=1e-3"))


def test_a_job_at_its_time_limit_stops_with_a_checkpoint_and_is_put_back(
    cluster: Cluster, tmp_path: Path, cache: Path, long_alone: Path
) -> None:
    (point,) = submitted(tmp_path, cache, *LONG)
    until(lambda: steps_of(point) > 5)
    cluster.ask("scancel", "--signal=USR2", f"{job_of(point)}.0")  # as Slurm does before the limit
    finished(cluster, point)
    assert cluster.of_job(job_of(point), "Restarts") == "1"
    assert state_of(point) == PointState("done")
    assert_same_bits(point.run_dir, long_alone)


def test_a_preempted_job_is_put_back_and_goes_on(
    cluster: Cluster, tmp_path: Path, cache: Path, long_alone: Path
) -> None:
    (point,) = submitted(tmp_path, cache, *LONG, options="time=5,cpus=1,partition=graced")
    until(lambda: steps_of(point) > 5)
    urgent = ["sbatch", "--partition=urgent", "--exclusive", "--nodes=2", "--time=1"]
    cluster.ask(*urgent, "--output=/dev/null", "--wrap=true")
    finished(cluster, point)
    assert cluster.of_job(job_of(point), "Restarts") == "1"
    assert state_of(point) == PointState("done")
    assert_same_bits(point.run_dir, long_alone)


def test_a_cancelled_job_stops_with_a_checkpoint_and_is_not_put_back(
    cluster: Cluster, tmp_path: Path, cache: Path
) -> None:
    (point,) = submitted(tmp_path, cache, "train.tokens=1280000")
    until(lambda: steps_of(point) > 5)
    cluster.ask("scancel", job_of(point))
    finished(cluster, point)
    assert cluster.of_job(job_of(point), "JobState") == "CANCELLED"
    assert state_of(point).state == "stopped"
    assert list((point.run_dir / "checkpoints").glob("step-*"))
    assert pending([point], states_of([point])) == [point]


def test_points_beyond_the_largest_array_are_a_second_one_and_a_cancelled_job_is_left_to_do(
    cluster: Cluster, tmp_path: Path, cache: Path
) -> None:
    points = submitted(tmp_path, cache, "seed=1,2,3", options="time=5,partition=closed")
    arrays = {job_of(point).partition("_")[0] for point in points}
    assert len(arrays) == 2  # MaxArraySize=2
    assert {*states_of(points).values()} == {PointState("queued", "PartitionDown")}
    assert pending(points, states_of(points)) == []
    cluster.ask("scancel", *arrays)
    until(lambda: state_of(points[0]).state != "queued")
    assert state_of(points[0]).state == "failed"
    assert pending(points[:1], states_of(points[:1])) == points[:1]


def test_what_slurm_refuses_is_one_line_with_its_reason_and_leaves_no_run(
    cluster: Cluster, tmp_path: Path, cache: Path
) -> None:
    with pytest.raises(UserError, match=r"^--slurm: Slurm refused the sweep: .*partition"):
        submitted(tmp_path, cache, options="time=5,partition=nowhere")
    assert [path.name for path in tmp_path.iterdir()] == [".slurm"]
