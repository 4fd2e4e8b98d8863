"""The status of a run: which process works on it, how the last one ended, whether it is trained."""

import fcntl
import json
import logging
import os
import platform
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from lengthgen.errors import Diverged, Stopped, UserError, first_line
from lengthgen.files import open_regular, read_bytes, replace_file, sync

State = Literal["running", "stopped", "killed", "failed", "diverged", "done"]


class Status(NamedTuple):
    """The state of a run, why it ended so, and the process that wrote it.

    `evaluated` is the config.evaluation_id of the curve that a run in the state done holds.
    """

    state: State
    reason: str | None = None
    evaluated: str | None = None
    host: str | None = None
    pid: int | None = None
    run: str | None = None


@contextmanager
def run_lock(run_dir: Path, work: str) -> Generator[None]:
    """Holds the run directory for one process that does this work: train, eval or probe.

    Raises UserError if another process holds it or the directory cannot be written.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        sync(run_dir.parent)
        file = (run_dir / f".{work}.lock").open("ab")
    except OSError as error:
        raise UserError(
            f"runtime.root: cannot write {run_dir} ({error.strerror}); free disk space or fix its "
            "permissions, or give runtime.root=FOLDER"
        ) from None
    with file:  # whose end is that of the lock
        if not _locked(file):
            status = _read(run_dir, run=run_dir.name) or Status("running")
            holder = f"process {status.pid} on {status.host}" if status.pid else "it"
            raise UserError(
                f"{run_dir}: another process is at work on this run ({work}); wait for it, or stop "
                f"{holder}"
            )
        yield


def _locked(file: BinaryIO) -> bool:
    """Locks an open file; False if another process holds it for longer than is_running takes."""
    for _ in range(10):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.05)
        except OSError:  # as on some network file systems
            message = "%s: no locks on this file system; let one process at a time work on a run"
            logging.getLogger(__name__).warning(message, file.name)
            return True
    return False


def is_running(run_dir: Path) -> bool:
    """True if a process trains this run, on any host that sees the same locks.

    Takes a shared lock, so that two processes that check do not see each other.
    """
    with suppress(OSError), open_regular(run_dir / ".train.lock") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextmanager
def record_status(run_dir: Path, *, run: str, evaluation_id: str) -> Generator[None]:
    """Writes status.json of the run with this id: running while the block lasts, then how it ended.

    On a disk that is full at the end the file stays as it was, and the block's error is raised.
    """
    write(run_dir, Status("running"), run=run)
    try:
        yield
        write(run_dir, Status("done", evaluated=evaluation_id), run=run)
    except BaseException as error:
        for _ in range(2):  # torchrun may send its signal during the first
            with suppress(UserError, KeyboardInterrupt):
                write(run_dir, _of_error(error), run=run)
                break
        raise


def _of_error(error: BaseException) -> Status:
    if isinstance(error, Stopped | KeyboardInterrupt):
        return Status("stopped", reason=str(error) or "interrupted")
    if isinstance(error, UserError):
        return Status("diverged" if isinstance(error, Diverged) else "failed", reason=str(error))
    return Status("failed", reason=f"{type(error).__name__}: {first_line(error)}".rstrip(": "))


def write(run_dir: Path, status: Status, *, run: str) -> None:
    """Writes status.json of the run with this id, as of this process."""
    own = status._replace(host=platform.node(), pid=os.getpid(), run=run)
    replace_file(run_dir / "status.json", json.dumps(own._asdict(), indent=1).encode())


def read_status(run_dir: Path, *, run: str) -> Status:
    """Returns the status of the run with this id, of which at least the directory is there.

    A run whose status.json says running although no process holds it was killed. Where the file is
    missing, damaged or of another run, DONE and the lock decide.
    """
    status = _read(run_dir, run=run) or Status("done" if is_trained(run_dir) else "stopped")
    if is_running(run_dir):
        return status._replace(state="running", reason=None, evaluated=None)
    if status.state == "running":
        reason = f"process {status.pid} on {status.host} ended without a report"
        return status._replace(state="killed", reason=reason)
    return status


def _read(run_dir: Path, *, run: str) -> Status | None:
    with suppress(UserError, TypeError):
        return Status(**(read_of_run(run_dir / "status.json", run=run) or {}))
    return None


def mark_trained(run_dir: Path, *, run: str, weights: str) -> None:
    """Writes DONE, with the sha256 of the last weights: training is complete."""
    replace_file(run_dir / "DONE", json.dumps({"run": run, "weights": weights}).encode())


def is_trained(run_dir: Path) -> bool:
    return (run_dir / "DONE").exists()


def final_weights(run_dir: Path, *, run: str) -> str | None:
    """Returns the sha256 of the weights after the last step; None if training is not complete."""
    return (read_of_run(run_dir / "DONE", run=run) or {}).get("weights")


def read_of_run(path: Path, *, run: str) -> dict[str, Any] | None:
    """Returns a JSON file of the run with this id, None if it is not there.

    Raises UserError if it cannot be read, is damaged, or is of another run.
    """
    try:
        content = json.loads(read_bytes(path))
        owner = content["run"]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); fix its permissions") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"{path} is damaged; restore it, or remove it and repeat the lengthgen train command "
            "of this run, which writes it again"
        ) from None
    if owner != run:
        raise UserError(f"{path} is of run {owner}, but config.yaml here of {run}; restore it")
    return content


def checkpoint_folder(run_dir: Path, step: int) -> Path:
    """Returns where the checkpoint of a step lies, or would."""
    return run_dir / "checkpoints" / f"step-{step:08d}"


def checkpoint_folders(run_dir: Path) -> list[Path]:
    """Returns the folders of the checkpoints that are there, valid or not, oldest first."""
    return sorted((run_dir / "checkpoints").glob("step-*"))


def last_step(run_dir: Path) -> int:
    """Returns the step of the newest checkpoint that is there, valid or not; 0 without any."""
    return max((int(path.name[5:]) for path in checkpoint_folders(run_dir)), default=0)
