"""Whatever ends a command, rerunning it resumes, and nothing that was right is lost."""

import errno
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import files_limited_to, here, one_run, result, run, train_words
from safetensors.torch import load_file
from trained import newest_checkpoint

from lengthgen.runs import status
from lengthgen.runs.checkpoints import FILES


def content_of(root: Path) -> dict[Path, bytes]:
    kept = ("checkpoints", "train.jsonl", "eval.jsonl", "DONE")
    return {p: p.read_bytes() for p in root.rglob("*") if p.is_file() and {*kept} & {*p.parts}}


KILLED = """
import os, signal, sys
import torch._dynamo  # as an optimizer does in its first step
from lengthgen import pipeline
from lengthgen.cli import app  # once: each attempt is a fork

fsync = os.fsync

def killed(descriptor):
    if written in os.readlink(f"/proc/self/fd/{descriptor}"):
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(descriptor)

os.fsync = killed
for written in sys.argv.pop(1).split():
    attempt = os.fork()
    if attempt == 0:
        app.main()
    print(os.waitpid(attempt, 0)[1], file=sys.stderr)
"""


@pytest.mark.slow
def test_a_run_killed_again_and_again_ends_as_its_twin(tmp_path: Path, undisturbed: Path) -> None:
    """Each attempt dies as it writes what the one before did not come to."""
    keeping = ("scheme=rope", "train.keep_checkpoints=4")
    words = train_words(tmp_path, *keeping)
    files = "status.json config.yaml env.json /train.jsonl kept/ checkpoints/ DONE eval.jsonl"
    said = run("-c", KILLED, files, *words).err.splitlines()
    ends = [line for line in said if line.isdecimal()]
    assert ends == [str(int(signal.SIGKILL))] * len(files.split())
    ran = here(*words)
    assert ran.code == 0, ran.err
    assert result(tmp_path) == result(undisturbed)
    folders = {p.name for p in one_run(tmp_path).glob("kept/*")}
    assert folders == {f"step-{n:08d}" for n in (1, 2, 4)}
    left = [p for p in one_run(tmp_path).glob("checkpoints/*") if not p.name.startswith("step-")]
    assert left == []


def cut_train_rows(run_dir: Path) -> None:
    path = run_dir / "train.jsonl"
    os.truncate(path, path.stat().st_size - 40)
    (run_dir / "DONE").unlink()
    shutil.rmtree(newest_checkpoint(run_dir))


HARMS: list[Callable[[Path], object]] = [
    cut_train_rows,
    lambda run_dir: (run_dir / "status.json").write_text("{"),
    lambda run_dir: (run_dir / "config.yaml").unlink(),
]


@pytest.mark.parametrize("harm", HARMS)
def test_the_same_command_repairs_what_a_crash_may_leave(
    trained: Path, undisturbed: Path, harm: Callable[[Path], object]
) -> None:
    harm(one_run(trained))
    ran = here(*train_words(trained, "scheme=rope"))
    assert ran.code == 0, ran.err
    assert result(trained) == result(undisturbed)


def test_a_lost_last_checkpoint_is_not_replaced_by_the_one_before(trained: Path) -> None:
    run_dir = one_run(trained)
    shutil.rmtree(newest_checkpoint(run_dir))
    said = here("eval", str(run_dir), "--lengths", "24").error
    assert "the checkpoint of step 8 is lost" in said


@pytest.mark.parametrize("name", [*FILES, "sha256.json", "DONE", "train.jsonl"])
def test_what_cannot_be_read_is_one_line_and_nothing_is_trained_or_deleted(
    trained: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in ("train.jsonl", "trainer.pt"):
        (one_run(trained) / "DONE").unlink()
    before, opened = content_of(trained), os.open

    def refused(path: Any, flags: int, *given: Any, **named: Any) -> int:
        if str(path).startswith(str(trained)) and Path(path).name == name and not flags & 3:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return opened(path, flags, *given, **named)

    monkeypatch.setattr(os, "open", refused)
    said = here(*train_words(trained, "scheme=rope")).error
    monkeypatch.undo()
    assert f"{name}: cannot be read ({os.strerror(errno.EIO)})" in said
    assert "remove" not in said
    assert content_of(trained) == before


@pytest.mark.slow
def test_without_room_training_stops_and_goes_on(tmp_path: Path, undisturbed: Path) -> None:
    words = train_words(tmp_path, "scheme=rope")
    refused: list[str] = []
    for n_bytes in (0, 600, 20_000, 100_000):  # larger files fit at every one
        with files_limited_to(n_bytes):
            refused.append(here(*words).error)
        assert str(tmp_path) in refused[-1]
        assert "free disk space" in refused[-1]
        assert "inline_container" not in refused[-1]  # of torch.save
    assert [said for said in refused if "checkpoints/step-" in said]
    ran = here(*words)
    assert ran.code == 0, ran.err
    assert result(tmp_path) == result(undisturbed)


def test_a_run_that_diverges_is_marked_so_and_keeps_the_checkpoint_before(tmp_path: Path) -> None:
    words = train_words(tmp_path, "scheme=rope", "train.lr=1e9", "train.checkpoint_every=1")
    said = here(*words).error
    assert said.startswith("the loss is nan in step ")
    run_dir = one_run(tmp_path)
    state = status.read_status(run_dir, run=run_dir.name)
    assert (state.state, state.reason) == ("diverged", said)
    weights = load_file(newest_checkpoint(run_dir) / "model.safetensors")
    assert all(weight.isfinite().all() for weight in weights.values())
    assert here(*words).error == said
