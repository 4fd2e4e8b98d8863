"""A sweep of real processes ends as an undisturbed one does, whatever happens to it on the way."""

import os
import re
import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import commands
import pytest
import yaml
from small import SMALL, small_config
from trained import (
    assert_same_bits,
    descendants,
    is_alive,
    newest_checkpoint,
    one_thread_each,
    rows_of,
)

from lengthgen import pipeline
from lengthgen.config import schema
from lengthgen.files import read_rows
from lengthgen.runs import status

pytestmark = pytest.mark.slow

STEPS = 100
WORDS = [*SMALL, f"train.tokens={STEPS * 128}", "train.checkpoint_every=50"]
COMMAND = ["-m", "lengthgen", "sweep"]
# The engine alone: slots, then overrides. What the command does before it is tested elsewhere.
ENGINE = """
import sys
from lengthgen.errors import Stopped
from lengthgen.sweep import grid, local
from lengthgen.sweep.dashboard import Dashboard
from lengthgen.sweep.resources import Slot
found = grid.points(sys.argv[2:], config_dir=None, plugins=[])
try:
    with Dashboard(found) as dashboard:
        local.run(found, [Slot(1, ())] * int(sys.argv[1]), gpus=None, dashboard=dashboard)
except Stopped as stopped:
    print(stopped, file=sys.stderr)
    sys.exit(stopped.exit_code)
"""
PLUGIN = """
import torch
from torch import Tensor
from lengthgen.schemes import AttentionContext, Part, ModelDims

class Faulty(Part):
    def __init__(self, shape: ModelDims, *, mode: str) -> None:
        super().__init__(shape)
        self.mode = mode

    def bias(self, c: AttentionContext) -> Tensor:
        longer = c.length > 8  # than a rehearsal
        if self.mode == "raises" and longer:
            raise ZeroDivisionError("a bug")
        return -c.distance() * (torch.nan if self.mode == "diverges" and longer else 1.0)
"""


class Ran(NamedTuple):
    """What a command left behind, and the processes that it started and that are still there."""

    code: int
    out: str
    err: str
    alive: list[int]

    @property
    def rows(self) -> list[list[str]]:
        return [line.split("\t") for line in self.out.splitlines()]


class Running:
    """A command at work in a folder, in a session of its own."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.folder = folder
        self.said = folder / "stderr.txt"
        with self.said.open("w") as err:
            self.process = commands.begin(*command, cwd=folder, env=one_thread_each(), stderr=err)

    def until(self, is_so: Callable[[], bool]) -> None:
        """Waits until something is so while the command works."""
        end = time.monotonic() + 240
        while not is_so():
            assert self.process.poll() is None, self.said.read_text()
            assert time.monotonic() < end, self.said.read_text()
            time.sleep(0.02)

    def ended(self, kind: signal.Signals | None = None) -> Ran:
        """Sends a signal to the command's own process alone, and waits for its end."""
        started = descendants(self.process.pid)
        if kind is not None:
            self.process.send_signal(kind)
        out, _ = self.process.communicate(timeout=240)
        alive = [pid for pid in started if is_alive(pid)]
        return Ran(self.process.wait(), out, self.said.read_text(), alive)


def sweep(folder: Path, *words: str) -> Ran:
    return Running([*COMMAND, *words], folder).ended()


def files(folder: Path) -> dict[str, int]:
    """Returns when each file below a folder was written last."""
    return {str(p): p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


def pids(root: Path) -> dict[str, int | None]:
    """Returns which process wrote each run's state last."""
    return {path.name: status.read_status(path, run=path.name).pid for path in root.glob("*-*")}


class Mixed(NamedTuple):
    """A sweep of a good point, one that diverges and one whose plugin raises; and its repeats."""

    folder: Path
    first: Ran
    pids: dict[str, int | None]
    looked: Ran
    is_untouched_by_a_look: bool
    again: Ran


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Mixed:
    folder = tmp_path_factory.mktemp("mixed")
    (folder / "faulty.py").write_text(PLUGIN)
    modes = "+scheme.parts.faulty.mode=good,diverges,raises"
    words = ["scheme=nope", modes, *SMALL, "runtime.threads=null"]
    words += ["--plugin", "faulty.py", "--jobs", "2"]
    first, wrote = sweep(folder, *words), pids(folder / "runs")
    before = files(folder / "runs")
    looked = sweep(folder, *words, "--status")
    is_untouched = files(folder / "runs") == before
    return Mixed(folder, first, wrote, looked, is_untouched, sweep(folder, *words))


def test_a_failed_point_stops_no_other_and_sets_the_exit_code(mixed: Mixed) -> None:
    head, *rows = mixed.first.rows
    assert head == ["+scheme.parts.faulty.mode", "run", "state", "reason"]
    assert [(row[0], row[2]) for row in rows] == [
        ("good", "done"),
        ("diverges", "diverged"),
        ("raises", "failed"),
    ]
    assert rows[1][3].startswith("the loss is nan in step 1 on rank 0; no update was made")
    assert rows[2][3] == "ZeroDivisionError: a bug"
    assert mixed.first.code == 1


def test_a_model_that_cannot_be_measured_costs_the_estimate_alone(mixed: Mixed) -> None:
    said = "3 to do, 2 at a time: for an unknown time, since no step could be measured"
    assert said in mixed.first.err.splitlines()


def test_every_bad_end_is_said_as_it_comes_and_with_the_command_that_repeats_it(
    mixed: Mixed,
) -> None:
    lines = mixed.first.err.splitlines()
    ends = [line for line in lines if re.search(r": (done|failed|diverged) after \d+:\d\d", line)]
    assert len(ends) == 3
    assert any(line.endswith(": ZeroDivisionError: a bug") for line in ends)
    _, *rows = mixed.first.rows
    for row in rows[1:]:
        title = f"+scheme.parts.faulty.mode={row[0]}"
        (line,) = [one for one in lines if one.startswith(f"to repeat {title} alone: ")]
        words = shlex.split(line.partition(" alone: ")[2])
        assert words[:2] == ["lengthgen", "train"]
        overrides = words[2 : words.index("--plugin")]
        plugin = Path(words[words.index("--plugin") + 1])
        assert schema.from_overrides(overrides, config_dir=None, plugins=[plugin]).run_dir == Path(
            row[1]
        )


def test_what_a_run_printed_is_kept_with_it(mixed: Mixed) -> None:
    printed = [(mixed.folder / row[1] / "console.txt").read_text() for row in mixed.first.rows[1:]]
    assert "Perplexity" in printed[0]
    assert "error: the loss is nan" in printed[1]
    assert "Traceback" in printed[2]
    assert "Traceback" not in mixed.first.err


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the cores are counted with it")
def test_cores_are_divided_among_the_runs(mixed: Mixed) -> None:
    asked = yaml.safe_load((mixed.folder / mixed.first.rows[1][1] / "config.yaml").read_text())
    assert asked["runtime"]["threads"] == max(1, len(os.sched_getaffinity(0)) // 2)


def test_status_shows_the_same_matrix_and_touches_nothing(mixed: Mixed) -> None:
    assert (mixed.looked.code, mixed.looked.out) == (1, mixed.first.out)
    assert mixed.is_untouched_by_a_look


def test_the_same_command_retries_what_failed_and_leaves_what_is_settled(mixed: Mixed) -> None:
    assert (mixed.again.code, mixed.again.out) == (1, mixed.first.out)
    assert mixed.again.err.startswith("sweep: 3 points: 1 done, 1 diverged, 1 failed\n")
    wrote = pids(mixed.folder / "runs")
    started = {
        row[0]
        for row in mixed.first.rows[1:]
        if wrote[Path(row[1]).name] != mixed.pids[Path(row[1]).name]
    }
    assert started == {"raises"}


def test_a_dry_run_prints_commands_and_an_estimate_and_writes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    words = ["scheme=rope,alibi", *SMALL, f"runtime.root={folder}/runs", "--dry-run"]
    ran = Running([*COMMAND, *words], tmp_path).ended()
    assert ran.code == 0
    assert re.search(r"^2 to do, \d+ at a time: about \d+ seconds$", ran.err, re.MULTILINE)
    lines = [shlex.split(line) for line in ran.out.splitlines()]
    assert [line[:3] for line in lines] == [
        ["lengthgen", "train", f"scheme={name}"] for name in ("rope", "alibi")
    ]
    assert list(folder.iterdir()) == []


def test_a_corpus_that_is_not_there_is_named_with_its_point_before_anything_starts(
    tmp_path: Path,
) -> None:
    (tmp_path / "here.txt").write_text("some words")
    words = [word for word in SMALL if not word.startswith("corpus")]
    ran = sweep(tmp_path, *words, "corpus=files", "corpus.path=there.txt,here.txt")
    assert (ran.code, ran.out) == (2, "")
    error = ran.err.splitlines()[-1]
    assert error.startswith("error: corpus.path=there.txt: corpus.path: there.txt does not exist")
    assert list(tmp_path.glob("runs/*-*")) == []


def test_a_plugin_that_cannot_work_is_named_with_its_point_before_anything_starts(
    tmp_path: Path,
) -> None:
    (tmp_path / "faulty.py").write_text(PLUGIN.replace("c.length > 8", "True"))
    modes = "+scheme.parts.faulty.mode=good,raises"
    ran = sweep(tmp_path, "scheme=nope", modes, *SMALL, "--plugin", "faulty.py")
    assert (ran.code, ran.out) == (2, "")
    said = "error: +scheme.parts.faulty.mode=raises: scheme.parts.faulty: bias raised ZeroDivision"
    assert ran.err.splitlines()[-1].startswith(said)
    assert list(tmp_path.glob("runs/*-*")) == []


def test_a_reason_is_that_of_the_last_start(tmp_path: Path) -> None:
    words = [*SMALL, "corpus=files", "corpus.path=gone.txt"]
    words = [word for word in words if not re.match(r"corpus\.(?!path)|corpus=syn", word)]
    built = schema.from_overrides(words, config_dir=None, plugins=[])
    run_dir = tmp_path / built.run_dir
    run_dir.mkdir(parents=True)
    (run_dir / "console.txt").write_text("error: another one\n")
    status.write(run_dir, status.Status("failed", reason="another one"), run=run_dir.name)
    Running(["-c", ENGINE, "1", *words], tmp_path).ended()
    assert status.read_status(run_dir, run=run_dir.name).state == "failed"
    assert str(status.read_status(run_dir, run=run_dir.name).reason).startswith(
        "corpus.path: gone.txt does not exist"
    )


class Disturbed(NamedTuple):
    """One sweep that was interrupted in every way, and what came of each."""

    root: Path
    on_start: Ran
    by_sigint: Ran
    checkpoints: dict[int, list[str]]  # of the run that could stop, and of that which could not
    by_sigterm: Ran
    child_killed: Ran
    after_a_killed_child: dict[str, status.Status]
    survivor: int
    last: Ran


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> Disturbed:
    folder = tmp_path_factory.mktemp("disturbed")
    root = folder / "runs"

    def engine(slots: int) -> Running:
        words = [str(slots), "scheme=rope", "seed=1,2,3", *WORDS]
        return Running(["-c", ENGINE, *words], folder)

    def command(seeds: str, jobs: int) -> Running:
        words = ["scheme=rope", f"seed={seeds}", *WORDS, "--jobs", str(jobs)]
        return Running([*COMMAND, *words], folder)

    at_work = command("1,2,3", 2)
    at_work.until(lambda: "seed=2: running" in at_work.said.read_text())
    on_start = at_work.ended(signal.SIGINT)

    training = trains(root)
    at_work = engine(2)
    at_work.until(lambda: training(1) > 0 or training(2) > 0)
    deaf, other = (1, 2) if training(1) else (2, 1)
    os.kill(training(deaf), signal.SIGSTOP)
    at_work.until(lambda: training(other) > 0)
    able = training(other)
    os.killpg(at_work.process.pid, signal.SIGINT)  # as a terminal does: to its whole group
    at_work.until(lambda: not is_alive(able))
    checkpoints = {
        seed: [path.name for path in one_of(root, seed).glob("checkpoints/step-*")]
        for seed in (other, deaf)
    }
    by_sigint = at_work.ended(signal.SIGINT)

    training = trains(root)
    at_work = engine(2)
    at_work.until(lambda: training(1) > 0 or training(2) > 0)
    by_sigterm = at_work.ended(signal.SIGTERM)

    training = trains(root)
    third = small_config(*WORDS, "scheme=rope", "seed=3", f"runtime.root={root}").run_dir
    at_work = engine(2)
    at_work.until(lambda: training(1) > 0)
    with status.run_lock(third, "train"):  # as another sweep would that began at the same time
        os.kill(training(1), signal.SIGKILL)
        at_work.until(lambda: "seed=3: running elsewhere" in at_work.said.read_text())
    child_killed = at_work.ended()
    stand = {
        path.name.split("-")[3]: status.read_status(path, run=path.name)
        for path in root.glob("*-*")
    }

    training = trains(root)
    at_work = engine(1)
    at_work.until(lambda: training(1) > 0)
    survivor = training(1)
    os.kill(survivor, signal.SIGSTOP)  # it works on until the next sweep has seen it
    try:
        at_work.ended(signal.SIGKILL)
        at_work = command("1,2,3,4", 1)
        at_work.until(lambda: "1 to do, 1 at a time" in at_work.said.read_text())
        time.sleep(3)  # a process beside it would have been started by now
    finally:
        os.kill(survivor, signal.SIGCONT)
    last = at_work.ended()
    return Disturbed(
        root, on_start, by_sigint, checkpoints, by_sigterm, child_killed, stand, survivor, last
    )


def trains(root: Path) -> Callable[[int], int]:
    """Returns what says, of a seed, which process has taken steps for it since now; 0 if none."""

    def written(seed: int) -> int:
        return max(
            (p.stat().st_mtime_ns for p in root.glob(f"rope-*-s{seed}-*/train.jsonl")), default=0
        )

    before = {seed: written(seed) for seed in (1, 2)}

    def training(seed: int) -> int:
        if written(seed) <= before[seed]:
            return 0
        run_dir = one_of(root, seed)
        said = status.read_status(run_dir, run=run_dir.name)
        rows = read_rows(run_dir / "train.jsonl")
        return said.pid or 0 if said.state == "running" and len(rows) > 2 else 0

    return training


def test_ctrl_c_while_the_first_runs_start_breaks_nothing(disturbed: Disturbed) -> None:
    ran = disturbed.on_start
    assert (ran.code, ran.out, ran.alive) == (130, "", [])
    assert "stopping 2 runs; Ctrl-C again kills at once" in ran.err
    last = r"stopped by SIGINT: (\d stopped, )?[123] new; the same command continues"
    assert re.fullmatch(last, ran.err.splitlines()[-1])
    assert "Traceback" not in ran.err


def test_ctrl_c_stops_a_run_with_a_checkpoint_and_a_second_one_kills_the_deaf(
    disturbed: Disturbed,
) -> None:
    ran = disturbed.by_sigint
    assert (ran.code, ran.alive) == (130, [])
    assert [len(names) for names in disturbed.checkpoints.values()] == [1, 0]
    last = "stopped by SIGINT: 1 killed, 1 stopped, 1 new; the same command continues"
    assert ran.err.splitlines()[-1] == last
    assert len(re.findall(r"stopped after .+: stopped by SIGTERM after step \d+ of", ran.err)) == 1


def test_sigterm_stops_all_runs_and_leaves_no_process(disturbed: Disturbed) -> None:
    ran = disturbed.by_sigterm
    assert (ran.code, ran.alive) == (143, [])
    last = "stopped by SIGTERM: 2 stopped, 1 new; the same command continues"
    assert ran.err.splitlines()[-1] == last


def test_a_killed_run_is_told_and_stops_no_other(disturbed: Disturbed) -> None:
    stand = disturbed.after_a_killed_child
    assert {seed: (one.state, one.reason) for seed, one in stand.items()} == {
        "s1": ("killed", "killed by SIGKILL"),
        "s2": ("done", None),
        "s3": ("done", None),
    }
    assert "seed=1: killed after" in disturbed.child_killed.err


def test_a_point_that_another_process_has_taken_is_waited_for_and_run_if_it_is_left(
    disturbed: Disturbed,
) -> None:
    said = [line for line in disturbed.child_killed.err.splitlines() if line.startswith("seed=3")]
    assert [re.split(" after|: process", line)[0] for line in said] == [
        "seed=3: running",
        "seed=3: running elsewhere",
        "seed=3: new elsewhere",
        "seed=3: running",
        "seed=3: done",
    ]


def test_a_run_of_a_killed_sweep_goes_on_and_none_is_started_beside_it(
    disturbed: Disturbed,
) -> None:
    assert disturbed.last.code == 0
    assert pids(disturbed.root)[one_of(disturbed.root, 1).name] == disturbed.survivor
    said = [line for line in disturbed.last.err.splitlines() if line.startswith("seed=")]
    assert [line.split(" after")[0] for line in said] == [
        "seed=1: done elsewhere",  # until then it needs the only place
        "seed=4: running",
        "seed=4: done",
    ]


def one_of(root: Path, seed: int) -> Path:
    (path,) = root.glob(f"rope-*-s{seed}-*")
    return path


@pytest.mark.parametrize("seed", [1, 2])
def test_a_disturbed_sweep_ends_with_the_bits_of_an_undisturbed_run(
    disturbed: Disturbed, tmp_path: Path, seed: int
) -> None:
    built = small_config(*WORDS, "scheme=rope", f"seed={seed}", f"runtime.root={tmp_path}")
    alone, run_dir = pipeline.train(built), one_of(disturbed.root, seed)
    assert newest_checkpoint(run_dir).name == f"step-{STEPS:08d}"
    assert_same_bits(run_dir, alone)
    assert rows_of(run_dir / "eval.jsonl") == rows_of(alone / "eval.jsonl")
