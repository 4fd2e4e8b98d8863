"""Faults for tests to inject: disks that fill up, damaged files, clocks that jump; and commands."""

import contextlib
import io
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
from forks import Forked
from repository import ROOT
from small import SMALL
from trained import CLOCKED

from lengthgen.__main__ import main
from lengthgen.files import read_rows

RUNTIME = ("runtime.threads=1",)
PAGE = 4096  # what a tmpfs gives its files by


class Ran(NamedTuple):
    """How a command ended, and what it said; a traceback is exit code 1, as in a process."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line of an error of the user's, of which a traceback is none."""
        assert self.code == 2, self
        *before, last = self.err.splitlines()
        assert last.startswith("error: "), self
        assert "Traceback" not in self.err, self
        assert "Logging error" not in self.err, self
        assert not [line for line in before if line.startswith("error: ")], self
        return last.removeprefix("error: ")


def here(*words: str) -> Ran:
    """Runs a command in this process: it need not import torch again."""
    out, err = io.StringIO(), io.StringIO()
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}  # main() then leaves it alone
    with (
        mock.patch.object(sys, "argv", ["lengthgen", *words]),
        mock.patch.dict(os.environ, environment),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        except Exception:
            code = 1
            traceback.print_exc()
    return Ran(code, out.getvalue(), err.getvalue())


def train_words(root: Path, *more: str) -> list[str]:
    return ["train", *SMALL, *RUNTIME, f"runtime.root={root}", *more]


def eval_words(root: Path, *more: str) -> list[str]:
    return ["eval", f"runtime.root={root}", *RUNTIME, *more]


def one_run(root: Path) -> Path:
    """Returns the directory of the only run of RoPE."""
    (run_dir,) = root.glob("rope-*")
    return run_dir


def result(root: Path) -> dict[str, Any]:
    """Returns what training and evaluation have found, without what a clock said."""
    run_dir = one_run(root)
    newest = max(run_dir.glob("checkpoints/step-*"))
    trained = read_rows(run_dir / "train.jsonl")
    return {
        "checkpoint": newest.name,
        "weights": (newest / "model.safetensors").read_bytes(),
        "log": [{k: v for k, v in row.items() if k not in CLOCKED} for row in trained],
        "rows": {json.dumps(row, sort_keys=True) for row in read_rows(run_dir / "eval.jsonl")},
        "fingerprint": json.loads((run_dir / "env.json").read_bytes())["fingerprint"],
    }


def begin(*words: str, environment: Mapping[str, str] = {}) -> Forked:
    """Starts a command as a user would, in a session of its own."""
    inherited = {name: value for name, value in os.environ.items() if "WANDB" not in name}
    env = {**inherited, "OMP_NUM_THREADS": "1", **environment}
    return Forked("-m", "lengthgen", *words, cwd=ROOT, env=env)


def ended(process: Forked) -> Ran:
    out, err = process.communicate(timeout=300)
    return Ran(process.wait(), out, err)


# Disks


class Disk(NamedTuple):
    """A small file system of its own."""

    folder: Path

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def fill(self, *, leave_bytes: int = 0) -> None:
        """Takes all room but so much, in whole pages; others may write there meanwhile."""
        self.empty()
        with contextlib.suppress(OSError):
            (self.folder / "filler").write_bytes(bytes(max(0, self.free_bytes - leave_bytes)))

    def empty(self) -> None:
        """Gives the room back that fill() took."""
        (self.folder / "filler").unlink(missing_ok=True)

    def refuse_writing(self) -> None:
        """Makes the file system read-only; permissions would not stop root."""
        _mount("-o", "remount,ro", self.folder)


@contextlib.contextmanager
def small_disk(folder: Path, *, n_bytes: int) -> Generator[Disk]:
    """Mounts a tmpfs of a size while the block lasts; skips the test where that is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _mount("-t", "tmpfs", "-o", f"size={n_bytes}", "tmpfs", folder)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no tmpfs can be mounted, which needs root: {error}")
    try:
        yield Disk(folder)
    finally:
        # Lazily, since a token cache may still be mapped into this process.
        subprocess.run(["umount", "-l", folder], check=True)


def _mount(*words: str | Path) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)


# Files


def _flip(content: bytes, at: float, bit: int) -> bytes:
    i = int(len(content) * at)
    return content[:i] + bytes([content[i] ^ 1 << bit]) + content[i + 1 :]


HARMS: Mapping[str, Callable[[bytes], bytes]] = {
    "a bit in the first byte": lambda content: _flip(content, 0, 0),
    "a low bit at a third": lambda content: _flip(content, 1 / 3, 0),
    "the high bit at two thirds": lambda content: _flip(content, 2 / 3, 7),
    "a low bit near the end": lambda content: _flip(content, 0.95, 0),
    "truncated to a half": lambda content: content[: len(content) // 2],
    "zeros": lambda content: bytes(len(content)),
}
