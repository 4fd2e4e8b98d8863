"""What a run says of itself is true, whoever asks and however its last process ended."""

import errno
import fcntl
import json
import os
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from lengthgen.errors import Diverged, Stopped, UserError
from lengthgen.runs import status
from lengthgen.runs.status import Status

LOWER = "lower runtime.micro_batch, the longest of eval.lengths or the model's size"
ENDS = [
    (Stopped("stopped by SIGTERM", exit_code=143), "stopped", "stopped by SIGTERM"),
    (KeyboardInterrupt(), "stopped", "interrupted"),
    (Diverged("the loss is nan"), "diverged", "the loss is nan"),
    (UserError("no room"), "failed", "no room"),
    (ValueError("a bug\nin two lines"), "failed", "ValueError: a bug"),
    (KeyError(), "failed", "KeyError"),
    (MemoryError("8 GiB"), "failed", f"out of memory (8 GiB); {LOWER}"),
]


def said(run_dir: Path) -> tuple[str, str | None]:
    state, reason, *_ = status.read_status(run_dir, run="rope")
    return state, reason


def recorded(run_dir: Path) -> AbstractContextManager[None]:
    return status.record_status(run_dir, run="rope", evaluation_id="abc")


def end_with(error: BaseException, run_dir: Path) -> None:
    with pytest.raises(type(error)), recorded(run_dir):
        raise error


@pytest.mark.parametrize(("error", "state", "reason"), ENDS)
def test_a_run_says_why_it_ended(
    tmp_path: Path, error: BaseException, state: str, reason: str
) -> None:
    end_with(error, tmp_path)
    assert said(tmp_path) == (state, reason)
    with status.run_lock(tmp_path, "train"):  # by another process that works on it again
        assert said(tmp_path) == ("running", None)


def test_a_run_whose_process_died_was_killed(tmp_path: Path) -> None:
    status.write_status(tmp_path, Status("running"), run="rope")  # of which no process has the lock
    state, reason = said(tmp_path)
    assert state == "killed"
    assert f"process {os.getpid()} on " in str(reason)


@pytest.mark.parametrize("work", ["train", "eval"])
def test_a_pipe_in_place_of_a_lock_is_refused_at_once(tmp_path: Path, work: str) -> None:
    os.mkfifo(tmp_path / f".{work}.lock")
    refused = pytest.raises(UserError, match=rf"cannot write .*/\.{work}\.lock")
    with refused, status.run_lock(tmp_path, work):
        pass
    assert not status.is_running(tmp_path)


STATUS = {"run": "rope", "state": "failed", "reason": "why", "evaluated": None, "pid": 1}
WRONG = [("state", 3), ("state", "odd"), ("reason", 1), ("evaluated", []), ("pid", "1")]
DAMAGES = ["", "[]\n", '{"run": "rope", "stat": "done"}\n'] + [
    json.dumps({**STATUS, key: value}) + "\n" for key, value in WRONG
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_status_leaves_what_else_the_run_says(tmp_path: Path, damage: str) -> None:
    (tmp_path / "status.json").write_text(damage)
    assert said(tmp_path) == ("stopped", None)
    (tmp_path / "DONE").touch()
    assert said(tmp_path) == ("done", None)


def test_those_who_look_at_a_run_never_see_each_other_and_stop_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with status.run_lock(tmp_path, "train"):
        pass
    file = (tmp_path / ".train.lock").open("rb")
    fcntl.flock(file, fcntl.LOCK_SH)  # as status.is_running does
    assert not status.is_running(tmp_path)
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    monkeypatch.setattr("time.sleep", lambda seconds=0.0: file.close())  # meanwhile
    with status.run_lock(tmp_path, "train"):
        assert file.closed


def test_a_file_system_without_locks_works_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def flock(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with status.run_lock(tmp_path, "train"), recorded(tmp_path):
        assert not status.is_running(tmp_path)
    assert said(tmp_path) == ("done", None)
    assert "no locks on this file system; let one process at a time work on a run" in caplog.text


def test_a_run_at_work_and_a_root_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    run_dir = tmp_path / "rope"
    with (
        status.run_lock(run_dir, "train"),
        recorded(run_dir),
        pytest.raises(UserError, match=f"or stop process {os.getpid()} on "),
        status.run_lock(run_dir, "train"),
    ):
        pass
    at_eval = status.run_lock(run_dir, "eval")  # not of the process that has trained it
    with at_eval, pytest.raises(UserError, match=r"or stop it$"), status.run_lock(run_dir, "eval"):
        pass
    (tmp_path / "file").write_text("")
    lock = status.run_lock(tmp_path / "file" / "run", "train")
    with pytest.raises(UserError, match=r"runtime\.root: cannot write"), lock:
        pass
