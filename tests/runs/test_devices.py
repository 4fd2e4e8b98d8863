"""devices: what a process does with the memory that tensors free."""

import multiprocessing
import sys
from multiprocessing.connection import Connection

import pytest
import torch

from lengthgen.runs import devices


def _grown(out: Connection) -> None:
    """Sends by how many MiB the process grows while it drops large tensors and keeps small ones."""
    torch.set_num_threads(1)
    devices.keep_freed_memory()
    kept = list[torch.Tensor]()
    before = _resident_mib()
    for _ in range(8):
        large = torch.ones(80 * 2**18)  # 80 MiB
        kept.append(torch.ones(2**16))
        del large
    out.send(_resident_mib() - before)


def _resident_mib() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
@pytest.mark.slow
def test_large_tensors_that_are_dropped_between_results_that_are_kept_do_not_add_up() -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_grown, args=(theirs,))
    process.start()
    assert ours.poll(120)
    grown = ours.recv()
    process.join()
    assert grown < 100
