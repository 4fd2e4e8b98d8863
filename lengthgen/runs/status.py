"""The status of a run: which process works on it, and how the last one ended."""

import errno
import fcntl
import hashlib
import json
import os
import platform
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout
from pydantic import TypeAdapter

from lengthgen.errors import Diverged, Stopped, UserError, first_line
from lengthgen.files import (
    Row,
    open_regular,
    read_bytes,
    replace_file,
    sync,
)

State = Literal["running", "stopped", "killed", "failed", "diverged", "done"]
_NO_FLOCK = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # as on some network file systems
SECONDS_OF_A_CHECK = 2.0  # a lock that another process only checks is free again by then


class Status(NamedTuple):
    """The state of a run, why it ended so, and the process that wrote it.

    `evaluated` is the config.evaluation_id of the curve that a run in the state done holds; None of
    runs older than this file. `run` is the id of the run's configuration; None in older files.
    """

    state: State
    reason: str | None = None
    evaluated: str | None = None
    host: str | None = None
    pid: int | None = None
    run: str | None = None


class Done(NamedTuple):
    """What DONE holds: the last step, the sha256 of its weights, and the rows of train.jsonl.

    Older files hold the step alone. A damaged one is of step 0.
    """

    step: int
    weights: str | None = None
    n_rows: int | None = None
    rows: str | None = None  # digest()


_STATUS = TypeAdapter(Status)
_DONE = TypeAdapter(Done)


@contextmanager
def run_lock(run_dir: Path, work: str) -> Generator[None]:
    """Holds the run directory for one process that does this work (train or eval).

    Raises UserError if another process holds it or the directory cannot be written.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        sync(run_dir.parent)
        lock = _acquired(run_dir, work)
    except Timeout:
        held = _read(run_dir / "status.json")
        holder = f"process {held.pid} on {held.host}" if held and held.state == "running" else "it"
        marker = _marker(run_dir, work)
        ended = f"; if that has ended, remove {marker}" if marker.exists() else ""
        raise UserError(
            f"{run_dir}: another process is at work on this run ({work}); wait for it, "
            f"or stop {holder}{ended}"
        ) from None
    except OSError as error:
        raise UserError(
            f"runtime.root: cannot write {run_dir} ({error.strerror}); free disk space or fix its "
            "permissions, or give runtime.root=FOLDER"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _acquired(run_dir: Path, work: str) -> BaseFileLock:
    """Returns the lock of this work, acquired; where there is no flock, a file names its holder.

    Raises Timeout if another process holds it, and OSError.
    """
    path = _lock(run_dir, work)
    flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o666), "rb") as file:
        has_flock = _is_locked(file) is not None
    lock = FileLock(path) if has_flock else SoftFileLock(_marker(run_dir, work))
    lock.acquire(timeout=SECONDS_OF_A_CHECK)
    return lock


def _is_locked(file: BinaryIO) -> bool | None:
    """True if another process holds a lock of this open file, None where there is no flock.

    Takes a shared lock, unlike that of `run_lock`: two processes that check do not take each other
    for one at work, and a root that cannot be written can be checked.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno in _NO_FLOCK:
            return None
        raise
    return False


def is_running(run_dir: Path) -> bool:
    """True if a process trains this run, on any host that sees the same locks."""
    try:
        with open_regular(_lock(run_dir, "train")) as file:
            locked = _is_locked(file)
    except OSError:  # there is no such file
        return False
    marker = _marker(run_dir, "train")
    if locked is not None or not marker.exists():
        return bool(locked)
    try:  # takes the place of a process of this host that has ended
        with SoftFileLock(marker, timeout=0):
            return False
    except OSError:  # Timeout, or a root that cannot be written
        return True


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
        _keep_error(run_dir, error, run=run)
        raise


def _keep_error(run_dir: Path, error: BaseException, *, run: str) -> None:
    """Writes how the block ended, even if a signal comes: `signals.interruptible` raises once.

    torchrun sends it to all within 0.1 s of losing a process, while the others write their status.
    """
    for _ in range(2):
        with suppress(UserError, KeyboardInterrupt):
            write(run_dir, _of_error(error), run=run)
            return


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
    found = _read(run_dir / "status.json")
    if found is not None and found.run not in (None, run):
        found = None
    if is_running(run_dir):
        return (found or Status("running"))._replace(state="running", reason=None, evaluated=None)
    if found is None:
        return Status("done" if is_trained(run_dir) else "stopped")
    if found.state == "running":
        reason = f"process {found.pid} on {found.host} ended without a report"
        return found._replace(state="killed", reason=reason)
    return found


def mark_trained(run_dir: Path, *, step: int, weights: str, rows: Sequence[Row]) -> None:
    """Writes DONE: training is complete; its evaluation may be not.

    weights: the sha256 of the last checkpoint's. rows: of train.jsonl.
    """
    done = Done(step, weights, len(rows), digest(rows))
    replace_file(run_dir / "DONE", json.dumps(done._asdict()).encode())


def digest(rows: Sequence[Row]) -> str:
    """Returns the sha256 of rows in their order."""
    total = hashlib.sha256()
    for row in rows:
        total.update(json.dumps(row).encode() + b"\n")
    return total.hexdigest()


def is_trained(run_dir: Path) -> bool:
    """True if training is complete."""
    return (run_dir / "DONE").exists()


def read_done(run_dir: Path) -> Done | None:
    """Returns what DONE holds, None if there is no DONE."""
    try:
        found = json.loads(read_bytes(run_dir / "DONE"))
        return _DONE.validate_python({"step": found} if isinstance(found, int) else found)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):  # pydantic's errors are ValueErrors
        return Done(0)


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


def _of_error(error: BaseException) -> Status:
    if isinstance(error, Stopped | KeyboardInterrupt):
        return Status("stopped", reason=str(error) or "interrupted")
    if isinstance(error, Diverged):
        return Status("diverged", reason=str(error))
    if isinstance(error, UserError):
        return Status("failed", reason=str(error))
    return Status("failed", reason=f"{type(error).__name__}: {first_line(error)}".rstrip(": "))


def _read(path: Path) -> Status | None:
    try:
        return _STATUS.validate_python(json.loads(read_bytes(path)))
    except (OSError, ValueError):  # pydantic's errors are ValueErrors
        return None


def _lock(run_dir: Path, work: str) -> Path:
    return run_dir / f".{work}.lock"


def _marker(run_dir: Path, work: str) -> Path:
    """Returns the file that stands in for the lock where there is no flock."""
    return run_dir / f".{work}.holder"
