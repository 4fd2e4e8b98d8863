"""Submission to Slurm and its answers, by programs in the place of Slurm's own."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Shell, here
from parts import SLOPE
from slurm_cluster import begun, state_of, swept
from small import SMALL, refusal, smaller

from lengthgen.errors import Stopped
from lengthgen.runs import signals
from lengthgen.runs.status import Status
from lengthgen.sweep import local, slurm
from lengthgen.sweep.grid import Point, points
from lengthgen.sweep.local import Slot
from lengthgen.sweep.states import PointState, pending, states_of

Stub = Callable[[str, str], None]


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stub:
    """Puts a program of this name, which runs these lines of sh, before all others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def write(name: str, lines: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{lines}\n")
        (folder / name).chmod(0o755)

    for name in ("sbatch", "srun", "scontrol", "squeue"):
        write(name, "exit 0")
    return write


@pytest.fixture
def point(tmp_path: Path, cache: Path) -> Point:
    (point,) = swept(tmp_path / "runs", cache)
    return point


def record(point: Point, text: str | None = None) -> Path:
    """Writes the record of job 7, or this text in its place; returns the job's log."""
    log = point.run_dir.parent / ".slurm/7_0_log.err"
    point.run_dir.mkdir(parents=True, exist_ok=True)
    text = slurm.SlurmJob(id="7", log=log).model_dump_json() if text is None else text
    (point.run_dir / "slurm.json").write_text(text)
    return log


@pytest.mark.parametrize(
    ("listed", "state"),
    [
        ("PENDING|None", PointState("queued")),
        ("PENDING|Priority", PointState("queued", "Priority")),
        ("RUNNING|None", PointState("running", "job 7")),
        ("COMPLETING|NonZeroExitCode", PointState("running", "job 7 is ending")),
    ],
)
def test_a_job_in_the_queue_stands_as_slurm_says(
    stub: Stub, point: Point, listed: str, state: PointState
) -> None:
    record(point)
    stub("squeue", f"echo '7|{listed}'")
    assert state_of(point) == state
    assert pending([point], states_of([point])) == []


def test_a_run_that_has_a_job_is_not_removed(stub: Stub, shell: Shell, point: Point) -> None:
    begun(point, Status("running"))
    record(point)
    stub("squeue", "echo '7|RUNNING|None'")
    assert shell.error_of("rm", str(point.run_dir), "--yes").endswith("scancel 7 ends it")
    assert point.run_dir.exists()


def test_a_queue_that_does_not_answer_is_one_line(
    stub: Stub, point: Point, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(point)
    stub("squeue", "exec sleep 60")
    monkeypatch.setattr(slurm, "SECONDS_TO_ANSWER", 0.1)
    assert refusal(states_of, [point]).startswith("squeue: no answer within 0.1 seconds; run the")


@pytest.mark.parametrize("text", ["", '{"id": 5}', "[]", '{"id": "7"'])
def test_a_damaged_record_of_a_job_is_one_line(stub: Stub, point: Point, text: str) -> None:
    record(point, text)
    said = refusal(states_of, [point])
    assert said.startswith(f"{point.run_dir}/slurm.json: not the record of a Slurm job; restore it")


def test_a_job_that_ended_unreported_hides_behind_no_older_one(stub: Stub, point: Point) -> None:
    begun(point, Status("stopped", reason="stopped by SIGTERM"), seconds_ago=60)
    log = record(point)  # which does not exist yet: the job never began
    gone = PointState("failed", "job 7 was cancelled or removed before it started")
    assert state_of(point) == gone
    log.parent.mkdir()
    log.touch()
    assert state_of(point) == PointState("failed", f"job 7 ended without a report; see {log}")
    begun(point, Status("stopped", reason="stopped by SIGUSR2"), seconds_ago=-1)
    assert state_of(point) == PointState("stopped", "stopped by SIGUSR2")


def test_what_is_asked_of_slurm_reaches_it_and_is_not_needed_on_the_machine_that_submits(
    stub: Stub, shell: Shell, cache: Path
) -> None:
    usual = [word for word in SMALL if not word.startswith("runtime.device")]
    stub("sbatch", 'cat "$1" >asked; echo Submitted batch job 7')
    stub("squeue", "echo '7_0|PENDING|None'; echo '7_1|PENDING|None'")
    words = smaller(f"runtime.cache={cache}", "seed=1,2", usual=usual)
    options = "time=5,gpus=2,cpus=3,mem=4,parallel=1,partition=p,account=a,qos=q,constraint=c"
    ran = shell.run("sweep", *words, "--slurm", options)
    assert (ran.code, ran.out.count("queued")) == (0, 2), ran.err
    asked = {*re.findall("^#SBATCH --(.*)$", Path("asked").read_text(), re.MULTILINE)}
    of_each = {"time=5", "gpus-per-node=2", "cpus-per-task=3", "mem=4GB", "array=0-1%1"}
    assert asked >= of_each | {"partition=p", "account=a", "qos=q", "constraint=c"}


@pytest.mark.slow
def test_a_point_that_was_edited_before_it_starts_trains_no_other_run(
    stub: Stub, tmp_path: Path, cache: Path
) -> None:
    plugin, words = tmp_path / "mine.py", ["scheme=nope", "+scheme.parts.slope={}"]
    plugin.write_text(SLOPE.format(slope=0.5))
    (point,) = swept(tmp_path / "runs", cache, *words, plugins=[plugin])
    plugin.write_text(SLOPE.format(slope=4))
    record(point)
    said = here(*slurm.ArrayTask.of(point, slurm.options("time=5")).arguments).error
    assert said.startswith(f"{point.run_id}: the configuration or a plugin has changed since this")
    assert state_of(point) == PointState("failed", said)
    ended = local.run([point], [Slot(1, ())], gpus=None, say=print)
    assert ended == {point.run_id: PointState("failed", said)}
    assert not list(tmp_path.glob("runs/*/config.yaml"))


@pytest.mark.parametrize(("name", "end"), [("INT", KeyboardInterrupt), ("TERM", Stopped)])
def test_a_signal_during_the_submission_leaves_no_job_without_a_record(
    stub: Stub, tmp_path: Path, cache: Path, name: str, end: type[BaseException]
) -> None:
    stub("sbatch", f"kill -{name} $PPID; kill -{name} $$; echo Submitted batch job 7")
    stub("squeue", "echo '7_0|PENDING|None'; echo '7_1|PENDING|None'")
    points, said = swept(tmp_path / "runs", cache, "seed=1,2"), list[str]()
    options, root = slurm.options("time=5"), tmp_path / "runs"
    with signals.interruptible(), pytest.raises(end):
        slurm.submit(points, options, root=root, say=said.append)
    assert {*states_of(points).values()} == {PointState("queued")}
    assert said[0].startswith("submitted 2 points as job 7: ")


def test_a_point_that_another_sweep_has_just_submitted_is_not_submitted_again(
    stub: Stub, shell: Shell, cache: Path
) -> None:
    words = smaller(f"runtime.cache={cache}", "seed=1,2")
    again, other = points(words, config_dir=None, plugins=[])
    record(again)
    record(other, '{"id": "9", "log": "9_0_log.err"}')
    # Meanwhile: once the records were read, and before this sweep submits.
    aside = (other.run_dir / "slurm.json").rename("recorded")
    meanwhile = f"test ! -f {aside} || mv {aside} {other.run_dir}/slurm.json"
    stub("squeue", f"{meanwhile}; echo '8|PENDING|None'; echo '9|PENDING|None'")
    stub("sbatch", "echo Submitted batch job 8")
    ran = shell.run("sweep", *words, "--slurm", "time=5")
    assert (ran.code, ran.err.count("submitted 1 points as job 8")) == (0, 1)
    jobs = [slurm.job_of(point.run_dir) for point in (again, other)]
    assert [job and job.id for job in jobs] == ["8", "9"]
