"""A sweep's plan: its points, how they stand, where they may run, and what is shown of them."""

import errno
import io
import os
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from repository import ROOT
from shell import Shell
from small import SMALL
from trained import QUIET, is_alive

from lengthgen.cli.sweep import sweep
from lengthgen.config import compose, schema, tuned_rates
from lengthgen.data import corpora
from lengthgen.errors import UserError
from lengthgen.evaluation import plan, protocols
from lengthgen.runs import status
from lengthgen.runs.status import Status
from lengthgen.sweep import dashboard, estimate, local, states
from lengthgen.sweep.dashboard import Dashboard
from lengthgen.sweep.grid import Point, points
from lengthgen.sweep.resources import Machine, Slot, slots
from lengthgen.sweep.states import PointState, state_of

FAULTLESS = """
from torch import Tensor
from lengthgen.schemes import AttentionContext, Part, ModelDims

class Mine(Part):
    def __init__(self, shape: ModelDims, *, word: str) -> None:
        super().__init__(shape)

    def bias(self, c: AttentionContext) -> Tensor:
        return -c.distance()
"""


def grid(*overrides: str, root: Path | str = "runs") -> list[Point]:
    words = [*SMALL, f"runtime.root={root}", *overrides]
    return points(words, config_dir=None, plugins=[])


def one(root: Path, *overrides: str) -> Point:
    (point,) = grid("seed=1", *overrides, root=root)
    return point


def refused(*overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        grid(*overrides)
    return str(caught.value)


# The points


def test_the_last_override_varies_fastest() -> None:
    titles = [point.title for point in grid("scheme=rope,alibi", "seed=1,2,3")]
    assert titles == [f"scheme={name} seed={n}" for name in ("rope", "alibi") for n in (1, 2, 3)]


def test_a_range_and_a_glob_are_axes_like_any_other() -> None:
    found = grid("scheme=glob(alibi*)", "seed=range(1,3)")
    names = [name for name in compose.choices("scheme", config_dir=None) if "alibi" in name]
    want = [{"scheme": name, "seed": str(n)} for name, n in product(names, (1, 2))]
    assert [point.varied for point in found] == want
    assert [(p.config.scheme.name, p.config.seed) for p in found] == [
        (one["scheme"], int(one["seed"])) for one in want
    ]


def test_a_title_holds_the_keys_that_vary_or_the_run_if_none_does() -> None:
    found = grid("scheme=rope", "seed=3", "train.lr=1e-3,2e-3")
    assert [point.title for point in found] == ["train.lr=1e-3", "train.lr=2e-3"]
    (point,) = grid("scheme=rope")
    assert (point.title, point.varied) == (point.run_id, {})


@pytest.mark.parametrize(
    ("sweep", "written"),
    [
        ("train.lr=1e-3, 2.50e-3", ["1e-3", "2.50e-3"]),
        ("train.lr=choice(1e-3,1)", ["0.001", "1"]),
        ("seed=range(1,4)", ["1", "2", "3"]),
        ("seed=sort(3,1)", ["1", "3"]),
        ("seed=range(1)", ["0"]),
        ("scheme.layers=[[],[]],[[rope],[rope]]", ["[[],[]]", "[[rope],[rope]]"]),
        ("corpus.name='a,b','c d'", ["'a,b'", "'c d'"]),
        ("train.tokens=${seed},4", ["${seed}", "4"]),
        ("eval.lengths=[${train.length},8],[4]", ["[${train.length},8]", "[4]"]),
    ],
)
def test_a_value_is_written_as_it_was_typed_where_that_can_be_told(
    sweep: str, written: list[str]
) -> None:
    key = sweep.partition("=")[0]
    expanded = compose.expand([sweep], config_dir=None)
    assert expanded == [[f"{key}={one}"] for one in written]


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["train.lr=1e-3,0.001"], ["train.lr=1e-3", "train.lr=0.001"]),
        (["seed=1,2", "eval.targets=4,8"], ["seed=1 eval.targets=4", "seed=1 eval.targets=8"]),
        (["runtime.log_every=1,2"], ["runtime.log_every=1", "runtime.log_every=2"]),
    ],
)
def test_two_points_that_would_be_one_run_are_both_named(
    overrides: list[str], named: list[str]
) -> None:
    said = refused(*overrides)
    assert said.startswith(f"{named[0]} and {named[1]} are one run, rope-")
    assert said.endswith("sweep keys that change the training")


def test_a_value_that_is_given_twice_is_refused() -> None:
    said = refused("scheme=rope,alibi", "seed=1,1")
    assert said == "scheme=rope is there twice; give each value once"


def test_a_point_whose_mistake_names_the_swept_value_names_it_once() -> None:
    said = refused("scheme=rope,alib", "seed=1,2")
    assert said == "scheme=alib: no such scheme; did you mean alibi?"


def test_an_invalid_point_is_named_by_its_swept_values_and_leaves_nothing(tmp_path: Path) -> None:
    words = ["scheme=rope,alibi", "model.n_heads=4,3", f"runtime.root={tmp_path}/runs"]
    said = refused(*words)
    assert said.startswith("scheme=rope model.n_heads=3: model.d_model=32 is not divisible by")
    assert list(tmp_path.iterdir()) == []


def test_a_scheme_that_needs_alignment_is_refused_on_text_before_any_point_runs(
    tmp_path: Path,
) -> None:
    said = refused("scheme=rope,abacus", f"runtime.root={tmp_path}/runs")
    assert said.startswith("scheme=abacus: scheme.parts.abacus: needs to know which characters ")
    assert list(tmp_path.iterdir()) == []


def test_the_studies_hold_every_scheme_but_the_upper_bounds() -> None:
    script = (ROOT / "scripts" / "results.sh").read_text(encoding="utf-8")
    lists = dict(re.findall(r"^(slow|explicit)=(\S+)", script, flags=re.MULTILINE))
    tuned = tuned_rates.read(ROOT / "results" / "rates" / "tuned.yaml")
    lists["tuned"] = ",".join(tuned)
    assert all(
        f'"scheme={of}' in script for of in ("$tuned", "$explicit", "rope,alibi,kerple,$slow")
    )
    [rest] = re.findall(r'sweep schemes "(scheme=glob.*?)"', script)
    for name, schemes in lists.items():
        rest = rest.replace(f"${name}", schemes)
    swept = [point.config.scheme.name for point in grid(rest)]
    named = {name for schemes in lists.values() for name in schemes.split(",")}
    every = set(compose.choices("scheme", config_dir=None))
    assert not named & set(swept)
    assert every - named - set(swept) == {"abacus", "position_coupling"}


def test_a_mistake_outside_the_sweep_is_said_as_for_one_run() -> None:
    assert refused("model.n_heads=3").startswith("model.d_model=32 is not divisible by")


def test_the_command_of_a_point_makes_the_same_run_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my groups/scheme").mkdir(parents=True)
    text = "# Mine.\nname: mine\nparts: {mine: {word: plain}}\nvariants: {}\n"
    (tmp_path / "my groups/scheme/mine.yaml").write_text(text)
    (tmp_path / "my part.py").write_text(FAULTLESS)
    monkeypatch.chdir(tmp_path)
    words = [*SMALL, "scheme=mine", "scheme.parts.mine.word='a, b','it\\'s',x y", "train.lr=1e-3"]
    found = points(words, config_dir=Path("my groups"), plugins=[Path("my part.py")])
    assert [p.config.scheme.parts["mine"]["word"] for p in found] == ["a, b", "it's", "x y"]
    monkeypatch.chdir("/")
    for point in found:
        program, command, *rest = shlex.split(point.command)
        assert (program, command) == ("lengthgen", "train")
        assert rest[-4::2] == ["--config-dir", "--plugin"]
        config_dir, plugin = map(Path, rest[-3::2])
        again = schema.from_overrides(rest[:-4], config_dir=config_dir, plugins=[plugin])
        assert again.run_id == point.run_id


# How a point stands


def test_a_point_without_a_directory_or_that_ended_before_it_was_begun_is_new(
    tmp_path: Path,
) -> None:
    point = one(tmp_path)
    assert state_of(point) == PointState("new")
    point.run_dir.mkdir()
    (point.run_dir / "console.txt").write_text("importing\n")
    assert state_of(point) == PointState("new")
    status.write(point.run_dir, Status("stopped", reason="stopped by SIGTERM"), run=point.run_id)
    assert state_of(point) == PointState("new")


@pytest.mark.parametrize("state", ["failed", "diverged", "stopped", "killed"])
def test_a_point_stands_as_its_run_says(tmp_path: Path, state: status.State) -> None:
    point = begun(one(tmp_path), Status(state, reason="why"))
    assert state_of(point) == PointState(state, "why")


def begun(point: Point, said: Status) -> Point:
    """Gives a point a run directory in which a run said this of itself."""
    point.run_dir.mkdir(parents=True)
    (point.run_dir / "config.yaml").write_text("")
    status.write(point.run_dir, said, run=point.run_id)
    return point


def test_a_point_runs_as_long_as_its_run_is_held_and_was_killed_if_it_is_not(
    tmp_path: Path,
) -> None:
    point = begun(one(tmp_path), Status("running"))
    with status.run_lock(point.run_dir, "train"):
        assert state_of(point).state == "running"
        assert str(os.getpid()) in str(state_of(point).reason)
    assert state_of(point).state == "killed"


def test_a_point_is_done_only_if_it_was_measured_as_asked_now(tmp_path: Path) -> None:
    point, shorter = one(tmp_path), one(tmp_path, "eval.lengths=[16,32]")
    assert point.run_dir == shorter.run_dir
    begun(point, Status("done", evaluated=point.config.evaluation_id))
    assert state_of(point) == PointState("done")
    assert state_of(shorter).state == "trained"


def test_what_is_settled_or_at_work_is_not_run_and_only_bad_ends_are_unsuccessful() -> None:
    found = grid("seed=range(1,10)")
    every: list[states.State] = [
        *("new", "queued", "running", "stopped", "killed", "failed", "diverged", "trained", "done")
    ]
    stand = {p.run_id: PointState(state) for p, state in zip(found, every, strict=True)}

    def of(chosen: list[Point]) -> set[str]:
        return {stand[point.run_id].state for point in chosen}

    assert of(states.pending(found, stand)) == {"new", "stopped", "killed", "failed", "trained"}
    assert of(states.unsuccessful(found, stand)) == {"stopped", "killed", "failed", "diverged"}


def test_the_matrix_has_a_row_per_point_with_its_values_run_state_and_reason() -> None:
    found = grid("scheme=rope", "seed=1,2", "train.lr=1e-3,2e-3")
    stand = {p.run_id: PointState("new") for p in found}
    stand[found[1].run_id] = PointState("failed", "why")
    head, rows = states.matrix(found, stand)
    assert head == ["seed", "train.lr", "run", "state", "reason"]
    assert [row[:2] for row in rows] == [["1", "1e-3"], ["1", "2e-3"], ["2", "1e-3"], ["2", "2e-3"]]
    assert rows[1][2:] == [str(found[1].run_dir), "failed", "why"]


def test_states_are_counted_from_the_end_of_a_points_life() -> None:
    every: list[states.State] = ["new", "done", "new", "failed"]
    stand = {str(n): PointState(state) for n, state in enumerate(every)}
    assert states.counted(stand) == "1 done, 1 failed, 2 new"


# Where points run

CASES = [
    (Machine(cores, tuple(map(str, range(n_gpus)))), jobs, gpus, per_gpu, n_points)
    for cores, n_gpus in product((1, 2, 3, 8, 16), (0, 1, 2, 5, 8))
    for jobs, gpus in product((None, 1, 2, 5, 20), (None, 1, 2, 3, 8))
    for per_gpu, n_points in product((1, 2, 4), (0, 1, 3, 100))
]


def test_slots_are_never_more_than_points_or_jobs_and_share_out_what_is_there() -> None:
    made = 0
    for machine, jobs, gpus, per_gpu, n_points in CASES:
        each, found = gpus or 1, list[Slot]()
        with suppress(UserError):
            found = slots(machine, jobs=jobs, gpus=gpus, per_gpu=per_gpu, n_points=n_points)
        if not found:
            continue
        made += 1
        assert 1 <= len(found) <= min(jobs or 1000, max(1, n_points))
        used = Counter(gpu for slot in found for gpu in slot.gpus)
        assert set(used) <= set(machine.gpus)
        assert all(n <= per_gpu for n in used.values())
        assert {len(set(slot.gpus)) for slot in found} == {each if machine.gpus else 0}
        threads = sum(slot.threads * each for slot in found)
        assert threads <= machine.cores or {slot.threads for slot in found} == {1}
    assert made > len(CASES) / 3


def slots_of(machine: Machine, **requested: int) -> list[Slot]:
    options: dict[str, Any] = {"jobs": None, "gpus": None, "per_gpu": 1, "n_points": 100}
    return slots(machine, **options | requested)


@pytest.mark.parametrize(
    ("cores", "asked", "n_slots", "threads"),
    [
        (8, {}, 8, 1),
        (8, {"jobs": 2}, 2, 4),
        (8, {"gpus": 2}, 4, 1),
        (8, {"gpus": 2, "jobs": 2}, 2, 2),
        (8, {"n_points": 3}, 3, 2),
        (2, {"jobs": 5}, 5, 1),
        (1, {"gpus": 4}, 1, 1),
    ],
)
def test_without_gpus_the_cores_are_divided_among_the_runs(
    cores: int, asked: dict[str, int], n_slots: int, threads: int
) -> None:
    assert slots_of(Machine(cores, ()), **asked) == [Slot(threads, ())] * n_slots


@pytest.mark.parametrize(
    ("asked", "held"),
    [
        ({}, ["0", "1", "2", "3", "4"]),
        ({"n_points": 2}, ["0", "1"]),
        ({"jobs": 3}, ["0", "1", "2"]),
        ({"gpus": 2}, ["0,1", "2,3"]),
        ({"per_gpu": 2, "jobs": 7}, ["0", "1", "2", "3", "4", "0", "1"]),
    ],
)
def test_runs_are_spread_over_the_gpus_before_two_share_one(
    asked: dict[str, int], held: list[str]
) -> None:
    found = slots_of(Machine(16, tuple("01234")), **asked)
    assert [",".join(slot.gpus) for slot in found] == held


@pytest.mark.parametrize(
    ("n_gpus", "asked", "said"),
    [
        (0, {"per_gpu": 2}, "--per-gpu: there is no GPU to share; give --jobs N"),
        (2, {"gpus": 4}, "--gpus: 4 requested for one run, 2 in this machine"),
        (4, {"gpus": 2, "per_gpu": 2}, "--per-gpu: runs of several GPUs do not share them; drop"),
        (2, {"jobs": 5}, "here have room for 2 runs, not 5; give --jobs 2 or --per-gpu 3"),
        (4, {"jobs": 3, "gpus": 2}, "here have room for 2 runs, not 3; give --jobs 2"),
    ],
)
def test_what_a_machine_does_not_have_is_refused(
    n_gpus: int, asked: dict[str, int], said: str
) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        slots_of(Machine(8, tuple(map(str, range(n_gpus)))), **asked)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--jobs", "two"], "--jobs: 'two': input should be "),
        (["--gpus", "0"], "--gpus: '0': input should be greater than"),
        (["--per-gpu", "-1"], "--per-gpu: '-1': input should be "),
        (["--slurm", "time=5", "--jobs", "2"], "--slurm: jobs and GPUs are Slurm's; give --slurm"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    shell: Shell, options: list[str], said: str
) -> None:
    assert shell.refused("sweep", *options).startswith(said)


def test_a_sweep_within_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UserError, match="it starts torchrun itself; drop torchrun and give --gpus"):
        sweep(["scheme=rope,alibi"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_here_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^runtime.device=cuda: "):
        sweep([*SMALL, "runtime.device=cuda", f"runtime.root={tmp_path}/runs"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs taskset's system call")
def test_a_machine_has_the_cores_that_this_process_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert Machine.this().cores == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert Machine.this().cores == len(allowed)


# How long they take


@pytest.mark.parametrize(
    ("seconds", "n_slots", "end"),
    [
        ([3.0, 1.0, 1.0, 1.0], 1, 6.0),
        ([3.0, 1.0, 1.0, 1.0], 2, 3.0),
        ([1.0, 1.0, 1.0, 3.0], 2, 4.0),  # in order: the longest comes last
        ([3.0, 1.0], 5, 3.0),
    ],
)
def test_points_start_in_order_each_in_the_slot_that_is_free_first(
    seconds: list[float], n_slots: int, end: float
) -> None:
    assert estimate.makespan(seconds, n_slots) == end


@pytest.mark.slow
def test_an_estimate_grows_with_the_tokens_that_are_left(tmp_path: Path) -> None:
    none, some, most = found = grid("train.tokens=1024,102400,1024000", root=tmp_path)
    (most.run_dir / "checkpoints/step-00004000").mkdir(parents=True)
    seconds = estimate.estimate(found, threads=1, processes=1)
    assert seconds is not None
    per_token = (seconds[some.run_id] - seconds[none.run_id]) / (102400 - 1024)
    assert per_token > 0
    left = 1024000 - 4000 * 128
    want = seconds[none.run_id] + per_token * (left - 1024)
    assert seconds[most.run_id] == pytest.approx(want)


def planned_of(point: Point) -> plan.Plan:
    c = point.config
    corpus = corpora.load(c.corpus, cache_dir=c.runtime.cache_dir, say=QUIET.say)
    return plan.plan(c, corpus)


@pytest.mark.parametrize("protocol", protocols.PROTOCOLS)
def test_an_estimate_counts_the_windows_that_an_evaluation_of_long_documents_scores(
    tmp_path: Path, protocol: str
) -> None:
    words = [f"eval.protocols=[{protocol}]", "eval.blocks=4", "eval.endpoints=2"]
    (point,) = grid(*words, root=tmp_path)
    wanted, planned = point.config, planned_of(point)
    assert (len(planned.text.segments), planned.max_context) == (2, 64)
    seconds = [
        sum(span.length * (3.0 + 2.0 * span.length) for span in plan.windows(cell, planned))
        for cell in plan.cells(wanted)
    ]
    pace = estimate.Pace(train=0.0, first=3.0, rest=2.0)
    assert estimate.work(point, pace) == pytest.approx(sum(seconds))


def test_an_estimate_counts_the_tests_of_a_task(tmp_path: Path) -> None:
    words = ["task=copy", "task.examples=500", "task.examples_per_length=20", "eval.lengths=[8,80]"]
    (point,) = points([*words, f"runtime.root={tmp_path}"], config_dir=None, plugins=[])
    wanted, planned = point.config, planned_of(point)
    tokens = sum(s.length for cell in plan.cells(wanted) for s in plan.windows(cell, planned))
    # Texts of n characters have 2 n + 2 tokens, and are taken for as long as their share of T.
    pace = estimate.Pace(train=0.0, first=1.0, rest=0.0)
    assert estimate.work(point, pace) == pytest.approx(tokens, rel=0.1)


# What a run prints


@pytest.mark.parametrize(
    ("printed", "last"),
    [
        (b"", ""),
        (b"first\nsecond\n", "second"),
        (b"first\nno end", "no end"),
        (b"first\n \n\n", "first"),
        (b"caf\xe9\n", "caf\ufffd"),
        (b"x" * 100_000 + b"\nshort", "short"),
        (b"0%\r50%\r", "50%"),
    ],
)
def test_the_last_line_of_a_run_is_what_this_start_of_it_printed(
    tmp_path: Path, printed: bytes, last: str
) -> None:
    path = tmp_path / "console.txt"
    path.write_bytes(b"of an earlier start\n")
    console = local.Console(path, path.stat().st_size)
    with path.open("ab") as file:
        file.write(printed)
    assert console.last() == last
    path.unlink()
    assert console.last() == ""


def test_killing_a_process_reaches_those_in_sessions_of_their_own() -> None:
    start = "import subprocess as s; print(s.Popen(['sleep', '600'], start_new_session=True).pid)"
    wait = "import time; time.sleep(600)"
    parent = subprocess.Popen(
        [sys.executable, "-c", f"{start}\n{wait}"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert parent.stdout is not None
    with parent.stdout:
        child = int(parent.stdout.readline())
    local.kill_with_children(parent.pid)
    parent.wait(timeout=120)
    until = time.monotonic() + 120
    while is_alive(child):
        assert time.monotonic() < until
        time.sleep(0.01)


# What is shown


class Terminal(io.StringIO):
    """Text that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


class Broken(Terminal):
    """A terminal, or a pipe, whose other end was closed."""

    def __init__(self, error: OSError, *, is_terminal: bool) -> None:
        super().__init__()
        self.error, self.is_terminal = error, is_terminal

    def isatty(self) -> bool:
        return self.is_terminal

    def write(self, s: str) -> int:
        raise self.error


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal of 24 lines of 80 columns, on which every table is shown."""
    for name, value in {"COLUMNS": "80", "LINES": "24", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(dashboard, "SECONDS_BETWEEN_TABLES", 0.0)
    return Terminal()


def shown(file: io.StringIO) -> list[str]:
    """Returns the lines that a terminal shows after all that was written to it."""
    rows, row, column = [""], 0, 0
    for word in re.findall(r"\x1b\[[0-9;?]*[a-zA-Z]|\n|\r|[^\x1b\n\r]+", file.getvalue()):
        if word == "\n":
            row, column = row + 1, 0
            rows += [""] * (row == len(rows))
        elif word == "\r":
            column = 0
        elif up := re.fullmatch(r"\x1b\[(\d+)A", word):
            row -= int(up[1])
        elif word == "\x1b[2K":
            rows[row] = ""
        elif not word.startswith("\x1b"):
            rows[row] = rows[row][:column] + word + rows[row][column + len(word) :]
            column += len(word)
    return [line.rstrip() for line in rows if line.strip()]


def standing(found: list[Point], *every: states.State) -> dict[str, PointState]:
    stand = {p.run_id: PointState(state) for p, state in zip(found, every, strict=True)}
    return {
        k: v._replace(reason="of this" if v.state == "failed" else None) for k, v in stand.items()
    }


def test_a_live_table_keeps_the_swept_values_whole_however_much_a_run_prints(
    terminal: Terminal,
) -> None:
    found = grid("scheme=rope,alibi", "train.lr=1e-3,1000000000.0")
    stand = standing(found, "done", "failed", "running", "new")
    printed = "train rope: 11,776/100,096 tokens  loss 2.491  5,347 tokens/s  0:38 left"
    with Dashboard(found, file=terminal) as live:
        live.show(stand, {found[2].run_id: printed})
        lines = shown(terminal)
    assert max(map(len, lines)) <= 80
    assert "alibi 1e-3 running train" in " ".join(" ".join(lines).split())
    assert [line.split() for line in lines if "1000000000.0" in line] == [
        ["rope", "1000000000.0", "failed", "of", "this"],
        ["alibi", "1000000000.0", "new"],
    ]
    assert lines[-1] == "1 done, 1 failed, 1 running, 1 new"


def test_a_terminal_that_is_too_low_shows_what_runs_and_what_went_wrong(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINES", "10")
    found = grid("seed=range(1,13)")
    before: list[states.State] = ["done"] * 4
    after: list[states.State] = ["new"] * 5
    stand = standing(found, *before, "failed", *after, "running", "running")
    with Dashboard(found, file=terminal) as live:
        live.show(stand, {})
        lines = shown(terminal)
    assert len(lines) <= 10
    rows = [line.split()[:2] for line in lines if line.split()[0].isdigit()]
    assert lines[-1] == "4 done, 1 failed, 2 running, 5 new"
    assert rows[:4] == [["11", "running"], ["12", "running"], ["5", "failed"], ["6", "new"]]


def test_a_live_table_leaves_only_what_was_said_when_it_ends(terminal: Terminal) -> None:
    found = grid("seed=1,2")
    with Dashboard(found, file=terminal) as live:
        assert live.is_live
        live.show(standing(found, "running", "new"), {})
        live.say("seed=1: failed: [no] markup")
        assert shown(terminal)[0] == "seed=1: failed: [no] markup"
        assert shown(terminal)[-1] == "1 running, 1 new"
    assert shown(terminal) == ["seed=1: failed: [no] markup"]


def test_a_pipe_gets_states_and_last_lines_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    out, found = io.StringIO(), grid("seed=1,2,3")
    stand = standing(found, "running", "done", "new")
    with Dashboard(found, file=out) as piped:
        assert not piped.is_live
        piped.show(stand, {found[0].run_id: "train rope: 3/9 tokens"})
        assert out.getvalue() == ""
        monkeypatch.setattr(dashboard, "SECONDS_BETWEEN_LINES", 0.0)
        piped.show(stand, {found[0].run_id: "train rope: 3/9 tokens"})
    assert shown(out) == ["1 done, 1 running, 1 new", "  seed=1: train rope: 3/9 tokens"]


@pytest.mark.parametrize(
    "error", [BrokenPipeError(), OSError(errno.EIO, ""), OSError(errno.ENOSPC, "")]
)
@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_sweep_outlives_what_shows_it(
    error: OSError, is_terminal: bool, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "SECONDS_BETWEEN_LINES", 0.0)
    found = grid("seed=1,2")
    with Dashboard(found, file=Broken(error, is_terminal=is_terminal)) as shows:
        assert shows.is_live == is_terminal
        shows.say("seed=1: failed")
        shows.show(standing(found, "failed", "running"), {})
