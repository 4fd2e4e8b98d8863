"""Several processes compute what one does; the first that fails ends them all, and is named."""

import json
import re
from pathlib import Path

import commands
import pytest
import torch
from commands import here
from repository import TELLING
from small import SMALL, refusal, small_config
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from trained import rows_of, weights_of

from lengthgen.runs import distributed, status
from lengthgen.runs.devices import device_of
from lengthgen.runs.distributed import CONTINUES, Failed, Ranks

# 8 windows, which carry a memory, do not divide by 3 processes, nor by 2 windows at a time each.
UNEVEN = [
    *("scheme=transformer_xl_recurrent", "runtime.micro_batch=2", "model.dropout=0.3"),
    "train.lr=1e-3",  # Adam moves what is left of rounding by the rate
]


@pytest.mark.slow
def test_rows_and_weights_are_those_of_one_process(tmp_path: Path) -> None:
    words = ["train", *SMALL, *UNEVEN, f"runtime.cache={tmp_path}/cache"]
    assert here(*words, f"runtime.root={tmp_path}/one").code == 0
    several = (*words, f"runtime.root={tmp_path}/several", "--gpus", "3")
    ran = commands.run("-m", "lengthgen", *several)
    assert ran.code == 0, ran.err
    assert (ran.out.count("Perplexity"), ran.out.count("run: ")) == (1, 1)
    assert len(re.findall("train .*: 0/[0-9,]+ tokens", ran.err)) == 1
    [one], [more] = ([*(tmp_path / name).glob("*-s1-*")] for name in ("one", "several"))
    rows = [rows_of(run_dir / "train.jsonl") for run_dir in (one, more)]
    for row, other in zip(*rows, strict=True):
        assert other["train/loss"] == pytest.approx(row["train/loss"], abs=1e-6)
        assert other["train/grad_norm"] == pytest.approx(row["train/grad_norm"], rel=1e-4)
    log = more / "eval.jsonl"
    by_three = {str(row) for row in rows_of(log)}
    assert len(rows_of(one / "eval.jsonl")) == len(by_three) > 0
    log.unlink()
    assert here("eval", str(more), f"runtime.cache={tmp_path}/cache").code == 0
    assert {str(row) for row in rows_of(log)} == by_three  # to the bit
    got = weights_of(more)
    for name, weight in weights_of(one).items():
        # A slow cosine of Transformer-XL adds nearly the same to all logits of a query, which
        # softmax ignores: its column's gradient is rounding alone, and Adam makes steps of that.
        if not name.endswith("W_R"):
            torch.testing.assert_close(got[name], weight, rtol=0, atol=2e-5)


@pytest.mark.slow
def test_a_run_that_one_process_cannot_evaluate_is_left_out_by_all(tmp_path: Path) -> None:
    for seed in (1, 2):
        words = [*SMALL, "scheme=nope", f"seed={seed}", f"runtime.root={tmp_path}/runs"]
        assert here("train", *words).code == 0
    one, other = sorted((tmp_path / "runs").glob("nope-*"))
    for log in tmp_path.glob("runs/*/eval.jsonl"):
        log.unlink()
    with status.run_lock(one, "eval"):  # which the main process alone asks for
        ran = commands.ranks(2, "eval", str(one), str(other))
    assert (ran.code, "| nope " in ran.out) == (1, True), ran.err
    assert f"{one} is not evaluated: {one}: another process is at work" in ran.err
    assert len({row["document"] for row in rows_of(other / "eval.jsonl")}) > 1


@pytest.mark.slow
def test_processes_that_see_different_checkpoints_take_no_step(tmp_path: Path) -> None:
    words = ["train", *SMALL, "scheme=nope", f"runtime.cache={tmp_path}/cache"]
    assert here(*words, f"runtime.root={tmp_path}/0").code == 0
    (run_dir,) = (tmp_path / "0").glob("nope-*")
    (run_dir / "DONE").unlink()
    root = f"runtime.root={tmp_path}/${{oc.env:RANK}}"
    ran = commands.ranks(2, *words, root)
    assert "processes see different checkpoints; set runtime.root to one folder" in ran.err
    assert not (run_dir / "DONE").exists()


@pytest.mark.parametrize("word", ["RANK=abc", "RANK=3", "WORLD_SIZE=x", "WORLD_SIZE=2"])
def test_an_environment_that_is_not_torchrun_s_is_refused(
    word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*word.split("="))
    said = here("train", *SMALL).error
    assert word in said
    assert "unset them, or start with lengthgen train --gpus N" in said
    monkeypatch.setattr("os.environ", {"RANK": "", "WORLD_SIZE": ""})
    assert distributed.Ranks.from_env() == distributed.ALONE
    monkeypatch.setattr("os.environ", {"WORLD_SIZE": "2", "MASTER_ADDR": "node"})
    assert "with MASTER_ADDR and MASTER_PORT" in refusal(distributed.Ranks.from_env)


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
        (((2, "Refused: runs/x is in use"), STOPPED), Failed(0, "runs/x is in use", 2)),
        ((LOST, LOST), Failed(0, "another process of this run was lost (gloo)", 2)),
        ((STOPPED, STOPPED), Failed(0, "", 143)),
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
import os
from lengthgen.schemes import Part

class Faulty(Part):
    """Fails in the evaluation of rank 1."""

    def __init__(self, shape) -> None:
        super().__init__(shape)
        self.has_trained = False

    def embed(self, x_BTD, c):
        self.has_trained |= c.training
        if os.environ.get("RANK") == "1" and not self.has_trained:
            raise ZeroDivisionError("a bug")
        return x_BTD
'''
FAULT = "rank 1: scheme.parts.faulty: ZeroDivisionError: a bug ("
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plugin", "killed", "start", "code", "said", "reason"),
    [
        (TELLING, "$(ps -o ppid= $PPID)", TORCHRUN, -9, "", "stopped by SIGTERM after step 5"),
        (TELLING, "$PPID", [], 137, f"error: rank 0 was killed by SIGKILL; {CONTINUES}", None),
        (Path("faulty.py"), None, [], 2, f"error: {FAULT}", FAULT),
    ],
    ids=["torchrun is killed", "a process is killed", "a process fails"],
)
def test_the_end_of_torchrun_or_of_one_process_ends_all_and_says_why(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plugin: Path,
    killed: str | None,
    start: list[str],
    code: int,
    said: str,
    reason: str | None,
) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    words = ["train", *SMALL, "scheme=nope", "--plugin", str(plugin)]
    if killed is not None:
        monkeypatch.setenv("TELL", f"kill -KILL {killed}")
    else:  # enough windows for a second pass, that of rank 1
        words += ["+scheme.parts.faulty={}", "eval.protocols=[tail,sliding-2]", "eval.targets=16"]
    end = [] if start else ["--gpus", "2"]
    ran = commands.run(*start, "-m", "lengthgen", *words, *end, cwd=tmp_path)
    assert (ran.code, ran.out, "Traceback" in ran.err) == (code, "", False), ran
    assert said in ran.err
    [file] = tmp_path.glob("runs/*/status.json")
    if reason is not None:  # else nobody was left to write it
        assert str(json.loads(file.read_text())["reason"]).startswith(reason)


@pytest.mark.parametrize(("visible", "local_id", "index"), [(8, None, 3), (1, "3", 0), (1, "0", 3)])
def test_a_process_takes_its_own_gpu_also_where_it_sees_no_other(
    visible: int, local_id: str | None, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    if local_id is not None:
        monkeypatch.setenv("SLURM_LOCALID", local_id)  # of srun, which binds each task to a GPU
    runtime = small_config("runtime.device=cuda").runtime
    fourth = Ranks(rank=3, world_size=8, local_rank=3)
    if index < visible:
        assert device_of(runtime, fourth) == torch.device("cuda", index)
    else:  # processes of one torchrun
        assert "process 3 of this machine has no GPU" in refusal(device_of, runtime, fourth)
