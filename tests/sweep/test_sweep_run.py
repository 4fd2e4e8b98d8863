"""Sweeps of real processes: points that fail, a repeat, Ctrl-C."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from commands import Ran, here
from repository import PYTHONPATH, TELLING
from slurm_cluster import begun
from small import small_config, smaller
from trained import assert_same_bits, is_alive, train

from lengthgen.runs.status import Status
from lengthgen.sweep import local
from lengthgen.sweep.grid import points
from lengthgen.sweep.local import Slot
from lengthgen.sweep.states import PointState

PART = """
import os, signal
from lengthgen.schemes import Part

class Hasty(Part):
    def __init__(self, shape, *, mode: str) -> None:
        super().__init__(shape)
        self.mode = mode

    def bias(self, c):
        longer = c.training and c.length > 8  # than what is tried out before a sweep
        if self.mode == "raises" and longer:
            raise ZeroDivisionError(os.environ.get("CUDA_VISIBLE_DEVICES", "a bug"))
        if self.mode == "is_killed" and longer:
            os.kill(os.getpid(), signal.SIGKILL)
        return -c.distance()
"""


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def sweep(*words: str) -> Ran:
    return here("sweep", *smaller(*words))


def column(ran: Ran, name: str) -> list[str]:
    """Returns a column of the final table."""
    head, *rows = [line.split("\t") for line in ran.out.splitlines()]
    return [row[head.index(name)] for row in rows]


def files(folder: Path) -> dict[str, int]:
    """Returns when each file below a folder was written last."""
    return {str(p): p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


def test_a_point_whose_folder_cannot_be_written_stops_no_other() -> None:
    first, second = points(smaller("seed=1,2"), config_dir=None, plugins=[])
    (first.run_dir / "console.txt").mkdir(parents=True)
    ran = sweep("seed=1,2", "--jobs", "1")
    assert (ran.code, column(ran, "state")) == (1, ["failed", "done"])
    reason = f"{first.run_dir}/console.txt: cannot be begun (Is a directory)"
    assert column(ran, "reason")[0] == reason
    assert (second.run_dir / "DONE").exists()


@pytest.mark.slow
def test_a_point_that_fails_stops_no_other_and_is_repeated_alone(tmp_path: Path) -> None:
    (tmp_path / "hasty.py").write_text(PART)
    words = ["scheme=nope", "--plugin", "hasty.py", "--jobs", "2", "+scheme.parts.hasty.mode"]
    first = sweep(*words[:-1], f"{words[-1]}=good,raises,is_killed")
    assert (first.code, column(first, "state")) == (1, ["done", "failed", "killed"])
    said = r"scheme\.parts\.hasty: ZeroDivisionError: a bug \(.*hasty\.py, line \d+\)"
    assert re.fullmatch(said, column(first, "reason")[1])
    assert "to repeat +scheme.parts.hasty.mode=raises alone: lengthgen train" in first.err
    changes = [line for line in first.err.splitlines() if ".mode=good: " in line]
    assert changes == [f"+scheme.parts.hasty.mode=good: {state}" for state in ("running", "done")]
    good = Path(column(first, "run")[0])
    before = files(good)
    again = sweep(*words[:-1], f"{words[-1]}=good,raises")
    assert again.err.splitlines()[0] == "2 points: 1 done, 1 failed"
    assert (again.code, column(again, "state")) == (1, ["done", "failed"])
    assert files(good) == before


@pytest.mark.slow
def test_each_run_sees_the_gpus_of_its_place_alone(tmp_path: Path) -> None:
    (tmp_path / "hasty.py").write_text(PART)
    words = smaller("scheme=nope", "+scheme.parts.hasty.mode=raises", "seed=1,2")
    both = points(words, config_dir=None, plugins=[tmp_path / "hasty.py"])
    places = [Slot(1, ("3",)), Slot(1, ("0", "2"))]
    ended = local.run(both, places, gpus=None, say=print)
    said = [ended[point.run_id].reason or "" for point in both]
    assert [line.partition("ZeroDivisionError: ")[2].split()[0] for line in said] == ["3", "0,2"]


def test_a_dry_run_measures_a_step_of_each_recipe_counts_those_left_and_trains_none() -> None:
    words = smaller("model.n_layers=1,16", "seed=1,2", "train.tokens=128000")
    every = points(words, config_dir=None, plugins=[])
    stopped = every[3].run_dir / "checkpoints/step-00000400"
    stopped.mkdir(parents=True)
    ran = here("sweep", *words, "--jobs", "2", "--dry-run")
    assert (ran.code, column(ran, "state")) == (0, ["new"] * 4)
    measured = re.findall(r"(model.n_layers=\d+ seed=1): (\S+) s a step, evaluation", ran.err)
    assert [title for title, _ in measured] == [every[0].title, every[2].title]
    last = r"4 points to do, 2 at a time: about .* \(preparation .*, training (.*), evaluation .*\)"
    [told] = re.findall(last, ran.err.splitlines()[-1])
    total = sum(float(step) * n for (_, step), n in zip(measured, (2000, 1600), strict=True))
    seconds = {"h": 3600, "min": 60, "s": 1}
    each = re.findall(r"(\d+) (h|min|s)\b", told)
    assert sum(int(n) * seconds[unit] for n, unit in each) == pytest.approx(total / 2, 0.02, 31)
    assert [*stopped.parents[2].glob("*-s*/*")] == [stopped.parent]


@pytest.mark.slow
def test_ctrl_c_stops_a_run_that_the_same_command_ends_with_its_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["scheme=rope", "--plugin", str(TELLING), "--jobs", "1"]
    monkeypatch.setenv("TELL", "kill -INT $(ps -o ppid= $PPID)")
    ran = sweep(*words, "seed=1,2")
    monkeypatch.delenv("TELL")
    assert ran.code == 130
    assert ran.err.splitlines()[-1].startswith("stopped by SIGINT: 1 stopped, 1 new; rerun to")
    [log] = tmp_path.glob("runs/*/status.json")
    stopped = json.loads(log.read_text())
    assert "after step 5 of 8" in stopped["reason"]
    assert not is_alive(stopped["pid"])
    last = sweep(*words, "seed=1")
    assert (last.code, column(last, "state")) == (0, ["done"])
    assert "resuming after step 5" in (log.parent / "console.txt").read_text()
    alone = small_config("scheme=rope", f"runtime.root={tmp_path}/alone", plugins=[TELLING])
    assert_same_bits(log.parent, train(alone))


@pytest.mark.slow
def test_a_point_that_another_sweep_settles_meanwhile_is_not_trained_again() -> None:
    first, second = points(smaller("seed=1,2"), config_dir=None, plugins=[])
    why, said = "the loss is nan", list[str]()

    def meanwhile(line: str) -> None:
        said.append(line)
        if line == "seed=1: running":
            begun(second, Status("diverged", reason=why))

    shown = list[Sequence[str]]()
    places = [Slot(1, ())]
    ended = local.run([first, second], places, gpus=None, say=meanwhile, show=shown.append)
    assert ended == {first.run_id: PointState("done"), second.run_id: PointState("diverged", why)}
    of_runs = {line for lines in shown for line in lines[:-1]}
    assert {line.split()[1] for line in of_runs if "/" in line} >= {"train"}
    assert all(line.startswith("seed=1: ") for line in of_runs)
    totals = [lines[-1] for lines in shown]
    assert totals[0].startswith("0 of 2 points done; follow one in runs/")
    assert totals[-1].startswith("2 of 2 points done")
    assert any(" left; follow one in " in total for total in totals)
    assert said == ["seed=1: running", "seed=1: done", "seed=2: diverged: the loss is nan"]


@pytest.mark.slow
def test_a_point_whose_process_ends_early_stands_as_that_says(run_dir: Path) -> None:
    for weights in run_dir.rglob("model.safetensors"):
        weights.write_bytes(weights.read_bytes()[:100])
    ran = sweep("scheme=rope", "eval.lengths=[16,64]", "--jobs", "1")
    assert (ran.code, column(ran, "state")) == (1, ["failed"])
    assert "model.safetensors is damaged; restore it, or remove" in column(ran, "reason")[0]
