"""The processes of a run: torch.distributed between them, torchrun around them.

The first process that fails ends them all. Under torchrun it leaves its error in a file (`record`
of torch.distributed.elastic) and ends; torchrun terminates the others and names it. With --gpus it
is `launch` that runs torchrun and makes one line of what it names. Without torchrun (Slurm) each
process says what ended it, and srun ends the others.
"""

import logging
import os
import signal
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from lengthgen.errors import UserError, first_line
from lengthgen.runs import signals

T = TypeVar("T")
TIMEOUT = timedelta(minutes=10)  # a process that waits longer for another one gives up
CONTINUES = "the same command continues from the last checkpoint"
SECONDS_TO_BE_ENDED = 5.0  # torchrun notes a lost process within 0.1 s


class RankLost(UserError):
    """Another process of the run has ended while this one waited for it."""


class Failed(NamedTuple):
    """How the first process that failed under torchrun ended; `text` is for stderr."""

    reason: str
    text: str
    exit_code: int
    wrote_status: bool


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process's place among those of the run, as torchrun gives it."""

    rank: int
    world_size: int
    local_rank: int

    @staticmethod
    def from_env() -> "Ranks":
        """Reads torchrun's RANK, WORLD_SIZE and LOCAL_RANK; a process without them is alone.

        Raises UserError for one that is no number.
        """
        numbers: dict[str, int] = {}
        for name, alone in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")):
            text = os.environ.get(name, alone)
            if not text.isdecimal():
                raise UserError(f"{name}={text} in the environment is no number; unset it")
            numbers[name.lower()] = int(text)
        return Ranks(**numbers)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @contextmanager
    def connected(self, device_type: str) -> Generator[None]:
        """Joins the processes of the run while the block lasts: gloo, and NCCL for CUDA tensors.

        What is on the CPU goes by gloo on CUDA too: a signal, a value that is gathered, a barrier.
        Raises RankLost if another process has ended.
        """
        if self.world_size == 1:
            yield
            return
        # Imported later, as by torch._dynamo in the first step, it would hold the group, whose
        # threads then meet the end of Python: "terminate called without an active exception".
        import_module("torch.distributed.nn")
        if _by_torchrun():
            signals.stop_with_parent()
        backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
        try:
            with self.together():
                dist.init_process_group(
                    backend, rank=self.rank, world_size=self.world_size, timeout=TIMEOUT
                )
                yield
                dist.barrier()  # a process that leaves early is not taken for a lost one
                dist.destroy_process_group()
        except RankLost:
            if _by_torchrun():  # which is to see the end of the other one first
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                time.sleep(SECONDS_TO_BE_ENDED)
            raise

    @contextmanager
    def together(self) -> Generator[None]:
        """Raises RankLost in place of what torch raises when another process has ended."""
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, dist.DistError) and "gloo" not in str(error):
                raise
            raise RankLost(
                f"another process of this run was lost ({first_line(error)}); {CONTINUES}"
            ) from error

    def sum(self, tensor: Tensor) -> Tensor:
        """Sums a tensor over all processes, in place, and returns it."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def gather(self, value: T) -> list[T]:
        """Returns every process's value, in rank order, to all of them."""
        if self.world_size == 1:
            return [value]
        values: list[T | None] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return cast(list[T], values)

    def of_main(self, value: T) -> T:
        """Returns rank 0's value to all processes, which may have seen other files."""
        return self.gather(value)[0]

    def max(self, value: int) -> int:
        """Returns the greatest value of any process; no GPU is waited for."""
        if self.world_size == 1:
            return value
        tensor = torch.tensor(value)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return int(tensor)

    def barrier(self) -> None:
        """Waits for all processes."""
        if self.world_size > 1:
            dist.barrier()


ALONE = Ranks(rank=0, world_size=1, local_rank=0)  # of work that is never divided


def launch(n: int, arguments: Sequence[str]) -> Failed | int:
    """Runs this program in n processes under torchrun; returns the exit code, or what failed.

    torchrun passes SIGINT and SIGTERM on and waits. Its own summaries are left out.
    """
    logging.disable(logging.ERROR)  # a line for every signal that is passed on, and every failure
    try:
        torchrun.main(["--standalone", "--nproc-per-node", str(n), "-m", "lengthgen", *arguments])
    except SignalException as stopped:
        return 128 + stopped.sigval
    except ChildFailedError as failed:
        return _first_failure(failed.failures)
    return 0


def _first_failure(failures: Mapping[int, ProcessFailure]) -> Failed:
    """Returns what ended the process that failed first, and not because torchrun ended it."""
    terminated = (-signal.SIGTERM, 128 + signal.SIGTERM)
    own = {rank: f for rank, f in failures.items() if f.exitcode not in terminated}
    rank, first = min((own or failures).items(), key=lambda item: item[1].timestamp)
    if 0 in own and own[0].timestamp <= first.timestamp + 1:  # of what all ran into, rank 0 tells
        rank, first = 0, own[0]
    code, recorded = first.exitcode, cast(Any, first.message)  # a mapping if written by `record`
    if code < 0 or isinstance(recorded, str):
        how = f"was killed by {first.signal_name()}" if code < 0 else f"ended with exit code {code}"
        reason = f"rank {rank} {how}; {CONTINUES}"
        return Failed(reason, f"error: {reason}", 128 - code if code < 0 else code, False)
    kind, _, message = recorded["message"].partition(": ")
    by = f"rank {rank}: " if rank else ""
    if kind == "Stopped":
        return Failed(message, message, code, rank == 0)
    if kind in ("UserError", "Diverged", "RankLost"):
        return Failed(f"{by}{message}", f"error: {by}{message}", code, rank == 0)
    reason, trace = f"{by}{recorded['message']}", recorded["extraInfo"]["py_callstack"]
    return Failed(reason, f"{trace}error: {reason}", code, rank == 0)


def _by_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ
