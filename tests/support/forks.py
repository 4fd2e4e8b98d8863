"""Starts Python programs in forks of a process that has imported torch and used none of it.

Importing it takes a program 2 seconds of CPU. Else a fork is a process like any other: it runs from
the first line of its program to the end of its interpreter, in a session of its own. What it starts
in a session of its own, as a sweep and torchrun do, are forks too; the parent of all of these is
the process that forks for them. Tests of the start itself, of clean environments and of a killed
torchrun start an interpreter. What programs that are started here share is the seed of their
hashes.
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
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

from repository import PYTHONPATH

# torch.optim needs torch._dynamo. No wandb, datasets or pyarrow, which start threads.
IMPORTED = (
    *("torch", "torch._dynamo", "hydra"),
    *("lengthgen.cli", "lengthgen.pipeline", "lengthgen.sweep.tuning"),
)
NUMBER = 12  # bytes of a number between processes
RUN = subprocess.run


class Forked:
    """A program at work, as subprocess.Popen would hold it."""

    def __init__(
        self,
        *words: str | Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        stdout: IO[Any] | int | None = None,
        stderr: IO[Any] | int | None = None,
    ) -> None:
        """Starts what `python WORDS` would: -m MODULE or -c CODE, with its arguments.

        stdin is text; stdout and stderr may be files or their descriptors, and stderr
        subprocess.STDOUT.
        """
        self.args = [str(word) for word in words]
        self.returncode: int | None = None
        self._said = ("", "")
        self._out = tempfile.TemporaryFile("a+")  # noqa: SIM115, closed at the program's end
        self._err = tempfile.TemporaryFile("a+")  # noqa: SIM115
        out = _descriptor(stdout, self._out)
        err = out if stderr == subprocess.STDOUT else _descriptor(stderr, self._err)
        self._status, theirs = socket.socketpair()
        asked = {"words": self.args, "cwd": str(cwd or Path.cwd()), "env": dict(env or os.environ)}
        with tempfile.TemporaryFile("w+") as given:
            given.write(stdin)
            given.seek(0)
            fds = [given.fileno(), out, err, theirs.fileno()]
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

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

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


def _descriptor(file: IO[Any] | int | None, default: IO[str]) -> int:
    file = default if file is None else file
    return file if isinstance(file, int) else file.fileno()


def _text(file: IO[str]) -> str:
    with file:
        file.seek(0)
        return file.read()


class _Popen(subprocess.Popen[Any]):
    """What subprocess.Popen is to a forked program: `python -m MODULE` in a new session is a fork.

    It has the methods that a sweep and torchrun call.
    """

    def __new__(cls, args: Any, *more: Any, **options: Any) -> Any:
        words = [str(word) for word in args if word != "-u"] if isinstance(args, Sequence) else []
        if words[:2] != [sys.executable, "-m"] or not options.pop("start_new_session", False):
            return super().__new__(cls)
        assert not more, more
        assert options.pop("stdin", None) in (None, subprocess.DEVNULL), options
        out, err = options.pop("stdout", None), options.pop("stderr", None)
        out, err = (fd if file is None else file for fd, file in ((1, out), (2, err)))
        return Forked(*words[1:], stdout=out, stderr=err, **options)


def _run_fork(args: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """What subprocess.run is to a forked program: `python -m MODULE` that is given text is a fork.

    The estimate of a sweep is one.
    """
    if "input" not in options or [*args[:2]] != [sys.executable, "-m"]:
        return RUN(args, **options)
    assert options.pop("capture_output"), options
    assert options.pop("text"), options
    assert not options.pop("check"), options
    forked = Forked(*args[1:], stdin=options.pop("input"), **options)
    try:
        out, err = forked.communicate()
    except BaseException:
        forked.send_signal(signal.SIGKILL)
        raise
    return subprocess.CompletedProcess(args, forked.wait(), out, err)


# The process that forks


def _address(pid: int) -> str:
    """Returns where the process listens that forks for the program that is its child."""
    return f"\0lengthgen-forks-{pid}"


@cache
def _server() -> socket.socket:
    """Starts it, once per test process, with which it ends; a forked program has one already."""
    if subprocess.Popen is _Popen:
        server = socket.socket(socket.AF_UNIX)
        server.connect(_address(os.getppid()))
        return server
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
    """Forks for every request; returns in the fork, once it has run the program."""
    if sys.platform == "linux":
        subprocess.Popen, subprocess.run = _Popen, _run_fork
    for name in IMPORTED:
        importlib.import_module(name)
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait, below
    while _is_run(requests) is False:
        pass


def _is_run(requests: socket.socket, *others: int) -> bool | None:
    """Reads a request and forks for it: True in the fork, once it has run the program.

    None if there are no more requests. Others are descriptors that the program is not to have.
    """
    message, fds, _, _ = socket.recv_fds(requests, 1 << 16, 4)
    if not message:
        return None
    while not message.endswith(b"\n"):
        message += requests.recv(1 << 16)
    if os.fork() == 0:
        for fd in (requests.detach(), *others):
            os.close(fd)
        _begin(json.loads(message), *fds)
        return True
    for fd in fds:
        os.close(fd)
    return False


def _begin(asked: Mapping[str, Any], given: int, out: int, err: int, status: int) -> None:
    """Forks once more, and runs the program; what is left forks for it, and says how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    listening = socket.socket(socket.AF_UNIX)
    if sys.platform == "linux":
        listening.bind(_address(os.getpid()))
        listening.listen()
    pid = os.fork()
    if pid:
        for fd in (given, out, err):
            os.close(fd)
        if sys.platform == "linux" and _is_another_run(listening, status, until=pid):
            return
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(status, f"{code:{NUMBER}}".encode())
        os._exit(0)
    listening.close()
    os.setsid()
    os.dup2(given, 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    os.write(status, f"{os.getpid():{NUMBER}}".encode())
    for fd in (given, out, err, status):
        os.close(fd)
    _run(asked["words"])


def _is_another_run(listening: socket.socket, status: int, *, until: int) -> bool:
    """Forks for a program until it ends: True in a fork, once it has run another program."""
    ended = os.pidfd_open(until)
    requests = None
    while True:
        ready, _, _ = select.select([ended, requests or listening], [], [])
        if ended in ready:
            return False
        if requests is None:
            requests, _ = listening.accept()
            listening.close()
        elif (is_run := _is_run(requests, ended, status)) is not False:
            return is_run is True


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
