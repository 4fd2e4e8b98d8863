"""The status of a run: which process works on it, how the last one ended, whether it is trained."""

import errno
import fcntl
import json
import logging
import os
import platform
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from pydantic import TypeAdapter

from lengthgen.errors import Diverged, Stopped, UserError, first_line
from lengthgen.files import open_regular, read_bytes, replace_file, sync

State = Literal["running", "stopped", "killed", "failed", "diverged", "done"]
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # as on some network file systems
SECONDS_OF_A_CHECK = 2.0  # a lock that another process only checks is free again by then


class Status(NamedTuple):
    """The state of a run, why it ended so, and the process that wrote it.

    `evaluated` is the config.evaluation_id of the curve that a run in the state done holds. `run`
    is the id of the run's configuration.
    """

    state: State
    reason: str | None = None
    evaluated: str | None = None
    host: str | None = None
    pid: int | None = None
    run: str | None = None


class Done(NamedTuple):
    """What DONE holds: the run, and the sha256 of its weights after the last step."""

    run: str
    weights: str


_STATUS = TypeAdapter(Status)
_DONE = TypeAdapter(Done)


@contextmanager
def run_lock(run_dir: Path, work: str) -> Generator[None]:
    """Holds the run directory for one process that does this work (train or eval).

    Raises UserError if another process holds it or the directory cannot be written. On a file
    system without locks the work goes on, and a warning says that nothing keeps others away.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        sync(run_dir.parent)
        file = _lock_file(run_dir, work).open("ab")
    except OSError as error:
        raise UserError(
            f"runtime.root: cannot write {run_dir} ({error.strerror}); free disk space or fix its "
            "permissions, or give runtime.root=FOLDER"
        ) from None
    with file:  # whose end is that of the lock
        if not _locked(file):
            status = _read(run_dir)
            holder = "it"
            if status is not None and status.state == "running":
                holder = f"process {status.pid} on {status.host}"
            raise UserError(
                f"{run_dir}: another process is at work on this run ({work}); wait for it, "
                f"or stop {holder}"
            )
        yield


def _locked(file: BinaryIO) -> bool:
    """Locks an open file; False if another process holds it for longer than a check takes."""
    until = time.monotonic() + SECONDS_OF_A_CHECK
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            logging.getLogger(__name__).warning(
                "%s: this file system has no locks; let one process at a time work on a run",
                file.name,
            )
            return True
        else:
            return True


def is_running(run_dir: Path) -> bool:
    """True if a process trains this run, on any host that sees the same locks.

    Takes a shared lock: two processes that check do not take each other for one at work, and a
    root that cannot be written can be checked.
    """
    with suppress(OSError), open_regular(_lock_file(run_dir, "train")) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _lock_file(run_dir: Path, work: str) -> Path:
    return run_dir / f".{work}.lock"


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
    if isinstance(error, Diverged):
        return Status("diverged", reason=str(error))
    if isinstance(error, UserError):
        return Status("failed", reason=str(error))
    return Status("failed", reason=f"{type(error).__name__}: {first_line(error)}".rstrip(": "))


def write(run_dir: Path, status: Status, *, run: str) -> None:
    """Writes status.json of the run with this id, as of this process.

    Raises UserError if it cannot be written.
    """
    own = status._replace(host=platform.node(), pid=os.getpid(), run=run)
    replace_file(run_dir / "status.json", json.dumps(own._asdict(), indent=1).encode())


def read_status(run_dir: Path, *, run: str) -> Status:
    """Returns the status of the run with this id, of which at least the directory is there.

    A run whose status.json says running although no process holds it was killed. Where the file is
    missing, damaged or of another run, DONE and the lock decide.
    """
    status = _read(run_dir)
    if status is not None and status.run != run:
        status = None
    if is_running(run_dir):
        return (status or Status("running"))._replace(state="running", reason=None, evaluated=None)
    if status is None:
        return Status("done" if is_trained(run_dir) else "stopped")
    if status.state == "running":
        reason = f"process {status.pid} on {status.host} ended without a report"
        return status._replace(state="killed", reason=reason)
    return status


def _read(run_dir: Path) -> Status | None:
    try:
        return _STATUS.validate_json(read_bytes(run_dir / "status.json"))
    except (OSError, ValueError):  # pydantic's errors are ValueErrors
        return None


def mark_trained(run_dir: Path, *, run: str, weights: str) -> None:
    """Writes DONE: training is complete; its evaluation may be not."""
    replace_file(run_dir / "DONE", json.dumps(Done(run, weights)._asdict()).encode())


def is_trained(run_dir: Path) -> bool:
    """True if training is complete."""
    return (run_dir / "DONE").exists()


def read_done(run_dir: Path, *, run: str) -> Done | None:
    """Returns what DONE holds, None if there is no DONE.

    Raises UserError if it is of another run, damaged, or cannot be read.
    """
    path = run_dir / "DONE"
    try:
        done = _DONE.validate_json(read_bytes(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); fix its permissions") from None
    except ValueError:  # pydantic's errors are ValueErrors
        raise UserError(
            f"{path} is damaged; remove it: the lengthgen train command of this run writes it again"
        ) from None
    if done.run != run:
        raise UserError(
            f"{path} is of run {done.run}, but config.yaml here is of run {run}; restore it, or "
            "move it away"
        )
    return done


def checkpoint_folder(run_dir: Path, step: int) -> Path:
    """Returns where the checkpoint of a step lies, or would."""
    return run_dir / "checkpoints" / f"step-{step:08d}"


def checkpoint_folders(run_dir: Path) -> list[Path]:
    """Returns the folders of the checkpoints that are there, valid or not, oldest first."""
    return sorted((run_dir / "checkpoints").glob("step-*"))


def last_step(run_dir: Path) -> int:
    """Returns the step of the newest checkpoint that is there, valid or not; 0 without any."""
    steps = (path.name.removeprefix("step-") for path in checkpoint_folders(run_dir))
    return max((int(step) for step in steps if step.isdecimal()), default=0)
