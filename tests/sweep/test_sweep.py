"""A sweep's plan: its points, how they stand, where they may run, and what is refused."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Shell
from repository import ROOT
from slurm_cluster import begun
from small import MEASURED_AT_T, SMALL, refusal, smaller

from lengthgen.experiment import resolve
from lengthgen.runs import status
from lengthgen.runs.status import Status
from lengthgen.sweep import slurm
from lengthgen.sweep.grid import Point, points
from lengthgen.sweep.local import Slot, gpus_for, slots
from lengthgen.sweep.states import PointState, SweepState, counted, pending, state_of, states_of

PART = """
from lengthgen.schemes import Part

class Mine(Part):
    def __init__(self, shape, *, word: str) -> None:
        super().__init__(shape)

    def bias(self, c):
        return -c.distance()
"""


def grid(*overrides: str, root: Path | str = "runs") -> list[Point]:
    words = smaller(f"runtime.root={root}", *overrides)
    return points(words, config_dir=None, plugins=[])


def single(root: Path, *overrides: str) -> Point:
    (point,) = grid("seed=1", *overrides, root=root)
    return point


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["seed=1,2", "eval.targets=4,8"], "seed=1 eval.targets=4 and seed=1 eval.targets=8 are o"),
        (["runtime.log_every=1,2"], "runtime.log_every=1 and runtime.log_every=2 are one run, rop"),
        (["seed=1,1"], "rope-tiny-synthetic-s1-"),
        (["scheme=rope,alib", "seed=1,2"], "scheme=alib: no such scheme; did you mean alibi?"),
        (["scheme=rope,alibi", "model.n_heads=4,3"], "scheme=rope model.n_heads=3: model.d_model="),
    ],
)
def test_a_wrong_grid_leaves_nothing(tmp_path: Path, overrides: list[str], said: str) -> None:
    assert refusal(grid, *overrides, root=tmp_path / "runs").startswith(said)
    assert list(tmp_path.iterdir()) == []


def test_the_command_of_a_point_makes_the_same_run_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my groups/scheme").mkdir(parents=True)
    text = "# Mine.\nname: mine\nparts: {mine: {word: plain}}\nvariants: {}\n"
    (tmp_path / "my groups/scheme/mine.yaml").write_text(text)
    (tmp_path / "my part.py").write_text(PART)
    monkeypatch.chdir(tmp_path)
    words = smaller("scheme=mine", "scheme.parts.mine.word='a, b','it\\'s',x y", "train.lr=1e-3")
    swept = points(words, config_dir=Path("my groups"), plugins=[Path("my part.py")])
    assert [p.config.scheme.parts["mine"]["word"] for p in swept] == ["a, b", "it's", "x y"]
    monkeypatch.chdir("/")
    for point in swept:
        program, name, *rest = shlex.split(point.command)
        assert (program, name) == ("lengthgen", "train")
        assert rest[-4::2] == ["--config-dir", "--plugin"]
        config_dir, plugin = map(Path, rest[-3::2])
        again = resolve(rest[:-4], config_dir=config_dir, plugins=[plugin])
        assert again.run_id == point.run_id


def test_a_point_stands_as_its_run_says(tmp_path: Path) -> None:
    point = single(tmp_path)
    assert state_of(point) == PointState("new")
    begun(point, Status("failed", reason="why"))
    assert state_of(point) == PointState("failed", "why")
    status.write_status(point.run_dir, Status("running"), run=point.run_id)
    with status.run_lock(point.run_dir, "train"):
        assert state_of(point).state == "running"
    assert state_of(point).state == "killed"
    (point.run_dir / "config.yaml").unlink()
    assert state_of(point) == PointState("new")


def test_a_point_is_done_only_if_it_was_measured_as_requested_now(tmp_path: Path) -> None:
    point = begun(single(tmp_path), Status("done", evaluated="another"))
    assert state_of(point).state == "stopped"
    assert pending([point], states_of([point])) == [point]
    done = Status("done", evaluated=point.config.evaluation_id)
    status.write_status(point.run_dir, done, run=point.run_id)
    assert state_of(point) == PointState("done")


def test_what_is_settled_or_at_work_is_not_run() -> None:
    every = grid("seed=range(1,9)")
    first: list[SweepState] = ["new", "queued", "running", "stopped"]
    names: list[SweepState] = [*first, "killed", "failed", "diverged", "done"]
    standing = {p.run_id: PointState(state) for p, state in zip(every, names, strict=True)}
    todo = [standing[p.run_id].state for p in pending(every, standing)]
    assert todo == ["new", "stopped", "killed", "failed"]
    assert counted(standing).startswith("1 done, 1 diverged, 1 failed")


@pytest.mark.parametrize(
    ("cores", "machine_gpus", "requested", "expected"),
    [
        (8, "", {}, [(1, ())] * 8),
        (8, "", {"n_points": 3}, [(2, ())] * 3),
        (8, "", {"jobs": 2}, [(4, ())] * 2),
        (2, "", {"jobs": 4}, [(1, ())] * 4),
        (8, "ab", {}, [(4, ("a",)), (4, ("b",))]),
        (8, "ab", {"jobs": 4}, [(2, ("a",)), (2, ("b",)), (2, ("a",)), (2, ("b",))]),
        (8, "abcd", {"gpus": 2}, [(2, ("a", "b")), (2, ("c", "d"))]),
        (8, "ab", {"jobs": 1}, [(8, ("a",))]),
    ],
)
def test_cores_and_gpus_are_divided_among_the_runs(
    cores: int, machine_gpus: str, requested: dict[str, int], expected: list[Slot]
) -> None:
    options: dict[str, Any] = {"jobs": None, "gpus": None, "n_points": 100, **requested}
    assert slots(cores, [*machine_gpus], **options) == expected


def test_the_gpus_are_those_that_this_process_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for names, gpus in (("", ("0", "1")), ("3,a", ("3", "a"))):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
        assert gpus_for(grid("seed=1", "runtime.device=auto")) == gpus
        assert gpus_for(grid("seed=1")) == ()


def test_more_gpus_than_there_are_are_refused() -> None:
    said = refusal(slots, 8, ["a", "b"], jobs=None, gpus=3, n_points=100)
    assert said == "--gpus: 3 requested for one run, 2 in this machine"


REFUSED = {
    "sweep --slurm time=5 --jobs 2": "--slurm: jobs and GPUs are Slurm's; give --slurm gpus=N",
    "sweep --slurm ''": "--slurm: time: a value is required; give time=VALUE (minutes, H:MM:SS or ",
    "sweep --slurm time=1:00": "should be a valid integer (minutes, H:MM:SS or D-HH:MM:SS)",
    "sweep --slurm time=5,mem=4G": "should be a valid integer (in GB, such as mem=4)",
    "sweep --slurm time=5,gpu=2": "--slurm: gpu: unknown key; did you mean gpus?",
    "sweep runtime.device=cuda --slurm time=5": "runtime.device=cuda needs a GPU; add gpus=1",
    "sweep --slurm time=5,cpus=0": "--slurm: cpus: '0' should be greater than 0",
    "sweep train.lr=interval(2,1) --search 2": "train.lr: `low <= high` must hold, but got (low=2",
    "sweep 'train.lr=tag(log,interval(0,1))' --search 2": "give interval(a,b) with a below b, and",
    "sweep seed=1,2 --search 2 seed=3": "seed=1,2 and seed=3 set one key; drop one of them",
    "sweep --search 2": "--search: no key has several values; give",
    "sweep seed=1,2 --search 2 --slurm time=5": "--search: each point depends on",
    "tune": "train.lr: one value leaves no choice; give train.lr=5e-3,1e-2,2e-2",
    "tune train.lr=1,2 model.d_ff=32,64": "model.d_ff: rates are chosen for one value of it; give",
    "tune train.lr=1,2 --jobs two": "'--jobs': Input should be a valid",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_swept_searched_or_tuned_is_one_line(shell: Shell, words: str) -> None:
    command, *given = shlex.split(words)
    assert REFUSED[words] in shell.error_of(command, *smaller(*given, usual=MEASURED_AT_T))


def test_what_a_rank_cannot_do_is_refused(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    assert shell.refused("sweep", *SMALL).startswith("sweep: it starts torchrun itself")
    said = shell.refused("train", *SMALL, "--gpus=2")
    assert "torchrun has started this process already" in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_here_is_refused_at_once(shell: Shell, tmp_path: Path) -> None:
    line = shell.error_of("sweep", *smaller("seed=1,2", "runtime.device=cuda"), "--jobs", "1")
    assert line.startswith("seed=1: runtime.device=cuda: there is no GPU in this machine")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "given", "warning"),
    [
        ("time=1", {"time": 1}, "USR2@15"),  # not before the job has begun
        ("time=1:00:01,partition=main", {"time": 61, "partition": "main"}, "USR2@120"),
        ("time=1-02:00:00, gpus = 2", {"time": 26 * 60, "gpus": 2}, "USR2@120"),
    ],
)
def test_options_of_slurm_are_read(text: str, given: dict[str, object], warning: str) -> None:
    options = slurm.options(text)
    assert options.model_dump(exclude_unset=True) == given
    assert options.sbatch["additional_parameters"]["signal"] == warning


def test_a_job_trains_with_the_cpus_and_gpus_and_in_the_precision_of_its_submission() -> None:
    (point,) = grid("runtime.threads=null", "train.precision=auto")
    words = slurm.ArrayTask.of(point, slurm.options("time=5,gpus=2,cpus=8")).arguments
    assert words[-4] == f"train.precision={point.config.train.precision}"
    assert words[-3:] == ("runtime.threads=4", "--gpus", "2")


def test_a_sweep_that_leaves_points_to_others_says_so_and_does_not_end_well(shell: Shell) -> None:
    words = smaller("seed=1,2")
    every = points(words, config_dir=None, plugins=[])
    for point in every:
        begun(point, Status("done", evaluated=point.config.evaluation_id))
    with status.run_lock(every[0].run_dir, "train"):
        ran, dry = (shell.run("sweep", *words, *more) for more in ([], ["--dry-run"]))
    left = "1 of 2 points run elsewhere, or are queued; rerun later"
    assert [(r.code, r.err.splitlines()[-1]) for r in (ran, dry)] == [(1, left), (0, left)]
    assert shell.run("sweep", *words).code == 0


def test_the_quickstart_reads_the_runs_of_a_sweep_from_its_table(shell: Shell) -> None:
    script = (ROOT / "scripts" / "quickstart.sh").read_text()
    (program,) = re.findall(r"awk -F '\\t' '(.*?)' <<<", script, re.DOTALL)
    for words in (smaller("seed=1,2"), smaller("train.lr=1e-3,2e-3", "seed=1,2")):
        every = points(words, config_dir=None, plugins=[])
        for point in every:
            begun(point, Status("done", evaluated=point.config.evaluation_id))
        table = shell.run("sweep", *words).out
        command = ["awk", "-F", "\\t", program]
        runs = subprocess.run(command, input=table, capture_output=True, text=True).stdout.split()
        assert runs == [f"runs/{point.run_id}" for point in every]
