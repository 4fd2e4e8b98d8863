"""The status of a run: which process works on it, how the last one ended, whether it is trained."""

import logging
import os
import platform
import re
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from io import IOBase
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lengthgen.config.sections import validate
from lengthgen.errors import Diverged, Stopped, UserError, first_line, out_of_memory
from lengthgen.files import at_once, names_in, open_regular, read_rows, sync, write_rows
from lengthgen.runs.signals import SCHEDULER, handled

State = Literal["running", "stopped", "killed", "failed", "diverged", "done"]


class Status(NamedTuple):
    """The state of a run, why it ended so, and the process that wrote it."""

    state: State
    reason: str | None = None
    evaluated: str | None = None  # config.evaluation_id of the curve that a run that is done holds
    host: str | None = None
    pid: int | None = None


@contextmanager
def run_lock(run_dir: Path, work: str) -> Generator[None]:
    """Holds the run directory for one process that does this work: train, eval or probe.

    Raises UserError if another process holds it or the directory cannot be written.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        sync(run_dir.parent)
        file = open(run_dir / f".{work}.lock", "ab", opener=at_once)  # noqa: SIM115
    except OSError as error:
        raise UserError(
            f"runtime.root: cannot write {error.filename} ({error.strerror}); free disk space or "
            "fix its permissions, or give runtime.root=FOLDER"
        ) from None
    with file:  # whose end is that of the lock
        until = time.monotonic() + 0.5  # longer than is_running takes
        while not locked(file):
            if time.monotonic() > until:
                state, *_, host, pid = read_status(run_dir, run=run_dir.name)
                holder = f"process {pid} on {host}" if state == "running" and pid else "it"
                raise UserError(
                    f"{run_dir}: another process is at work on this run ({work}); wait for it, or "
                    f"stop {holder}"
                )
            time.sleep(0.05)
        yield


def locked(file: IOBase, *, shared: bool = False) -> bool:
    """Locks an open file; False if another process holds it."""
    try:
        import fcntl

        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (OSError, ImportError):  # as on some network file systems, and on Windows
        message = "no locks on this file system; let one process at a time work on a run"
        logging.getLogger(__name__).warning(message)
    return True


def is_running(run_dir: Path) -> bool:
    """True if a process trains this run, on any host that sees the same locks."""
    with suppress(OSError), open_regular(run_dir / ".train.lock") as file:
        return not locked(file, shared=True)  # with others that look
    return False


@contextmanager
def record_status(run_dir: Path, *, run: str, evaluation_id: str) -> Generator[None]:
    """Writes status.json of a run: running while the block lasts, then how it ended."""
    write_status(run_dir, Status("running"), run=run)
    try:
        yield
        write_status(run_dir, Status("done", evaluated=evaluation_id), run=run)
    except BaseException as error:
        state: State = "diverged" if isinstance(error, Diverged) else "failed"
        with suppress(UserError), handled(SCHEDULER, signal.SIG_IGN):  # torchrun may send one now
            if isinstance(error, Stopped | KeyboardInterrupt):
                state, reason = "stopped", str(error) or "interrupted"
            elif isinstance(error, UserError):
                reason = str(error)
            else:
                bug = f"{type(error).__name__}: {first_line(error)}".rstrip(": ")
                reason = out_of_memory(error) or bug
            write_status(run_dir, Status(state, reason=reason), run=run)
        raise


def write_status(run_dir: Path, status: Status, *, run: str) -> None:
    """Writes status.json of the run with this id, as of this process."""
    row = {"run": run, **status._asdict(), "host": platform.node(), "pid": os.getpid()}
    write_rows(run_dir / "status.json", [row])


def read_status(run_dir: Path, *, run: str) -> Status:
    """Returns the status of the run with this id.

    A run whose status.json says running although no process holds it was killed. Where the file is
    missing, damaged or of another run, DONE and the lock decide.
    """
    status = Status("done" if (run_dir / "DONE").exists() else "stopped")
    with suppress(UserError):
        row = read_of_run(run_dir / "status.json", run=run)
        known = {key: row[key] for key in row.keys() & {*Status._fields}}
        status = validate(Status, known, strict=True)
    if is_running(run_dir):
        return status._replace(state="running", reason=None, evaluated=None)
    if status.state == "running":
        reason = f"process {status.pid} on {status.host} ended without a report"
        return status._replace(state="killed", reason=reason)
    return status


def written_ns(run_dir: Path) -> int:
    """Returns when status.json was written, in nanoseconds; 0 without the file."""
    file = run_dir / "status.json"
    return file.stat().st_mtime_ns if file.exists() else 0


def final_weights(run_dir: Path, *, run: str) -> str | None:
    """Returns the sha256 of the weights after the last step; None if training is not complete."""
    return read_of_run(run_dir / "DONE", run=run).get("weights")


def read_of_run(path: Path, *, run: str) -> dict[str, Any]:
    """Returns the only row of a file of the run with this id, an empty one without the file."""
    return next(iter(read_rows(path, run=run)), {})


def checkpoint_folders(run_dir: Path, within: str = "checkpoints") -> list[Path]:
    """Returns the folders of the checkpoints that are there, valid or not, oldest first.

    Within "kept" they are those whose weights stay.
    """
    folder = run_dir / within
    return [folder / name for name in names_in(folder) if re.fullmatch(r"step-\d{8}", name)]


def step_of(folder: Path) -> int:
    """Returns the step of the folder of a checkpoint."""
    return int(folder.name.removeprefix("step-"))
