"""Several processes compute what one does; the first that fails ends them all, and is named."""

import json
import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import commands
import pytest
import torch
from commands import here
from small import SMALL
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from trained import rows_of, weights_of

from lengthgen.runs import distributed
from lengthgen.runs.distributed import CONTINUES, Failed

MEMORY = ["train.batch_tokens=64", "train.tokens=512"]
DROPOUT = ["model.dropout=0.3", "train.lr=1e-3"]  # Adam moves what is left of rounding by the rate
RUNS = {  # by the number of processes; 8 windows do not divide by 3, nor by 3 windows at a time
    3: ["scheme=alibi", "runtime.micro_batch=3", "train.tokens=1024", *DROPOUT],
    2: ["scheme=transformer_xl_recurrent", *MEMORY],
}


@pytest.mark.slow
@pytest.mark.parametrize("n", RUNS, ids="{} processes".format)
def test_rows_and_weights_are_those_of_one_process(tmp_path: Path, n: int) -> None:
    words = ["train", *SMALL, *RUNS[n], f"runtime.cache={tmp_path}/cache"]
    assert here(*words, f"runtime.root={tmp_path}/one").code == 0
    several = (*words, f"runtime.root={tmp_path}/several", "--gpus", str(n))
    ran = commands.run("-m", "lengthgen", *several)
    assert ran.code == 0, ran.err
    assert (ran.out.count("Perplexity"), ran.out.count("run: ")) == (1, 1)
    assert len(re.findall("train .*: 0/[0-9,]+ tokens", ran.err)) == 1
    [one], [more] = ([*(tmp_path / name).glob("*-s1-*")] for name in ("one", "several"))
    rows = [rows_of(run_dir / "train.jsonl") for run_dir in (one, more)]
    for row, other in zip(*rows, strict=True):
        assert other["train/loss"] == pytest.approx(row["train/loss"], abs=1e-6)
        assert other["train/grad_norm"] == pytest.approx(row["train/grad_norm"], rel=1e-4)
    assert len(rows_of(one / "eval.jsonl")) == len(rows_of(more / "eval.jsonl")) > 0
    got = weights_of(more)
    for name, weight in weights_of(one).items():
        # A slow cosine of Transformer-XL adds nearly the same to all logits of a query, which
        # softmax ignores: its column's gradient is rounding alone, and Adam makes steps of that.
        if not name.endswith("W_R"):
            torch.testing.assert_close(got[name], weight, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    "given",
    [{"RANK": "abc"}, {"RANK": "3"}, {"RANK": "-1"}, {"WORLD_SIZE": "x"}, {"WORLD_SIZE": "2"}],
)
def test_an_environment_that_is_not_torchrun_s_is_refused(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
        said = here("train", *SMALL).error
        assert f"{name}={value}" in said
        assert "unset them, or start with lengthgen train --gpus N" in said
    monkeypatch.setattr("os.environ", {"RANK": "", "WORLD_SIZE": ""})
    assert distributed.Ranks.from_env() == distributed.ALONE


STOPPED = (143, None)
LOST = (2, "RankLost: another process of this run was lost (gloo)")


@pytest.mark.parametrize(
    ("ends", "want"),
    [
        (((2, "UserError: fix x"), (2, "UserError: fix x")), Failed(0, "fix x", 2)),
        ((LOST, (2, "UserError: fix x")), Failed(1, "rank 1: fix x", 2)),
        ((STOPPED, (1, "KeyError: 7")), Failed(1, "rank 1: KeyError: 7", 1)),
        ((LOST, (-9, None)), Failed(1, f"rank 1 was killed by SIGKILL; {CONTINUES}", 137)),
        (((-9, None), STOPPED), Failed(0, f"rank 0 was killed by SIGKILL; {CONTINUES}", 137)),
        ((LOST, LOST), Failed(0, "another process of this run was lost (gloo)", 2)),
        ((STOPPED, STOPPED), Failed(0, f"rank 0 ended with exit code 143; {CONTINUES}", 143)),
    ],
)
def test_the_failure_that_ended_the_others_is_the_one_that_is_named(
    tmp_path: Path, ends: tuple[tuple[int, str | None], ...], want: Failed
) -> None:
    failures: dict[int, ProcessFailure] = {}
    for rank, (code, message) in enumerate(ends):
        file = tmp_path / str(rank)
        extra = {"py_callstack": "trace\n", "timestamp": "0"}
        if message is not None:
            file.write_text(json.dumps({"message": {"message": message, "extraInfo": extra}}))
        failures[rank] = ProcessFailure(rank, 1, code, str(file))
    assert distributed.first_failure(failures) == want


FAULTY = '''
import os, signal, time
from pathlib import Path

from torch import Tensor
from lengthgen.schemes import AttentionContext, Part, ModelDims

class Faulty(Part):
    """Fails in rank 1, in its fifth call in training or its first one in evaluation."""

    def __init__(self, shape: ModelDims, *, how: str, training: bool) -> None:
        super().__init__(shape)
        self.how = how
        self.calls = {training: 4 if training else 0}

    def embed(self, x_BTD: Tensor, c: AttentionContext) -> Tensor:
        self.calls[c.training] = self.calls.get(c.training, 10**9) - 1
        if self.calls[c.training] >= 0 or os.environ.get("RANK") != "1":
            return x_BTD
        Path("failed").touch()
        if self.how == "bug":
            raise ZeroDivisionError("a bug")
        if self.how == "kill torchrun":
            torchrun = os.getppid()
            os.kill(torchrun, signal.SIGKILL)
            while os.getppid() == torchrun:  # else training may end before it does
                time.sleep(0.01)
            return x_BTD
        os.kill(os.getpid(), signal.SIGKILL)
'''
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


class Ended(NamedTuple):
    """What a command left behind, and how long it went on after the failure."""

    code: int
    out: str
    err: str
    seconds: float
    status: Mapping[str, Any]


def fail(folder: Path, how: str, *, training: bool = True, torchrun: bool = False) -> Ended:
    """Trains with two processes, of which the second fails, in a folder."""
    folder.mkdir()
    (folder / "faulty.py").write_text(FAULTY)
    own = ["scheme=nope", f"+scheme.parts.faulty={{how:{how},training:{training}}}"]
    # enough windows for a second pass, that of rank 1
    own += ["--plugin", "faulty.py", "eval.protocols=[tail,sliding-2]", "eval.targets=16"]
    start, end = (TORCHRUN, []) if torchrun else ([], ["--gpus", "2"])
    ran = commands.run(*start, "-m", "lengthgen", "train", *SMALL, *own, *end, cwd=folder)
    assert (folder / "failed").exists(), ran.err
    [status] = folder.glob("runs/*/status.json")
    until = time.time() + 60
    while '"running"' in status.read_text() and time.time() < until:  # torchrun's ranks outlive it
        time.sleep(0.05)
    seconds = time.time() - (folder / "failed").stat().st_mtime
    said = json.loads(status.read_text())
    return Ended(*ran, seconds, said)


FAILURES: dict[str, dict[str, Any]] = {
    "torchrun killed": {"how": "kill torchrun", "torchrun": True},
    "a bug": {"how": "bug"},
    "a kill in evaluation": {"how": "kill", "training": False},
}


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """How each of the failures ended; all at once, since most of their time they wait."""
    root = tmp_path_factory.mktemp("failed")
    with ThreadPoolExecutor(4) as pool:
        started = {n: pool.submit(fail, root / n, **given) for n, given in FAILURES.items()}
        return {name: future.result() for name, future in started.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "code", "fragment", "state", "reason"),
    [
        ("torchrun killed", -9, "", "stopped", "stopped by SIGTERM after step "),
        ("a bug", 1, "error: rank 1: ZeroDivisionError: a bug\n", "failed",
         "rank 1: ZeroDivisionError: a bug"),
        ("a kill in evaluation", 137, f"error: rank 1 was killed by SIGKILL; {CONTINUES}\n",
         "failed", f"rank 1 was killed by SIGKILL; {CONTINUES}"),
    ],
)  # fmt: skip
def test_a_failure_of_one_process_ends_all_within_seconds_and_says_why(
    failed: dict[str, Ended], name: str, code: int, fragment: str, state: str, reason: str
) -> None:
    ended = failed[name]
    assert (ended.code, ended.out) == (code, "")
    assert ended.seconds < 30
    assert fragment in ended.err
    assert ended.err.count("Traceback") == (name == "a bug")
    assert ended.status["state"] == state
    assert ended.status["reason"].startswith(reason)
