"""Sweeps of real processes: a point that fails, a repeat, a signal, a sweep that is killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from repository import PYTHONPATH
from small import SMALL, small_config
from trained import assert_same_bits, descendants, is_alive, one_thread_each

from lengthgen import pipeline
from lengthgen.runs import status

pytestmark = pytest.mark.slow

WORDS = [word for word in SMALL if not word.startswith(("runtime.root", "runtime.cache"))]
LONG = "train.tokens=128000"  # some seconds, so that a signal comes in the middle
PART = """
import torch
from lengthgen.schemes import Part

class Hasty(Part):
    def __init__(self, shape, *, mode: str) -> None:
        super().__init__(shape)
        self.mode = mode

    def bias(self, c):
        longer = c.length > 8  # than what is tried out before a sweep
        if self.mode == "raises" and longer:
            raise ZeroDivisionError("a bug")
        return -c.distance() * (torch.nan if self.mode == "diverges" and longer else 1.0)
"""


class Ran(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def states(self) -> list[str]:
        """The states of the points in the final table."""
        head, *rows = [line.split("\t") for line in self.out.splitlines()]
        return [row[head.index("state")] for row in rows]


class Running:
    """A sweep at work in a folder."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder, self.errors = folder, folder / "stderr.txt"
        with self.errors.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lengthgen", "sweep", *WORDS, *words],
                cwd=folder,
                env={**one_thread_each(), "PYTHONPATH": PYTHONPATH},
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )

    def until(self, is_so: Callable[[], object]) -> None:
        """Waits until something is so while the command works."""
        end = time.monotonic() + 240
        while not is_so():
            assert self.process.poll() is None, self.errors.read_text()
            assert time.monotonic() < end, self.errors.read_text()
            time.sleep(0.02)

    def ended(self) -> Ran:
        out, _ = self.process.communicate(timeout=300)
        return Ran(self.process.returncode, out, self.errors.read_text())


def trained_rows(folder: Path) -> Mapping[str, int]:
    """Returns how many rows of training each run has, by its directory."""
    logs = folder.glob("runs/*/train.jsonl")
    return {str(path.parent): path.read_text().count("\n") for path in logs}


def files(folder: Path) -> dict[str, int]:
    """Returns when each file below a folder was written last."""
    return {str(p): p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


def test_a_point_that_fails_stops_no_other_and_the_same_command_repeats_it_alone(
    tmp_path: Path,
) -> None:
    (tmp_path / "hasty.py").write_text(PART)
    words = ["scheme=nope", "+scheme.parts.hasty.mode=good,diverges,raises"]
    words += ["--plugin", "hasty.py", "--jobs", "2"]
    first = Running(tmp_path, *words).ended()
    assert (first.code, first.states) == (1, ["done", "diverged", "failed"])
    assert "ZeroDivisionError: a bug" in first.out
    assert "to repeat +scheme.parts.hasty.mode=raises alone: lengthgen train" in first.err
    changes = [line for line in first.err.splitlines() if ".mode=good: " in line]
    assert changes == [f"+scheme.parts.hasty.mode=good: {state}" for state in ("running", "done")]
    good, diverged, _ = (Path(line.split("\t")[1]) for line in first.out.splitlines()[1:])
    before = {**files(tmp_path / good), **files(tmp_path / diverged)}
    listed = Running(tmp_path, *words, "--dry-run").ended()
    assert listed.states == first.states
    again = Running(tmp_path, *words).ended()
    assert (again.code, again.states) == (1, first.states)
    assert {**files(tmp_path / good), **files(tmp_path / diverged)} == before


def test_a_dry_run_lists_the_points_and_the_seconds_of_a_step_and_trains_none(
    tmp_path: Path,
) -> None:
    ran = Running(tmp_path, "scheme=rope", "seed=1,2", "--dry-run").ended()
    assert (ran.code, ran.states) == (0, ["new", "new"])
    assert ran.err.splitlines()[-1].startswith("seed=1: ")
    assert ran.err.splitlines()[-1].endswith(" s a step, 8 steps; 2 points to do, 2 at a time")
    assert not list(tmp_path.glob("runs/*/config.yaml"))


def test_ctrl_c_stops_the_runs_with_checkpoints_and_the_same_command_ends_with_their_bits(
    tmp_path: Path,
) -> None:
    words = ["scheme=rope", "seed=1,2", LONG, "--jobs", "2"]
    at_work = Running(tmp_path, *words)
    at_work.until(lambda: min([*trained_rows(tmp_path).values(), 0, 0][:2]) > 2)
    started = descendants(at_work.process.pid)
    at_work.process.send_signal(signal.SIGINT)
    ran = at_work.ended()
    assert ran.code == 130
    assert ran.err.splitlines()[-1].startswith("stopped by SIGINT: 2 stopped; the same command")
    assert not [pid for pid in started if is_alive(pid)]
    assert len(list(tmp_path.glob("runs/*/checkpoints/step-*"))) >= 2
    last = Running(tmp_path, *words).ended()
    assert (last.code, last.states) == (0, ["done", "done"])
    (swept,) = tmp_path.glob("runs/*-s2-*")
    assert_same_bits(swept, alone(tmp_path, seed=2))


def test_a_run_of_a_killed_sweep_goes_on_and_none_is_started_beside_it(tmp_path: Path) -> None:
    words = ["scheme=rope", "seed=1,2", LONG, "--jobs", "1"]
    at_work = Running(tmp_path, *words)
    at_work.until(lambda: [*trained_rows(tmp_path).values(), 0][0] > 2)
    (survivor,) = descendants(at_work.process.pid)
    at_work.process.kill()
    at_work.ended()
    assert is_alive(survivor)
    last = Running(tmp_path, *words).ended()
    assert (last.code, last.states) == (0, ["done", "done"])
    assert last.err.splitlines()[0] == "2 points: 1 running, 1 new"
    (first,) = tmp_path.glob("runs/*-s1-*")
    assert status.read_status(first, run=first.name).pid == survivor
    assert_same_bits(first, alone(tmp_path, seed=1))


def test_a_killed_run_is_named_and_stops_no_other(tmp_path: Path) -> None:
    words = ["scheme=rope", "seed=1,2", LONG, "--jobs", "1"]
    at_work = Running(tmp_path, *words)
    at_work.until(lambda: [*trained_rows(tmp_path).values(), 0][0] > 2)
    os.kill(descendants(at_work.process.pid)[0], signal.SIGKILL)
    ran = at_work.ended()
    assert (ran.code, ran.states) == (1, ["killed", "done"])
    assert Running(tmp_path, *words).ended().code == 0


def alone(folder: Path, *, seed: int) -> Path:
    """Returns the directory of a run that nothing interrupted, in this process."""
    root = f"runtime.root={folder}/alone"
    config = small_config("scheme=rope", f"seed={seed}", LONG, root)
    return pipeline.train(config)
