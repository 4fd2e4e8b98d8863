"""Programs that tests run: in this process, as others; what they leave; files of a largest size."""

import contextlib
import io
import os
import resource
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from repository import PYTHONPATH
from small import SMALL
from trained import newest_checkpoint, rows_of

from lengthgen.__main__ import command
from lengthgen.files import read_rows


class Ran(NamedTuple):
    """How a command ended, and what it said; a traceback is exit code 1, as in a process."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line of an error of the user's, the last one, of which a traceback is none."""
        *before, last = self.err.splitlines()
        assert self.code == 2, self
        assert last.startswith("error: "), self
        wrong = ("error: ", "Traceback", "Logging error", "--- Logging")
        assert not any(line.startswith(wrong) for line in before), self
        return last.removeprefix("error: ")


def here(*words: str, encoding: str = "utf-8") -> Ran:
    """Runs a command in this process, which has imported torch already."""
    streams, code = (io.BytesIO(), io.BytesIO()), 0
    out, err = (io.TextIOWrapper(stream, encoding, newline="") for stream in streams)
    with (
        mock.patch.object(sys, "argv", ["lengthgen", *words]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            command()
        except SystemExit as end:
            code = int(end.code or 0)
        except Exception:
            code = 1
            traceback.print_exc()
    for stream in (out, err):
        stream.flush()
    return Ran(code, *(stream.getvalue().decode(encoding) for stream in streams))


class Shell:
    """Commands given in this process."""

    def run(self, *words: str) -> Ran:
        return here(*words)

    def error_of(self, *words: str) -> str:
        """Returns the error of a command that may have said more before it."""
        ran = self.run(*words)
        assert ran.out == ""
        return ran.error

    def refused(self, *words: str) -> str:
        """Returns the one line of a command that ends with exit code 2 and says no more."""
        ran = self.run(*words)
        assert (ran.out, ran.err.count("\n")) == ("", 1), ran
        return ran.error


def run(*words: str | Path, cwd: Path | None = None) -> Ran:
    """Returns how `python WORDS` ended, in a session of its own, one thread per process."""
    ran = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PYTHONPATH},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=300,
        check=False,
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr)


RANKS = """
import os, socket, sys
import torch._dynamo, torch.distributed.nn  # as the first step and the first group do
from lengthgen import pipeline  # once: each process is a fork
from lengthgen.__main__ import main

with socket.create_server(("127.0.0.1", 0)) as free:
    port, n = free.getsockname()[1], int(sys.argv.pop(1))
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(n)}
for rank in map(str, range(n)):
    if os.fork() == 0:
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank}
        main()
sys.exit(max(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(n)))
"""


def ranks(n: int, *words: str) -> Ran:
    """Returns how a command in n processes ended, as under torchrun but sooner."""
    return run("-c", RANKS, str(n), *words)


def until(is_so: Callable[[], object]) -> None:
    """Waits for what other processes do, which share the machine with other tests."""
    end = time.monotonic() + 240
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError("it does not come to that")
        time.sleep(0.02)


def train_words(root: Path, *more: str) -> list[str]:
    return ["train", *SMALL, f"runtime.root={root}", *more]


def one_run(root: Path) -> Path:
    """Returns the directory of the only run of RoPE."""
    (run_dir,) = root.glob("rope-*")
    return run_dir


def result(root: Path) -> dict[str, Any]:
    """Returns what training and evaluation have found, without what a clock said."""
    run_dir = one_run(root)
    newest = newest_checkpoint(run_dir)
    return {
        "checkpoint": newest.name,
        "weights": (newest / "model.safetensors").read_bytes(),
        "log": rows_of(run_dir / "train.jsonl"),
        "rows": {str(row) for row in read_rows(run_dir / "eval.jsonl")},  # some twice
    }


@contextlib.contextmanager
def files_limited_to(n_bytes: int) -> Generator[None]:
    """Lets no file of this process grow further: like a full disk, it takes a part of a write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
