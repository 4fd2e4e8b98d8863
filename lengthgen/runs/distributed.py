"""The processes of a run: torch.distributed between them, torchrun around them."""

import ctypes
import logging
import os
import re
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any, NamedTuple, TypeVar, cast

import torch.distributed as dist
from torch import Tensor
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from lengthgen.errors import Refused, UserError, first_line
from lengthgen.runs import signals

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
TIMEOUT = timedelta(hours=1)  # a process that waits longer for another one gives up
UPLOAD = timedelta(days=1)  # the others wait while the main one shows results in W&B
CONTINUES = "rerun to resume from the last checkpoint"
PR_SET_PDEATHSIG = 1  # of linux/prctl.h


class RankLost(UserError):
    """Another process of the run has ended while this one waited for it."""


class Failed(NamedTuple):
    """How a process failed under torchrun, by what `record` left; "" if a signal stopped it."""

    rank: int
    reason: str
    exit_code: int


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process's place among those of the run, as torchrun gives it."""

    rank: int
    world_size: int
    local_rank: int

    @staticmethod
    def from_env() -> "Ranks":
        """Reads torchrun's RANK, WORLD_SIZE and LOCAL_RANK; a process without them is alone.

        Raises UserError for values that torchrun does not set.
        """
        names = {"rank": "0", "world_size": "1", "local_rank": "0"}
        given = {name: os.environ.get(name.upper()) or alone for name, alone in names.items()}
        if all(value.isdecimal() for value in given.values()):
            ranks = Ranks(**{name: int(value) for name, value in given.items()})
            is_alone = ranks.world_size == 1
            has_address = {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
            if ranks.rank < ranks.world_size and (is_alone or has_address):
                return ranks
        words = " ".join(f"{name.upper()}={value}" for name, value in given.items())
        raise UserError(
            f"{words}: not as torchrun sets them, with MASTER_ADDR and MASTER_PORT; unset them, or "
            "start with lengthgen train --gpus N"
        )

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @contextmanager
    def connected(self, device_type: str) -> Generator[None]:
        """Joins the processes of the run while the block lasts: gloo, and NCCL for CUDA tensors.

        Raises RankLost if another process has ended.
        """
        if self.world_size == 1:
            yield
            return
        # Imported later, as by torch._dynamo in the first step, it would hold the group, whose
        # threads then meet the end of Python: "terminate called without an active exception".
        import_module("torch.distributed.nn")
        if "TORCHELASTIC_RUN_ID" in os.environ and hasattr(libc := ctypes.CDLL(None), "prctl"):
            libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM))  # if torchrun is killed
        backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
        n = self.world_size
        try:
            dist.init_process_group(backend, rank=self.rank, world_size=n, timeout=TIMEOUT)
            at_the_end = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=UPLOAD))
        except RuntimeError as error:
            raise RankLost(
                f"the {n} processes of this run do not reach each other ({first_line(error)}); on "
                "several machines set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to their network"
            ) from error
        with self.together():
            yield
            dist.barrier(at_the_end)  # a process that leaves early is not taken for a lost one
            dist.destroy_process_group()

    @contextmanager
    def together(self) -> Generator[None]:
        """Raises RankLost in place of what torch raises when another process has ended."""
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, dist.DistError) and "gloo" not in str(error):
                raise
            # NCCL's may be of use, and what waited too long.
            is_told = "gloo" not in str(error) or "imed out" in str(error)
            why = f" ({first_line(error)})" if is_told else ""
            raise RankLost(f"another process of this run was lost{why}; {CONTINUES}") from error

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

    def divided(self, parts: Sequence[T], work: Callable[[T], Mapping[K, V]]) -> dict[K, V]:
        """Returns what the work on all parts gives; each process does that on every n-th one."""
        mine = [work(part) for part in parts[self.rank :: self.world_size]]
        return {k: v for done in self.gather(mine) for each in done for k, v in each.items()}

    def agreed(self, work: Callable[[], T]) -> T:
        """Returns what `work` does here. Raises Refused in all processes if one has a UserError."""
        done, refused = list[T](), None
        try:
            done.append(work())
        except UserError as error:
            refused = str(error)
        for line in filter(None, self.gather(refused)):
            raise Refused(line)
        return done[0]

    def barrier(self) -> None:
        if self.world_size > 1:
            dist.barrier()


ALONE = Ranks(rank=0, world_size=1, local_rank=0)  # of work that is never divided


def launch(n: int, arguments: Sequence[str]) -> Failed | None:
    """Runs this program in n processes under torchrun, silently, and returns what failed."""
    logging.disable(logging.ERROR)  # a line for every signal that is passed on, and every failure
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # a copy.py here is no module of Python
    others = [kind for kind in signals.SCHEDULER if kind != signal.SIGTERM]
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "110")  # s, for a checkpoint; 30 else
    try:
        with signals.handled(others, _as_sigterm):  # of which torchrun would die
            words = ["--standalone", "--nproc-per-node", str(n), "-m", "lengthgen", *arguments]
            torchrun.main(words)
    except SignalException as stopped:
        raise SystemExit(128 + stopped.sigval) from None
    except ChildFailedError as failed:
        return first_failure(failed.failures)
    return None


def _as_sigterm(*_: object) -> None:
    signal.raise_signal(signal.SIGTERM)


def first_failure(failures: Mapping[int, ProcessFailure]) -> Failed:
    """Returns the failure of the lowest rank that did not end because another one had ended."""
    left = {rank: cast(Any, failure.message) for rank, failure in failures.items()}
    errors = {rank: e["message"] if isinstance(e, dict) else "" for rank, e in left.items()}
    lost = {rank for rank, error in errors.items() if error.startswith("RankLost: ")}
    ended = {rank for rank, failure in failures.items() if abs(failure.exitcode) in (15, 143)}
    rank = min({*failures} - lost - ended or failures)
    code, error, by = failures[rank].exitcode, errors[rank], f"rank {rank}: " if rank else ""
    if error:
        said = re.sub(r"^(UserError|Diverged|Refused|RankLost): ", "", error)
        return Failed(rank, by + said, code)
    if code < 0:
        reason = f"rank {rank} was killed by {failures[rank].signal_name()}; {CONTINUES}"
        return Failed(rank, reason, 128 - code)
    if code > 128:
        return Failed(rank, "", code)
    return Failed(rank, f"rank {rank} ended with exit code {code}; {CONTINUES}", code)
