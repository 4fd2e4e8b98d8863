"""Sweeps on a real Slurm: a job array, the time limit, preemption, cancellation.

Runs on Slurm are compared with the same runs in this process.
"""

import json
from collections.abc import Generator
from pathlib import Path

import pytest
import slurm_cluster
from commands import until
from repository import TELLING
from slurm_cluster import Cluster, state_of, swept
from trained import assert_same_bits

from lengthgen import pipeline
from lengthgen.errors import UserError
from lengthgen.sweep import slurm
from lengthgen.sweep.grid import Point
from lengthgen.sweep.states import PointState, pending, states_of

pytestmark = pytest.mark.slow
URGENT = "sbatch --partition=urgent --exclusive --nodes=2 --time=1 --output=/dev/null --wrap=true"


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
    points = swept(root, cache, "train.tokens=1024", *overrides, plugins=[TELLING])
    slurm.submit(points, slurm.options(options), root=root, say=lambda message: None)
    return points


def locally(root: Path, cache: Path, *overrides: str) -> Path:
    """Returns the directory of a run that nothing interrupted, in this process."""
    words = ("train.tokens=1024", "runtime.threads=1", *overrides)
    [point] = swept(root, cache, *words, plugins=[TELLING])
    pipeline.train(point.experiment)
    return point.run_dir


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


def test_a_sweep_is_one_job_array_whose_points_end_as_on_this_machine(
    cluster: Cluster, tmp_path: Path, cache: Path
) -> None:
    good, diverging = submitted(tmp_path / "swept", cache, "train.lr=1e-3,1e15")
    assert pending([good, diverging], states_of([good, diverging])) == []
    finished(cluster, good, diverging)
    assert job_of(good).partition("_")[0] == job_of(diverging).partition("_")[0]
    assert state_of(good) == PointState("done")
    assert state_of(diverging).state == "diverged"
    assert_same_bits(good.run_dir, locally(tmp_path / "alone", cache, "train.lr=1e-3"))


@pytest.mark.parametrize(
    ("options", "command"),
    [
        ("", "scancel --signal=USR2 $SLURM_JOB_ID.0"),  # as Slurm does before the time limit
        (",partition=graced", URGENT),
    ],
    ids=["time limit", "preemption"],
)
def test_a_job_that_slurm_stops_is_put_back_and_goes_on_from_its_checkpoint(
    cluster: Cluster,
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: str,
    command: str,
) -> None:
    monkeypatch.setenv("TELL", command)
    (point,) = submitted(tmp_path / "swept", cache, options=f"time=5,cpus=1{options}")
    finished(cluster, point)
    assert cluster.of_job(job_of(point), "Restarts") == "1"
    assert state_of(point) == PointState("done")
    monkeypatch.delenv("TELL")
    assert_same_bits(point.run_dir, locally(tmp_path / "alone", cache))


def test_a_cancelled_job_stops_with_a_checkpoint_and_is_not_put_back(
    cluster: Cluster, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TELL", "scancel $SLURM_JOB_ID")
    (point,) = submitted(tmp_path, cache)
    finished(cluster, point)
    assert cluster.of_job(job_of(point), "JobState") == "CANCELLED"
    assert "stopped by SIGTERM after step 5" in str(state_of(point).reason)
    assert state_of(point).state == "stopped"
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
