"""Runs `lengthgen` commands in forks of a process that has imported it, each within limits.

An import of torch takes 2 seconds of CPU. A fork otherwise runs the real command line, from its
first argument to its exit code.
"""

import gc
import importlib
import os
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple, NoReturn

SECONDS = 90.0  # of a command, by the clock: one that takes longer hangs
CPU_SECONDS = 30
POLL_SECONDS = 0.002
IMPORTED = ("torch._dynamo", "hydra", "scipy.stats", "gzip")  # by commands, as they run


class Ended(NamedTuple):
    """How a command ended: its exit code, -n if by signal n, None if it had to be stopped."""

    code: int | None
    out: str
    err: str


class Fork:
    """A command at work, as subprocess.Popen would hold it."""

    def __init__(self, words: Sequence[str], *, folder: Path, out: IO[bytes], err: IO[bytes]):
        self.returncode: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _run(words, folder, out, err)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, *, until: float = float("inf")) -> int | None:
        """Returns the exit code, or None if the command is at work still at that time."""
        while self.poll() is None and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        return self.returncode


def preload() -> None:
    """Imports what commands import, and composes once: the parser of overrides learns by that."""
    os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE", WANDB_MODE="disabled")
    for name in IMPORTED:
        importlib.import_module(name)
    from lengthgen.cli import commands
    from lengthgen.config import schema

    for command in (*commands.COMMANDS.values(), *commands.TRACK.values()):
        command.load()
    schema.from_overrides(["scheme=rope", "corpus=synthetic"], config_dir=None, plugins=[])
    assert threading.active_count() == 1, threading.enumerate()
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page


def run(words: Sequence[str], folder: Path) -> Ended:
    """Runs a command in a folder, and stops it if it takes too long."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        fork = Fork(words, folder=folder, out=out, err=err)
        code = fork.wait(until=time.monotonic() + SECONDS)
        if code is None:
            os.killpg(fork.pid, signal.SIGKILL)
            fork.wait()
        texts = [_text(file) for file in (out, err)]
    return Ended(None if code == -signal.SIGXCPU else code, *texts)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="surrogateescape")


def _run(words: Sequence[str], folder: Path, out: IO[bytes], err: IO[bytes]) -> NoReturn:
    """Runs the command line in this process, which is a fork of its own session."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        os.chdir(folder)
        sys.argv = ["lengthgen", *words]
        from lengthgen import cli

        cli.main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
