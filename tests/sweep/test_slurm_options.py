"""What --slurm takes, what is refused before Slurm is asked, and what logs and squeue tell."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import program, swept

from lengthgen.config import schema
from lengthgen.errors import UserError
from lengthgen.runs import status
from lengthgen.sweep import slurm, slurm_jobs
from lengthgen.sweep.grid import Point
from lengthgen.sweep.states import pending, states_of


@pytest.fixture
def bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose programs are found before all others."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


def test_a_root_that_cannot_be_written_is_refused_before_anything_is_submitted(
    bin: Path, tmp_path: Path, cache_dir: Path
) -> None:
    for name in ("sbatch", "srun"):
        program(bin, name, f"touch {tmp_path}/submitted")
    [point] = swept(tmp_path, cache_dir)
    point.run_dir.touch()
    with pytest.raises(UserError, match=rf"runtime\.root: cannot write {point.run_dir}"):
        slurm.submit([point], slurm.options("time=5"), root=tmp_path, say=print)
    assert not (tmp_path / "submitted").exists()


def test_a_machine_without_slurm_is_refused(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="no sbatch here"):
        slurm.submit(swept(tmp_path, cache_dir), slurm.options("time=5"), root=tmp_path, say=print)


def test_a_missing_submitit_is_named_with_its_remedy(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UserError, match=r'pip install "lengthgen\[slurm\]"'):
        slurm.submit(swept(tmp_path, cache_dir), slurm.options("time=5"), root=tmp_path, say=print)


def test_importing_the_engine_imports_neither_submitit_nor_torch() -> None:
    code = "import sys; import lengthgen.sweep.slurm; print({'submitit', 'torch'} & {*sys.modules})"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout == "set()\n"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("time=90", {"time": 90}),
        ("time=1:30:00", {"time": 90}),
        ("time=2-01:00:01", {"time": 49 * 60 + 1}),
        ("partition=main, gpus=2,time=60", {"time": 60, "partition": "main", "gpus": 2}),
        (
            "time=5,nodes=2,processes=3,cpus=4,mem=1.5,parallel=20",
            {"time": 5, "nodes": 2, "processes": 3, "cpus": 4, "mem": 1.5, "parallel": 20},
        ),
        (
            "time=5,account=a,qos=q,constraint=a100&ib",
            {"time": 5, "account": "a", "qos": "q", "constraint": "a100&ib"},
        ),
    ],
)
def test_options_are_read(text: str, options: dict[str, Any]) -> None:
    assert slurm.options(text) == slurm.Options(**options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time=5,partitoin=main", "unknown key 'partitoin'; did you mean partition?"),
        ("", "unknown key ''; known: account"),
        ("time=5,gpus=two", "gpus=two is not readable; give gpus=2"),
        ("time=5,gpus=0", "gpus=0 is not readable"),
        ("time=5,gpus", "gpus= is not readable"),
        ("time=5,partition=", "partition= is not readable; give partition=NAME"),
        ("time=0", "time=0 is not readable; give time=60 (minutes), time=H:MM:SS"),
        ("time=1:30", "time=1:30 is not readable"),
        ("time=5,mem=0", "mem=0 is not readable; give mem=16 (GB of a node)"),
        ("time=5,time=6", "time is given twice"),
        ("gpus=2", "time is missing"),
        ("time=5,gpus=2,processes=2", "gpus and processes exclude each other"),
    ],
)
def test_an_option_that_cannot_be_read_is_refused_with_its_name(text: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        slurm.options(text)


def test_a_job_trains_in_the_precision_of_the_machine_that_submits_it(
    tmp_path: Path, cache_dir: Path
) -> None:
    [point] = swept(tmp_path, cache_dir, "train.precision=auto")
    task = slurm.Task.of(point)
    precisions = {one for one in task.overrides if one.startswith("train.precision=")}
    assert precisions == {f"train.precision={point.config.train.precision}"}
    assert precisions < {*task.arguments}
    built = schema.from_overrides(task.overrides, config_dir=None, plugins=[])
    assert built.run_id == point.run_id == task.run_id


def test_gpus_have_a_process_each() -> None:
    asked = slurm.options("time=5,gpus=4,nodes=2").sbatch
    assert (asked["gpus_per_node"], asked["ntasks_per_node"], asked["nodes"]) == (4, 4, 2)


def test_srun_is_told_what_it_does_not_take_from_sbatch() -> None:
    asked = slurm.options("time=5,cpus=4").sbatch
    assert asked["srun_args"] == ["--kill-on-bad-exit=1", "--cpus-per-task=4"]


@pytest.mark.parametrize(("minutes", "warning"), [(1, "USR2@15"), (600, "USR2@120")])
def test_a_short_limit_is_not_warned_of_before_the_job_has_begun(
    minutes: int, warning: str
) -> None:
    asked = slurm.Options(time=minutes).sbatch
    assert asked["additional_parameters"]["signal"] == warning


# What is not known


def state_of(point: Point) -> tuple[str, str | None]:
    return states_of([point])[point.run_id]


def of_job(tmp_path: Path, cache_dir: Path, *logs: str) -> Point:
    """Returns a point that job 7 owns, whose processes have written these logs."""
    [point] = swept(tmp_path, cache_dir)
    point.run_dir.mkdir(parents=True)
    slurm_jobs.record(point, job="7", logs=tmp_path)
    for rank, log in enumerate(logs):
        (tmp_path / f"7_{rank}_log.err").write_text(log)
    return point


@pytest.mark.parametrize("script", ["exit 127", "echo 'slurm_load_jobs: timed out' >&2; exit 1"])
def test_a_job_that_cannot_be_asked_for_counts_as_queued(
    bin: Path, cache_dir: Path, script: str
) -> None:
    point = of_job(bin, cache_dir)
    program(bin, "squeue", script)
    state, reason = state_of(point)
    assert state == "queued"
    assert "job 7 may still run; squeue" in str(reason)
    assert pending([point], states_of([point])) == []


def test_where_there_is_no_squeue_runs_copied_from_a_cluster_speak_for_themselves(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    point = of_job(tmp_path, cache_dir)
    status.write(
        point.run_dir, status.Status("failed", reason="the disk is full"), run=point.run_id
    )
    assert state_of(point) == ("failed", "the disk is full")
    assert pending([point], states_of([point])) == [point]


def test_a_job_that_slurm_has_forgotten_is_gone(bin: Path, cache_dir: Path) -> None:
    program(bin, "squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert state_of(of_job(bin, cache_dir)) == ("new", None)


def test_a_point_whose_job_runs_is_running_though_its_lock_seems_free(
    bin: Path, cache_dir: Path
) -> None:
    program(bin, "squeue", "echo '7|RUNNING|None'")
    point = of_job(bin, cache_dir)
    status.write(point.run_dir, status.Status("running"), run=point.run_id)
    assert state_of(point) == ("running", None)
    program(bin, "squeue", "echo '7|NODE_FAIL|None'")
    assert state_of(point)[0] == "killed"


def test_points_that_were_never_submitted_need_no_squeue(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert state_of(swept(tmp_path, cache_dir)[0]) == ("new", None)


BEGINS = "lengthgen: begins in job 7: process 0 of 2\n"


@pytest.mark.parametrize(
    ("logs", "said"),
    [
        ([BEGINS + "train rope: 0/128 tokens\nerror: no such corpus\n"], "no such corpus"),
        ([BEGINS + "error: of an earlier start\n" + BEGINS], None),
        (["Traceback (most recent call last):\nModuleNotFoundError: No module\n"], "ModuleNot"),
        (
            [
                BEGINS + "error: RuntimeError: Connection closed by peer\n"
                "srun: error: n2: task 1: Exited with exit code 2\n"
                "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***\n"
                "srun: error: n1: task 0: Terminated\n",
                BEGINS + "error: no GPU\n",
            ],
            "no GPU",
        ),
        (
            [
                BEGINS + "error: RuntimeError: Connection closed by peer\n"
                "srun: error: n1: tasks 1-3: Out Of Memory\n",
                BEGINS,
            ],
            "process 1: Out Of Memory",
        ),
        (
            [BEGINS + "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED DUE TO NODE FAILURE ***\n"],
            "*** JOB 7 ON n1 CANCELLED DUE TO NODE FAILURE ***",
        ),
        ([BEGINS + "train rope: 0/128 tokens\n"], None),
        ([], None),
    ],
)
def test_the_word_of_the_process_that_ended_first_is_the_failure(
    tmp_path: Path, cache_dir: Path, logs: list[str], said: str | None
) -> None:
    found = slurm_jobs.failure(of_job(tmp_path, cache_dir, *logs))
    assert (found is None) if said is None else (found or "").startswith(said)


def test_a_log_older_than_what_a_later_process_said_of_the_run_is_not_its_reason(
    bin: Path, tmp_path: Path, cache_dir: Path
) -> None:
    program(bin, "squeue", "exit 0")
    point = of_job(tmp_path, cache_dir, BEGINS + "error: of the job\n")
    assert state_of(point) == ("failed", "of the job")
    os.utime(tmp_path / "7_0_log.err", (1, 1))
    status.write(point.run_dir, status.Status("failed", reason="of this process"), run=point.run_id)
    assert state_of(point) == ("failed", "of this process")
