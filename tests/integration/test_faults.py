"""What happens to long jobs costs nothing but time: kills, signals, races, clocks, bad losses."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from faults import Ran, begin, ended, eval_words, here, one_run, result, train_words
from forks import Forked
from repository import PYTHONPATH, ROOT
from safetensors.torch import load_file
from small import SMALL
from wandb_backend import KEY, WandbBackend

from lengthgen.files import read_rows
from lengthgen.runs import status

pytestmark = pytest.mark.slow

STEPS = 8
PROTOCOLS = "tail,nonoverlap,per_position,sliding-32"
LONG = [  # an evaluation that takes a while
    *("corpus.document_tokens=3000", "eval.lengths=[16,64,256,1024]", "eval.reach=1024"),
    *("eval.endpoints=8", f"eval.protocols=[{PROTOCOLS}]"),
]


def eval_lines(root: Path) -> list[str]:
    return (one_run(root) / "eval.jsonl").read_text().splitlines()


@pytest.fixture
def trained(undisturbed: Path, tmp_path: Path) -> Path:
    """A copy of the run that nothing happened to."""
    return shutil.copytree(undisturbed, tmp_path / "runs")


# Signals


def after(sign: Callable[[], bool], process: Forked, kind: signal.Signals) -> Ran:
    """Sends a signal once there is a sign, and returns how the process ended."""
    while not sign():
        assert process.poll() is None, ended(process)
        time.sleep(0.005)
    process.send_signal(kind)
    return ended(process)


def stopped_by(kind: signal.Signals, ran: Ran) -> None:
    assert ran.code == 128 + kind, ran
    last = ran.err.splitlines()[-1]
    assert last == f"stopped by {kind.name}; the same command continues with what is done"
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGUSR2], ids=str)
def test_a_signal_while_the_token_cache_is_built_leaves_nothing_half_built(
    tmp_path: Path, kind: signal.Signals
) -> None:
    root, cache = tmp_path / "runs", tmp_path / "runs" / ".cache"
    text = tmp_path / "text"
    text.mkdir()
    for i in range(40):
        (text / f"{i}.txt").write_text(" ".join(str(n * n + i) for n in range(20_000)))
    asked = ["corpus=files", f"corpus.path={text}", "corpus.tokenizer=bpe"]
    settings = [word for word in SMALL if not word.startswith("corpus")]
    words = ["train", *settings, *asked, "corpus.vocab_size=400", f"runtime.root={root}"]
    ran = after(lambda: bool(list(cache.glob(".*.building"))), begin(*words), kind)
    stopped_by(kind, ran)
    assert not list(cache.glob(".*.building"))
    assert not [path for path in cache.iterdir() if path.is_dir()]


def test_a_signal_while_a_trained_run_is_evaluated_keeps_its_rows(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    words = train_words(root, "scheme=rope", *LONG)
    ran = after(lambda: bool(list(root.glob("*/eval.jsonl"))), begin(*words), signal.SIGTERM)
    stopped_by(signal.SIGTERM, ran)
    run_dir, kept = one_run(root), eval_lines(root)
    said = status.read_status(run_dir, run=run_dir.name)
    assert (said.state, said.reason) == (
        "stopped",
        "stopped by SIGTERM; the same command continues with what is done",
    )
    assert status.is_trained(run_dir)
    assert here(*words).code == 0
    lines = eval_lines(root)
    assert lines[: len(kept)] == kept
    assert status.read_status(run_dir, run=run_dir.name).state == "done"
    (run_dir / "eval.jsonl").unlink()
    assert here(*words).code == 0
    assert set(eval_lines(root)) == set(lines)


def test_a_signal_to_an_evaluation_keeps_its_rows(tmp_path: Path) -> None:
    root, twin = tmp_path / "runs", tmp_path / "twin"
    assert here(*train_words(root, "scheme=rope", LONG[0])).code == 0
    shutil.copytree(root, twin)
    begun = len(eval_lines(root))

    def words(root: Path) -> list[str]:
        return eval_words(root, *LONG[1:4], "--protocols", PROTOCOLS)

    ran = after(lambda: len(eval_lines(root)) > begun, begin(*words(root)), signal.SIGUSR2)
    stopped_by(signal.SIGUSR2, ran)
    kept = eval_lines(root)
    assert len(kept) > begun
    ran, whole = here(*words(root)), here(*words(twin))
    assert (ran.code, ran.out) == (0, whole.out)
    assert eval_lines(root)[: len(kept)] == kept
    assert set(eval_lines(root)) == set(eval_lines(twin))


# Two at once


def test_of_two_that_start_one_run_one_trains_it_and_the_other_waits_or_says_so(
    tmp_path: Path, undisturbed: Path
) -> None:
    words = train_words(tmp_path, "scheme=rope")
    both = [begin(*words), begin(*words)]
    ran = sorted((ended(process) for process in both), key=lambda ran: ran.code)
    assert ran[0].code == 0, ran
    if ran[1].code:
        assert "another process is at work on this run (train); wait for it" in ran[1].error
    assert result(tmp_path) == result(undisturbed)
    run_dir = one_run(tmp_path)
    assert status.read_status(run_dir, run=run_dir.name).state == "done"


def test_two_evaluations_of_one_run_add_every_row_once(trained: Path, tmp_path: Path) -> None:
    twin = shutil.copytree(trained, tmp_path / "twin")
    more = ["--protocols", "tail,nonoverlap,per_position", "--lengths", "8,16,32,64"]
    both = [begin(*eval_words(trained, *more)) for _ in range(2)]
    ran = sorted((ended(process) for process in both), key=lambda ran: ran.code)
    whole = here(*eval_words(twin, *more))
    assert (ran[0].code, ran[0].out) == (0, whole.out)
    if ran[1].code:
        assert "another process is at work on this run (eval); wait for it" in ran[1].error
    assert sorted(eval_lines(trained)) == sorted(eval_lines(twin))
    assert len(set(eval_lines(trained))) == len(eval_lines(trained))


def test_a_run_that_others_look_at_all_the_time_can_be_started(tmp_path: Path) -> None:
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            for path in tmp_path.glob("rope-*"):
                status.read_status(path, run=path.name)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for one in lookers:
        one.start()
    try:
        for _ in range(3):
            assert here(*train_words(tmp_path, "scheme=rope")).code == 0
            shutil.rmtree(one_run(tmp_path))
    finally:
        over.set()
        for one in lookers:
            one.join()


WRITER = """
import sys
from pathlib import Path
from lengthgen.files import replace_file

path, content = Path(sys.argv[1]), sys.argv[2].encode() * 5000
for _ in range(200):
    replace_file(path, content)
"""


def test_a_file_that_several_processes_write_is_always_one_that_one_of_them_wrote(
    tmp_path: Path,
) -> None:
    path = tmp_path / "answer.json"
    words = [sys.executable, "-c", WRITER, path]
    writers = [subprocess.Popen([*words, letter], cwd=ROOT) for letter in "abc"]
    seen: set[tuple[str, int]] = set()
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            text = path.read_text()
            seen.add(("".join(sorted(set(text))), len(text)))
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert seen <= {("a", 5000), ("b", 5000), ("c", 5000)}
    assert [one.name for one in tmp_path.iterdir()] == ["answer.json"]


# Clocks


def test_no_number_depends_on_the_clock_or_on_the_times_of_files(
    trained: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock jumps by days at every look, and files are from 1970 or from 2100."""
    run_dir = one_run(trained)
    (run_dir / "DONE").unlink()
    (run_dir / "eval.jsonl").unlink()
    shutil.rmtree(run_dir / "checkpoints" / f"step-{STEPS:08d}")
    for i, path in enumerate(sorted(trained.rglob("*"))):
        os.utime(path, (4e9, 4e9) if i % 2 else (1, 1))
    real, jumps = time.time, itertools.cycle([-172_800, 172_800, 0])
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    ran = here(*train_words(trained, "scheme=rope"))
    assert "resuming after step 6 of 8" in ran.err
    assert result(trained) == result(undisturbed)
    rates = [row["train/tokens_per_s"] for row in read_rows(run_dir / "train.jsonl")]
    assert min(rates) > 0


def test_the_newest_checkpoint_is_that_of_the_last_step_whatever_its_time(
    trained: Path, undisturbed: Path
) -> None:
    for path in sorted(one_run(trained).glob("checkpoints/step-*")):
        os.utime(path, (1, 1) if path.name == f"step-{STEPS:08d}" else (4e9, 4e9))
    ran = here(*eval_words(trained))
    assert (ran.code, ran.out) == (0, here(*eval_words(undisturbed)).out)


# The corpus


def test_a_corpus_that_changed_after_training_is_refused_by_an_evaluation(
    tmp_path: Path,
) -> None:
    root, text = tmp_path / "runs", tmp_path / "text"
    text.mkdir()
    for i in range(4):
        (text / f"{i}.txt").write_text(f"{i} some words " * 60)
    asked = ["corpus=files", f"corpus.path={text}", "corpus.tokenizer=bytes"]
    settings = [word for word in SMALL if not word.startswith("corpus")]
    assert here("train", "scheme=rope", *settings, *asked, f"runtime.root={root}").code == 0
    before = eval_lines(root)
    (text / "0.txt").write_text("something else " * 60)
    for words in (eval_words(root), eval_words(root, "--lengths", "8")):
        said = here(*words).error
        assert "corpus files has changed since this run began (tokens " in said
        assert "then, " in said
        assert "now); restore it, or remove the run" in said
    assert eval_lines(root) == before


# Losses that are not finite


def test_a_run_that_diverges_is_marked_so_and_keeps_the_checkpoint_before(
    tmp_path: Path,
) -> None:
    words = train_words(tmp_path, "scheme=rope", "train.lr=1e9", "train.checkpoint_every=1")
    said = here(*words).error
    assert said.startswith("the loss is nan in step ")
    run_dir = one_run(tmp_path)
    found = status.read_status(run_dir, run=run_dir.name)
    assert (found.state, found.reason) == ("diverged", said)
    step = int(said.removeprefix("the loss is nan in step ").split()[0])
    kept = sorted(run_dir.glob("checkpoints/step-*"))
    assert kept[-1].name == f"step-{step - 1:08d}"
    weights = load_file(kept[-1] / "model.safetensors")
    assert all(weight.isfinite().all() for weight in weights.values())
    assert not status.is_trained(run_dir)
    assert not (run_dir / "eval.jsonl").exists()
    assert here(*words).error == said
    listed = here("list", "runs", f"runtime.root={tmp_path}").out
    assert "\tdiverged\t" in listed
    assert "to continue" not in listed  # it would diverge again
    shown = here("report", f"runtime.root={tmp_path}", "--out", str(tmp_path / "report"))
    assert shown.error.startswith(f"no evaluated run in {tmp_path}; lengthgen train ")
    assert f"{run_dir} is not shown: it diverged in training" in shown.err


# Weights & Biases

TIMED = """
import json, sys, time

from wandb_runs import configuration, train_rows
from lengthgen.tracking.wandb_run import Tracker

config = configuration(json.loads(sys.argv[1]))
config.run_dir.mkdir(parents=True)
said = []
with Tracker(config, config.run_dir, say=said.append, patience_seconds=8) as tracker:
    print("open", flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    for row in train_rows(*range(200)):
        tracker.train(row)
    seconds = time.perf_counter() - began
print(json.dumps([seconds, said]))
"""


class FailingBackend(WandbBackend):
    """Takes its time over everything it is sent, or hangs up."""

    seconds = 0.0
    gone = False

    def _fail(self) -> None:
        time.sleep(self.seconds)
        if self.gone:
            raise ConnectionResetError

    def receive(self, run_id: str, chunk: Mapping[str, Any]) -> None:
        self._fail()
        super().receive(run_id, chunk)

    def resolve(self, query: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        self._fail()
        return super().resolve(query, variables)


def timed(root: Path, backend: FailingBackend, *, gone: bool) -> tuple[float, list[str]]:
    """Returns the seconds that 200 rows of an open run took, and what was said."""
    inherited = {name: value for name, value in os.environ.items() if "WANDB" not in name}
    process = subprocess.Popen(
        [sys.executable, "-c", TIMED, json.dumps({"root": str(root), "wandb": "online"})],
        env={
            **inherited,
            "PYTHONPATH": PYTHONPATH,
            "HOME": str(root),
            "NETRC": str(root / "netrc"),
            "WANDB_BASE_URL": backend.url,
            "WANDB_ERROR_REPORTING": "false",
            "WANDB_API_KEY": KEY,
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    backend.gone = gone
    out, err = process.communicate("go on\n", timeout=120)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    seconds, said = json.loads(out.splitlines()[-1])
    return seconds, said


def test_a_slow_wandb_does_not_slow_the_training_down(tmp_path: Path) -> None:
    with FailingBackend() as backend:
        backend.seconds = 0.5  # two hundred rows would take 100 s if each waited for an answer
        seconds, said = timed(tmp_path, backend, gone=False)
    assert seconds < 20  # JSONL alone, each row flushed to disk, on a loaded machine
    assert said[0].startswith(f"W&B: {backend.url}")
    (log,) = tmp_path.glob("*/train.jsonl")
    assert len(read_rows(log)) == 200


def test_a_wandb_that_goes_away_in_the_middle_of_training_is_one_line(tmp_path: Path) -> None:
    with FailingBackend() as backend:
        seconds, said = timed(tmp_path, backend, gone=True)
    assert seconds < 20
    where, why = said
    assert where.startswith(f"W&B: {backend.url}")
    assert "to upload the rest: wandb sync" in why
    (log,) = tmp_path.glob("*/train.jsonl")
    assert len(read_rows(log)) == 200
