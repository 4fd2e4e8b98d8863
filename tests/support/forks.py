"""Starts Python programs in forks of a process that has imported torch and used none of it.

Importing it takes a program 2 seconds of CPU. Else a fork is a process like any other: it runs from
the first line of its program to the end of its interpreter, in a session of its own. Tests of the
start itself, of torchrun and of clean environments start an interpreter. What programs that are
started here share is the seed of their hashes.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any

from repository import PYTHONPATH

# torch.optim needs torch._dynamo. No wandb, datasets or pyarrow, which start threads.
IMPORTED = (
    *("torch", "torch._dynamo", "hydra"),
    *("lengthgen.cli", "lengthgen.pipeline", "lengthgen.report.collect", "lengthgen.sweep.local"),
)
NUMBER = 12  # bytes of a number between processes


class Forked:
    """A program at work, as subprocess.Popen would hold it."""

    def __init__(
        self,
        *words: str | Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stderr: IO[str] | int | None = None,
    ) -> None:
        """Starts what `python WORDS` would: -m MODULE or -c CODE, with its arguments.

        stderr may be a file, or subprocess.STDOUT.
        """
        self.args = [str(word) for word in words]
        self.returncode: int | None = None
        self._said = ("", "")
        self._out = tempfile.TemporaryFile("a+")  # noqa: SIM115, closed at the program's end
        self._err = tempfile.TemporaryFile("a+")  # noqa: SIM115
        files = {None: self._err, subprocess.STDOUT: self._out}
        err = files[stderr] if stderr is None or isinstance(stderr, int) else stderr
        self._status, theirs = socket.socketpair()
        asked = {"words": self.args, "cwd": str(cwd or Path.cwd()), "env": dict(env or os.environ)}
        fds = [self._out.fileno(), err.fileno(), theirs.fileno()]
        socket.send_fds(_server(), [json.dumps(asked).encode() + b"\n"], fds)
        theirs.close()
        self.pid = int(self._status.recv(NUMBER, socket.MSG_WAITALL))

    def poll(self) -> int | None:
        """Returns how the program ended, -n if by signal n; None if it has not."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Returns how the program ended. Raises TimeoutExpired."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Waits, and returns what the program said on stdout and stderr. Raises TimeoutExpired."""
        self.wait(timeout)
        return self._said

    def send_signal(self, kind: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, kind)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = int(self._status.recv(NUMBER, socket.MSG_WAITALL))
            self._said = (_text(self._out), _text(self._err))
            self._status.close()
        return self.returncode


def run(
    *words: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Returns how `python WORDS` ended, after 5 minutes at most."""
    forked = Forked(*words, cwd=cwd, env=env)
    out, err = forked.communicate(timeout=300)
    return subprocess.CompletedProcess(forked.args, forked.wait(), out, err)


def ranks(n: int, *words: str | Path, cwd: Path | None = None) -> list[Forked]:
    """Starts `python WORDS` as the n processes of one run, without torchrun."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    about = {"WORLD_SIZE": str(n), "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    env = {**os.environ, **about, "OMP_NUM_THREADS": "1", "PYTHONPATH": PYTHONPATH}
    return [
        Forked(*words, cwd=cwd, env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(n)
    ]


def _text(file: IO[str]) -> str:
    with file:
        file.seek(0)
        return file.read()


# The process that forks


@cache
def _server() -> socket.socket:
    """Starts it, once per test process, with which it ends."""
    ours, theirs = socket.socketpair()
    server = subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno())],
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    theirs.close()

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


def serve(requests: socket.socket) -> None:
    """Forks for every request; returns in the fork, which is to run the program then."""
    for name in IMPORTED:
        importlib.import_module(name)
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait, below
    while True:
        message, fds, _, _ = socket.recv_fds(requests, 1 << 16, 3)
        if not message:
            sys.exit()
        while not message.endswith(b"\n"):
            message += requests.recv(1 << 16)
        if os.fork() == 0:
            requests.close()
            return _begun(json.loads(message), *fds)
        for fd in fds:
            os.close(fd)


def _begun(asked: Mapping[str, Any], out: int, err: int, status: int) -> None:
    """Forks once more; returns in the fork, and says its pid and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid:
        os.close(out)
        os.close(err)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(status, f"{code:{NUMBER}}".encode())
        os._exit(0)
    os.setsid()
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    os.write(status, f"{os.getpid():{NUMBER}}".encode())
    for fd in (out, err, status):
        os.close(fd)
    _run(asked["words"])


def _run(words: list[str]) -> None:
    """Runs a program as the interpreter does."""
    kind, program, *arguments = words
    path = sys.path[1:]
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [os.getcwd() if kind == "-m" else "", *(p for p in paths if p not in path), *path]
    if kind == "-m":
        sys.argv = [program, *arguments]
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        assert kind == "-c", kind
        sys.argv = ["-c", *arguments]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(program, "<string>", "exec"), vars(main))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
