"""The processes of a run under torch.distributed: sums over them, and how a failure ends them all.

A process that   the others
raises           find its report in the store that all share once its sockets close (RankFailed).
                 Rank 0 puts it into status.json and on stderr and ends with its exit code. One
                 process reports: rank 0, or the one that failed where rank 0 has not claimed to
                 within SECONDS_TO_END; the store decides.
is killed        find no report, and that it ended without leaving (RankFailed names those on one
                 machine). torchrun notices within 0.1 s; `launch` names the rank and signal. One
                 that does not find it, or waits on its way out, ends after SECONDS_TO_LEAVE.
hangs            give up after TIMEOUT. NCCL does not see a closed socket either: torchrun ends
                 the processes that wait in it, by SIGTERM and 30 s later by SIGKILL.

If torchrun itself is killed, its processes get SIGTERM, and stop with a checkpoint.

torch elastic's `record` does not replace the store: what it writes is read by torchrun alone, never
by rank 0, and Slurm starts processes without torchrun.
"""

import json
import logging
import os
import platform
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from lengthgen.errors import Stopped, first_line
from lengthgen.runs import signals
from lengthgen.runs.failures import (
    SECONDS_TO_END,
    Ended,
    FailureReport,
    RankFailed,
    by_torchrun,
    report_of,
)

T = TypeVar("T")
TIMEOUT = timedelta(minutes=10)  # a rank that waits longer for another one gives up
SECONDS_TO_LEAVE = 30.0  # that a rank has to end by itself once another one is lost
SECONDS_TO_DIE = 1.0  # between the end of a killed process's connections and its own
_REPORT, _REPORTER = "lengthgen/report", "lengthgen/reporter"  # keys of the store
_PROCESS = "lengthgen/process"  # of each rank: where it runs, and nothing once it has left


def launch(n: int, arguments: Sequence[str]) -> Ended:
    """Runs this program in n processes under torchrun, and returns how they ended.

    torchrun passes SIGINT and SIGTERM on and waits. Its own summaries are left out: the processes
    report their failures themselves, except that they were killed, which is reported here.
    """
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    logging.disable(logging.ERROR)  # a line for every signal that is passed on, and every failure
    try:
        run.main(["--standalone", "--nproc-per-node", str(n), "-m", "lengthgen", *arguments])
    except SignalException as stopped:
        return Ended(None, 128 + stopped.sigval)
    except ChildFailedError as failed:
        ended = {  # by themselves, not by torchrun
            rank: failure
            for rank, failure in failed.failures.items()
            if failure.exitcode != -signal.SIGTERM
        }
        rank, first = min((ended or failed.failures).items(), key=lambda item: item[1].timestamp)
        code = first.exitcode
        if first.error_file != "<N/A>":  # as torchrun writes; the process has written its report
            return Ended(None, code)
        how = f"was killed by {first.signal_name()}" if code < 0 else f"ended with exit code {code}"
        return Ended(
            f"error: rank {rank} {how}; the same command continues from the last checkpoint",
            128 - code if code < 0 else code,
        )
    return Ended(None, 0)


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
        """Joins the processes of the run while the block lasts: gloo, and NCCL for CUDA tensors.

        What is on the CPU goes by gloo on CUDA too: a signal, a value that is gathered, a barrier.
        """
        if self.world_size == 1:
            yield
            return
        # Its functions have the group as a default argument, if there is one when it is imported,
        # as torch._dynamo does in the first step. The group then outlives its destruction, and
        # with it threads of gloo, one of which may still hold a tensor when Python ends. Freeing it
        # then ends the process: "terminate called without an active exception".
        import_module("torch.distributed.nn")
        if by_torchrun():
            signals.stop_with_parent()
        backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
        with _together():
            dist.init_process_group(
                backend, rank=self.rank, world_size=self.world_size, timeout=TIMEOUT
            )
            _store().set(f"{_PROCESS}/{self.rank}", json.dumps([_machine(), os.getpid()]))
            _store().wait([f"{_PROCESS}/{rank}" for rank in range(self.world_size)])
            working = _working(_store(), range(self.world_size))
        with _one_reporter(_store(), self.rank), _ending_with_others(_store(), working):
            try:
                yield
            except Exception as error:
                if not isinstance(error, RankFailed):
                    report = json.dumps(report_of(error, self.rank))
                    with suppress(RuntimeError, ValueError):  # the store is gone
                        _store().compare_set(_REPORT, "", report)  # unless another was first
                raise
            finally:
                error = sys.exception()
                with suppress(RuntimeError):  # the store is gone
                    _store().set(f"{_PROCESS}/{self.rank}", "[]")
                    if error is None and self.is_main:
                        _wait_for_others()  # to whom the end of the store would be that of rank 0
                _clear_frames(error)
                if error is None or device_type != "cuda":  # NCCL would wait for those that ended
                    dist.destroy_process_group()

    def sum(self, tensor: Tensor) -> Tensor:
        """Sums a tensor over all processes, in place, and returns it."""
        if self.world_size > 1:
            with _together():
                dist.all_reduce(tensor)
        return tensor

    @contextmanager
    def summing_gradients(
        self, parameters: Iterable[Tensor], *, bucket_bytes: int | None
    ) -> Generator[None]:
        """Sums gradients over all processes by the end of the block; a missing one counts as zero.

        With None they go in one message at its end, in the order of the parameters. Else in buckets
        from the last parameter on, each as soon as the block's backward pass has filled it and
        those before it, so that all processes send the same. Of 3 processes or more the two ways
        differ by rounding: a sum's order depends on its place in a message. Not
        DistributedDataParallel: it wraps a forward pass, and here that is the model, its segments
        or what is compiled, while the loss reads the embedding outside.
        """
        if self.world_size == 1:
            yield
            return
        owned = [p for p in parameters if p.requires_grad]
        buckets = [owned] if bucket_bytes is None else _buckets(owned[::-1], bucket_bytes)
        bucket_of = {p: i for i, bucket in enumerate(buckets) for p in bucket}
        missing = [len(bucket) for bucket in buckets]
        sent: list[tuple[Tensor, Any]] = []

        def send() -> None:
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in buckets[len(sent)]]
            flat = torch.cat([grad.flatten() for grad in grads])
            with _together():
                sent.append((flat, dist.all_reduce(flat, async_op=True)))

        def filled(p: Tensor) -> None:
            missing[bucket_of[p]] -= 1
            while len(sent) < len(buckets) and not missing[len(sent)]:
                send()

        kept = [] if bucket_bytes is None else owned
        hooks = [p.register_post_accumulate_grad_hook(filled) for p in kept]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        while len(sent) < len(buckets):
            send()
        for bucket, (flat, work) in zip(buckets, sent, strict=True):
            with _together():
                work.wait()
            for p, summed in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                p.grad = summed.view_as(p)

    def gather(self, value: T) -> list[T]:
        """Returns every process's value, in rank order, to all of them."""
        if self.world_size == 1:
            return [value]
        values: list[T | None] = [None] * self.world_size
        with _together():
            dist.all_gather_object(values, value)
        return [v for v in values if v is not None]

    def of_main(self, value: T) -> T:
        """Returns rank 0's value to all processes, which may have seen other files."""
        return self.gather(value)[0]

    def max(self, value: int) -> int:
        """Returns the greatest value of any process; no GPU is waited for."""
        if self.world_size == 1:
            return value
        tensor = torch.tensor(value)
        with _together():
            dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return int(tensor)

    def barrier(self) -> None:
        """Waits for all processes."""
        if self.world_size > 1:
            with _together():
                dist.barrier()


def _buckets(parameters: Sequence[Tensor], bucket_bytes: int) -> list[list[Tensor]]:
    """Returns the parameters in consecutive lists of that size, or just above."""
    buckets: list[list[Tensor]] = []
    room = 0
    for p in parameters:
        if room <= 0:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(p)
        room -= p.nbytes
    return buckets


ALONE = Ranks(rank=0, world_size=1, local_rank=0)  # of work that is never divided


@contextmanager
def _together() -> Generator[None]:
    """Raises RankFailed for another process that ended, Stopped for one that a signal stopped."""
    try:
        yield
    except RuntimeError as error:
        report = _left_report()
        if report is not None and report.exit_code > 128:
            raise Stopped(report.reason, exit_code=report.exit_code) from error
        if report is not None:
            raise RankFailed(f"rank {report.rank}: {report.reason}", report=report) from error
        if killed := _killed():
            raise RankFailed(_lost_message(killed), report=None) from error
        reason = re.sub(r"^\[.*?\] ", "", first_line(error)).partition(". ")[0]  # less of gloo
        raise RankFailed(
            f"another process of this run was lost ({reason}); the same command continues",
            report=None,
        ) from error


@contextmanager
def _one_reporter(store: Any, rank: int) -> Generator[None]:
    """Under torchrun, gives the first report to one process: rank 0, unless it does not claim it.

    All others end as RankFailed without a report.
    """
    try:
        yield
    except Stopped:
        raise
    except Exception as error:
        lost = isinstance(error, RankFailed)
        report = error.report if isinstance(error, RankFailed) else report_of(error, rank)
        if report is None or not by_torchrun():
            raise
        if (lost and rank != 0) or not _claims_report(store, rank):
            report = None
        raise RankFailed(str(error), report=report) from error


def _claims_report(store: Any, rank: int) -> bool:
    """True in one process: rank 0, or another that finds it unclaimed after SECONDS_TO_END."""
    try:
        until = time.monotonic() + SECONDS_TO_END
        while rank != 0 and time.monotonic() < until and not store.check([_REPORTER]):
            time.sleep(0.05)
        return store.add(_REPORTER, 1) == 1
    except RuntimeError:  # the store is gone, and rank 0 with it
        return True


def _left_report() -> FailureReport | None:
    with suppress(RuntimeError, ValueError):
        if _store().check([_REPORT]):
            return FailureReport(*json.loads(_store().get(_REPORT)))
    return None


def _killed() -> list[str]:
    """Returns the ranks on this machine that ended without leaving, as far as that is known."""
    until = time.monotonic() + SECONDS_TO_DIE
    while True:
        found: list[str] = []
        with suppress(RuntimeError, ValueError):  # the store is gone, or this rank never had it
            found = _lost(_working(_store(), range(dist.get_world_size())))
        if found or time.monotonic() > until:
            return found
        time.sleep(0.05)


def _working(store: Any, ranks: Iterable[int]) -> dict[int, int]:
    """Returns the process of each of the ranks that is on this machine and has not left."""
    found: dict[int, int] = {}
    for rank in ranks:
        key = f"{_PROCESS}/{rank}"
        known = json.loads(store.get(key)) if store.check([key]) else []
        if known and known[0] == _machine():
            found[rank] = known[1]
    return found


def _lost(working: Mapping[int, int]) -> list[str]:
    return [f"rank {rank} (process {pid})" for rank, pid in working.items() if _has_ended(pid)]


def _wait_for_others() -> None:
    """Waits until all others on this machine have left, for SECONDS_TO_END at most."""
    until = time.monotonic() + SECONDS_TO_END
    others = _working(_store(), range(1, dist.get_world_size()))
    while time.monotonic() < until and _working(_store(), others):
        time.sleep(0.05)


@contextmanager
def _ending_with_others(store: Any, working: Mapping[int, int]) -> Generator[None]:
    """Ends this process if it is in the block for SECONDS_TO_LEAVE after another one was lost.

    Nothing else bounds a collective that misses the end of a connection, nor the end of the group,
    which waits for it.
    """
    left = threading.Event()

    def watch() -> None:
        there = dict(working)
        while not left.wait(SECONDS_TO_DIE):
            ended = [rank for rank, pid in there.items() if _has_ended(pid)]
            if 0 not in ended:  # which leaves last, and the store with it
                with suppress(RuntimeError):
                    for rank in set(ended) - set(_working(store, ended)):
                        del there[rank]
            if (killed := _lost(there)) and not left.wait(SECONDS_TO_LEAVE):
                sys.stderr.write(f"error: {_lost_message(killed)}\n")
                sys.stderr.flush()
                os._exit(2)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        left.set()


def _lost_message(ranks: Sequence[str]) -> str:
    named = ", ".join(ranks)
    return f"killed or crashed: {named}; the same command continues from the last checkpoint"


def _machine() -> str:
    """Returns the name of what has the process ids of this process: a host, or a container."""
    try:
        return f"{platform.node()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return f"{platform.node()} {os.getpid()}"


def _has_ended(pid: int) -> bool:
    """True if a process of this machine is gone, or waits for its parent to note its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return Path("/proc/self").exists()  # without /proc nothing is known


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()  # pyright: ignore[reportPrivateUsage]


def _clear_frames(error: BaseException | None) -> None:
    """Clears the frames of calls that an error has ended: they hold the group, and it its sockets.

    As long as these are open no other process notices that this one has failed.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
