"""The only torch.distributed: starts processes, says which one this is, and sums over all."""

import logging
import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")
TIMEOUT = timedelta(minutes=10)  # a rank that waits longer for another one gives up


def launch(n: int, arguments: Sequence[str]) -> int:
    """Runs this program in n processes under torchrun, and returns 0 or 128 + a signal's number.

    torchrun passes SIGINT and SIGTERM on and waits; the processes themselves say how they ended, so
    its own trace of the signal is left out. Raises what torchrun does if a process fails.
    """
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import SignalException

    logging.disable(logging.WARNING)  # a line for every signal that is passed on
    try:
        run.main(["--standalone", "--nproc-per-node", str(n), "-m", "lengthgen", *arguments])
    except SignalException as stopped:
        return 128 + stopped.sigval
    return 0


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process's place among those of the run, as torchrun gives it."""

    rank: int
    world_size: int
    local_rank: int

    @staticmethod
    def from_env() -> "Ranks":
        """Reads torchrun's RANK, WORLD_SIZE and LOCAL_RANK; a process without them is alone."""
        return Ranks(
            rank=int(os.environ.get("RANK", "0")),
            world_size=int(os.environ.get("WORLD_SIZE", "1")),
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        )

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @contextmanager
    def connected(self, device_type: str) -> Generator[None]:
        """Joins the processes of the run while the block lasts: NCCL on CUDA, gloo elsewhere."""
        if self.world_size == 1:
            yield
            return
        backend = "nccl" if device_type == "cuda" else "gloo"
        dist.init_process_group(
            backend, rank=self.rank, world_size=self.world_size, timeout=TIMEOUT
        )
        try:
            yield
        finally:
            dist.destroy_process_group()

    def sum(self, tensor: Tensor) -> Tensor:
        """Sums a tensor over all processes, in place, and returns it."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Sums gradients over all processes in one message; a missing one counts as zero.

        One flat all-reduce after the last micro-batch instead of DistributedDataParallel: there is
        nothing to say about unused parameters, accumulation or compilation, and at the sizes
        this project trains the message is a small share of a step.
        """
        if self.world_size == 1:
            return
        owned = [p for p in parameters if p.requires_grad]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in owned]
        flat = self.sum(torch.cat([grad.flatten() for grad in grads]))
        for p, summed in zip(owned, flat.split([p.numel() for p in owned]), strict=True):
            p.grad = summed.view_as(p)

    def gather(self, value: T) -> list[T]:
        """Returns every process's value, in rank order, to all of them."""
        if self.world_size == 1:
            return [value]
        values: list[T | None] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return [v for v in values if v is not None]

    def of_main(self, value: T) -> T:
        """Returns rank 0's value to all processes, which may have seen other files."""
        return self.gather(value)[0]

    def max(self, value: int, device: torch.device) -> int:
        """Returns the greatest value of any process."""
        if self.world_size == 1:
            return value
        tensor = torch.tensor(value, device=device)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return int(tensor)

    def barrier(self) -> None:
        """Waits for all processes."""
        if self.world_size > 1:
            dist.barrier()
