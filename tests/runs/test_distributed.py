"""Several processes on a CPU: the numbers of one, one that writes, one that reports the end.

Run as a program this file is one process of such a run: it trains, evaluates and notes what it saw.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import commands
import numpy as np
import pytest
import torch
from small import small_config
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from trained import QUIET, one_thread_each, rows_of, weights_of

from lengthgen.config.schema import Config
from lengthgen.data import corpora
from lengthgen.data.windows import train_batch, training_windows
from lengthgen.evaluation.evaluator import evaluate
from lengthgen.model.transformer import Transformer
from lengthgen.pipeline import train_and_evaluate
from lengthgen.runs.distributed import ALONE, Ranks

pytestmark = pytest.mark.slow
STEPS = 8
# 8 windows do not divide by 3 processes nor by 3 windows at a time.
RUNS = {
    "8 windows": ["scheme=alibi", "runtime.micro_batch=3", f"train.tokens={STEPS * 128}"],
    "4 windows, with memory": [
        "scheme=transformer_xl_recurrent",
        "train.batch_tokens=64",
        f"train.tokens={STEPS * 64}",
    ],
}
EACH = pytest.mark.parametrize("n", [2, 3], ids="{} processes".format)
RUN = pytest.mark.parametrize("run", RUNS)


def configuration(root: Path, cache: Path, run: str) -> Config:
    return small_config(*RUNS[run], f"runtime.root={root}", f"runtime.cache={cache}")


# One process of several


def main(root: Path, cache: Path) -> None:
    """Trains each run, evaluates the one that is in root/given, and writes what it saw."""
    torch.set_num_threads(1)
    ranks = Ranks.from_env()
    changed: list[str] = []
    sys.addaudithook(lambda event, given: changed.extend(changed_by(event, given)))
    seen: list[list[list[int]]] = []

    def note(module: nn.Module, given: tuple[Any, ...]) -> None:
        if type(module) is not Transformer or not module.training:  # of the run without memory
            return
        if given[0].shape[1] > 8:  # not the call before the training
            seen.append(given[0].tolist())

    with ranks.connected("cpu"):
        with register_module_forward_pre_hook(note):
            for run in RUNS:
                train_and_evaluate(configuration(root, cache, run), ranks=ranks, show=QUIET)
        given = configuration(root / "given", cache, "8 windows")
        evaluate(given, given.run_dir, ranks=ranks, show=QUIET)
    threads: list[str] = []
    for task in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            threads.append(task.read_text().strip())
    saw = {
        "batches": seen,
        "changed": [path for path in changed if Path(path).is_relative_to(root)],
        "threads": threads,
    }
    print(json.dumps(saw))


def changed_by(event: str, given: tuple[Any, ...]) -> list[str]:
    """Returns the paths that an event of Python's audit is about to change."""
    if event == "open":
        path, _, flags = given
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        return [os.path.abspath(path)] if writes and isinstance(path, str) else []
    if event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"):
        return [os.path.abspath(given[0])]
    return []


class Several(NamedTuple):
    """What the processes of a run wrote, and what each of them saw."""

    root: Path
    saw: list[dict[str, Any]]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """The root of what one process trained."""
    root = tmp_path_factory.mktemp("alone")
    for run in RUNS:
        train_and_evaluate(configuration(root, cache, run), ranks=ALONE, show=QUIET)
    return root


@pytest.fixture(scope="module")
def several(
    tmp_path_factory: pytest.TempPathFactory, alone: Path, cache: Path
) -> dict[int, Several]:
    """What 2 and 3 processes made of the same runs, and of evaluating the run of one process."""
    roots = {n: tmp_path_factory.mktemp(f"of_{n}") for n in (2, 3)}
    for root in roots.values():
        trained = configuration(alone, cache, "8 windows").run_dir
        shutil.copytree(trained, root / "given" / trained.name)
        (root / "given" / trained.name / "eval.jsonl").unlink()
    here, program = Path(__file__).parent, ("-m", Path(__file__).stem)
    started = {n: commands.ranks(n, *program, root, cache, cwd=here) for n, root in roots.items()}
    found: dict[int, Several] = {}
    for n, processes in started.items():
        said = [process.communicate(timeout=300) for process in processes]
        ended = [process.returncode for process in processes]
        assert ended == [0] * n, "\n".join(err for _, err in said)
        found[n] = Several(roots[n], [json.loads(out) for out, _ in said])
    return found


@EACH
def test_the_processes_together_read_the_windows_of_one(
    several: dict[int, Several], cache: Path, n: int
) -> None:
    config = configuration(several[n].root, cache, "8 windows")
    windows = training_windows(
        corpora.load(config.corpus, cache_dir=cache, say=QUIET.say), config.train.length
    )
    got = sorted(
        window for process in several[n].saw for batch in process["batches"] for window in batch
    )
    want = [
        train_batch(windows, seed=config.seed, step=step, batch=config.train.batch).inputs_BT
        for step in range(STEPS)
    ]
    assert got == sorted(np.concatenate(want).tolist())


@EACH
@RUN
def test_the_loss_curve_is_that_of_one_process(
    several: dict[int, Several], alone: Path, cache: Path, n: int, run: str
) -> None:
    of_one, of_several = (
        rows_of(configuration(root, cache, run).run_dir / "train.jsonl")
        for root in (alone, several[n].root)
    )
    assert len(of_several) == len(of_one) == STEPS
    for one, other in zip(of_one, of_several, strict=True):
        assert other["train/loss"] == pytest.approx(one["train/loss"], abs=1e-6)
        assert other["train/grad_norm"] == pytest.approx(one["train/grad_norm"], rel=1e-4)


@EACH
@RUN
def test_the_weights_are_those_of_one_process(
    several: dict[int, Several], alone: Path, cache: Path, n: int, run: str
) -> None:
    got = weights_of(configuration(several[n].root, cache, run).run_dir)
    for name, weight in weights_of(configuration(alone, cache, run).run_dir).items():
        # A slow cosine of Transformer-XL adds nearly the same to all logits of a query, which
        # softmax ignores: its column's gradient is rounding alone, and Adam makes steps of that.
        if not name.endswith("W_R"):
            torch.testing.assert_close(got[name], weight, rtol=0, atol=2e-5)


@EACH
def test_the_rows_of_an_evaluation_are_those_of_one_process_digit_by_digit(
    several: dict[int, Several], alone: Path, cache: Path, n: int
) -> None:
    given = configuration(several[n].root / "given", cache, "8 windows").run_dir / "eval.jsonl"
    want = configuration(alone, cache, "8 windows").run_dir / "eval.jsonl"
    assert given.read_text() == want.read_text()


@EACH
def test_only_rank_0_writes(several: dict[int, Several], n: int) -> None:
    by_main, *by_others = (process["changed"] for process in several[n].saw)
    assert any(path.endswith("train.jsonl") for path in by_main)
    assert by_others == [[]] * (n - 1)


@EACH
def test_no_thread_outlives_the_group_to_meet_the_end_of_python(
    several: dict[int, Several], n: int
) -> None:
    threads = [name for process in several[n].saw for name in process["threads"]]
    assert threads
    assert [name for name in threads if "gloo" in name] == []


# The end

EARLIER = """
import time
from lengthgen.runs import distributed

ranks = distributed.Ranks.from_env()
with ranks.connected("cpu"):
    time.sleep(2.5 * (1 - ranks.rank))  # rank 0 works on, on results say
print("done")
"""


def test_a_rank_that_has_left_is_not_lost() -> None:
    processes = commands.ranks(2, "-c", EARLIER)
    said = [process.communicate(timeout=120) for process in processes]
    assert said == [("done\n", "")] * 2
    assert [process.returncode for process in processes] == [0, 0]


FAULTY = '''
import os, signal, time
from pathlib import Path

from torch import Tensor
from lengthgen.errors import UserError
from lengthgen.schemes import AttentionContext, Part, ModelDims

class Faulty(Part):
    """Fails in a rank, in its fifth call in training or its first one in evaluation."""

    def __init__(self, shape: ModelDims, *, how: str, ranks: list[int], training: bool) -> None:
        super().__init__(shape)
        self.how, self.ranks = how, ranks
        self.calls = {training: 4 if training else 0}

    def embed(self, x_BTD: Tensor, c: AttentionContext) -> Tensor:
        self.calls[c.training] = self.calls.get(c.training, 10**9) - 1
        rank = os.environ.get("RANK")
        if self.calls[c.training] >= 0 or rank is None:
            return x_BTD
        if int(rank) in self.ranks:
            Path(f"failed-{rank}").touch()
            if self.how == "mistake":
                raise UserError("x is wrong; fix x")
            if self.how == "bug":
                raise ZeroDivisionError("a bug")
            if self.how == "kill torchrun":
                torchrun = os.getppid()
                os.kill(torchrun, signal.SIGKILL)
                while os.getppid() == torchrun:  # else training may end before it does
                    time.sleep(0.01)
                return x_BTD
            os.kill(os.getpid(), signal.SIGKILL)
        return x_BTD
'''
KILLED = "was killed by SIGKILL; the same command continues from the last checkpoint"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


class Failed(NamedTuple):
    """What a command left behind, and how long it went on after the failure."""

    code: int
    out: str
    err: str
    seconds: float
    status: dict[str, Any]

    @property
    def errors(self) -> list[str]:
        return [line for line in self.err.splitlines() if "error" in line.lower()]


def fail(
    folder: Path,
    how: str,
    *,
    ranks: Sequence[int] = (1,),
    training: bool = True,
    torchrun: bool = False,
) -> Failed:
    """Trains with two processes, of which some fail, in a folder."""
    folder.mkdir()
    (folder / "faulty.py").write_text(FAULTY)
    given = f"{{how:{how},ranks:{list(ranks)},training:{training}}}"
    words = [
        *("train", "scheme=nope", f"+scheme.parts.faulty={given}", "--plugin", "faulty.py"),
        *("corpus=synthetic", "corpus.documents=20", "corpus.document_tokens=512"),
        *("corpus.alphabet=16", "corpus.copy_tokens=8", "corpus.copies=4", "model.d_model=16"),
        *("model.n_heads=2", "model.n_layers=1", "model.d_ff=32", "train.length=32"),
        *("train.tokens=4096", "train.batch_tokens=128", "train.precision=fp32"),
        *("eval.lengths=[32,64]", "eval.targets=16", "eval.reach=64", "eval.endpoints=4"),
        "eval.protocols=[tail,sliding-2]",  # enough windows for a second pass, that of rank 1
        *("runtime.wandb=off", "runtime.device=cpu", "runtime.threads=1"),
    ]
    start, end = (TORCHRUN, []) if torchrun else ([], ["--gpus", "2"])
    program = [*start, "-m", "lengthgen", *words, *end]
    if how == "kill torchrun":  # whose processes are to be its children
        alone = [sys.executable, *program]
        ran = subprocess.run(
            alone, cwd=folder, env=one_thread_each(), capture_output=True, text=True, check=False
        )
    else:
        ran = commands.run(*program, cwd=folder, env=one_thread_each())
    failures = list(folder.glob("failed-*"))
    assert failures, ran.stderr
    [status] = folder.glob("runs/*/status.json")
    ended = time.time()
    if how == "kill torchrun":  # which its processes outlive
        while time.time() < ended + 60 and '"running"' in status.read_text():
            time.sleep(0.1)
        ended = time.time()
    seconds = ended - max(path.stat().st_mtime for path in failures)
    return Failed(ran.returncode, ran.stdout, ran.stderr, seconds, json.loads(status.read_text()))


FAILURES: dict[str, dict[str, Any]] = {  # the longest first
    "torchrun killed": {"how": "kill torchrun", "torchrun": True},
    "a mistake in all": {"how": "mistake", "ranks": (0, 1)},
    "a mistake in rank 1": {"how": "mistake"},
    "a mistake under torchrun": {"how": "mistake", "torchrun": True},
    "a bug in rank 1": {"how": "bug"},
    "rank 1 killed in training": {"how": "kill"},
    "rank 1 killed in evaluation": {"how": "kill", "training": False},
    "rank 0 killed in training": {"how": "kill", "ranks": (0,)},
}


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Failed]:
    """How each of the failures ended; four at a time, since most of their time they wait."""
    root = tmp_path_factory.mktemp("failed")
    with ThreadPoolExecutor(4) as pool:
        started = {
            name: pool.submit(fail, root / str(i), **given)
            for i, (name, given) in enumerate(FAILURES.items())
        }
        return {name: one.result() for name, one in started.items()}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_of_one_process_ends_all_within_seconds(
    failed: dict[str, Failed], name: str
) -> None:
    assert failed[name].seconds < 30


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("a mistake in all", 2, "error: x is wrong; fix x"),
        ("a mistake in rank 1", 2, "error: rank 1: x is wrong; fix x"),
        ("rank 1 killed in training", 137, f"error: rank 1 {KILLED}"),
        ("rank 1 killed in evaluation", 137, f"error: rank 1 {KILLED}"),
        ("rank 0 killed in training", 137, f"error: rank 0 {KILLED}"),
    ],
)
def test_a_failure_of_one_process_is_one_line_and_its_exit_code(
    failed: dict[str, Failed], name: str, code: int, said: str
) -> None:
    ended = failed[name]
    assert (ended.code, ended.out) == (code, "")
    assert ended.errors == [said]
    assert ended.err.splitlines()[-1] == said
    assert "Traceback" not in ended.err


def test_a_bug_in_one_process_keeps_its_traceback(failed: dict[str, Failed]) -> None:
    ended = failed["a bug in rank 1"]
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.count("Traceback") == 1
    assert "in embed" in ended.err
    assert ended.err.splitlines()[-2:] == [
        "ZeroDivisionError: a bug",
        "error: rank 1: ZeroDivisionError: a bug",
    ]


def test_torchrun_shows_the_message_of_the_rank_that_failed(failed: dict[str, Failed]) -> None:
    ended = failed["a mistake under torchrun"]
    assert ended.code == 1
    said = [line.strip() for line in ended.err.splitlines()]
    assert [line for line in said if "UserError: x is wrong; fix x" in line]


@pytest.mark.parametrize(
    ("name", "state", "reason"),
    [
        ("a mistake in all", "failed", "x is wrong; fix x"),
        ("a mistake in rank 1", "failed", "rank 1: x is wrong; fix x"),
        ("a bug in rank 1", "failed", "rank 1: ZeroDivisionError: a bug"),
        ("rank 1 killed in training", "failed", f"rank 1 {KILLED}"),
        ("rank 0 killed in training", "failed", f"rank 0 {KILLED}"),
        ("rank 1 killed in evaluation", "failed", f"rank 1 {KILLED}"),
        ("torchrun killed", "stopped", "stopped by SIGTERM after step "),
    ],
)
def test_the_status_of_a_run_says_which_rank_failed_and_why(
    failed: dict[str, Failed], name: str, state: str, reason: str
) -> None:
    assert failed[name].status["state"] == state
    assert failed[name].status["reason"].startswith(reason)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
