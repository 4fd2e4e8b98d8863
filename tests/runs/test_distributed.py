"""Several processes compute what one does; the first that fails ends them all, and is named."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import commands
import pytest
import torch
from commands import ended, here
from small import SMALL
from trained import one_thread_each, rows_of, weights_of

pytestmark = pytest.mark.slow
# 8 windows do not divide by 3 processes nor by 3 windows at a time.
RUNS = {
    "8 windows": ["scheme=alibi", "runtime.micro_batch=3", "train.tokens=1024"],
    "4 windows, with memory": [
        "scheme=transformer_xl_recurrent",
        "train.batch_tokens=64",
        "train.tokens=512",
    ],
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def words(root: Path, cache: Path, run: str) -> list[str]:
    return ["train", *SMALL, *RUNS[run], f"runtime.root={root}", f"runtime.cache={cache}"]


@pytest.mark.parametrize("n", [2, 3], ids="{} processes".format)
@pytest.mark.parametrize("run", RUNS)
def test_rows_and_weights_are_those_of_one_process(
    tmp_path: Path, cache: Path, run: str, n: int
) -> None:
    assert here(*words(tmp_path / "one", cache, run)).code == 0
    program = ["-m", "lengthgen", *words(tmp_path / "several", cache, run)]
    main, *others = [ended(process) for process in commands.ranks(n, *program)]
    assert [ran.code for ran in (main, *others)] == [0] * n, main.err
    assert "run: " in main.out
    assert {ran.out for ran in others} == {""}
    [one], [several] = ([*(tmp_path / name).glob("*-s1-*")] for name in ("one", "several"))
    rows = [rows_of(run_dir / "train.jsonl") for run_dir in (one, several)]
    for row, other in zip(*rows, strict=True):
        assert other["train/loss"] == pytest.approx(row["train/loss"], abs=1e-6)
        assert other["train/grad_norm"] == pytest.approx(row["train/grad_norm"], rel=1e-4)
    got = weights_of(several)
    for name, weight in weights_of(one).items():
        # A slow cosine of Transformer-XL adds nearly the same to all logits of a query, which
        # softmax ignores: its column's gradient is rounding alone, and Adam makes steps of that.
        if not name.endswith("W_R"):
            torch.testing.assert_close(got[name], weight, rtol=0, atol=2e-5)


EARLIER = """
import time
from lengthgen.runs import distributed

ranks = distributed.Ranks.from_env()
with ranks.connected("cpu"):
    time.sleep(2.5 * (1 - ranks.rank))  # rank 0 works on, on results say
print("done")
"""


def test_a_rank_that_has_left_is_not_lost() -> None:
    ran = [ended(process) for process in commands.ranks(2, "-c", EARLIER)]
    assert [(one.code, one.out) for one in ran] == [(0, "done\n")] * 2


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
