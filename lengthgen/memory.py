"""How much memory a device has, and errors of one line for what cannot fit in it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from lengthgen.errors import UserError

if TYPE_CHECKING:
    import torch

GIB = 2**30
DOCUMENT_BYTES = 200  # of the name, the size and the place of a document


def check(
    key: str, needed_bytes: float, *, remedy: str, device: torch.device | None = None
) -> None:
    """Raises UserError if a device, or the machine, has fewer bytes of memory than are needed.

    What other processes take does not count: only what can never fit is refused.
    """
    there = total_bytes(device)
    if needed_bytes > there:
        place = "this machine" if device is None or device.type != "cuda" else str(device)
        raise UserError(
            f"{key}: at least {needed_bytes / GIB:,.1f} GiB of memory are needed, and {place} has "
            f"{there / GIB:,.1f} GiB; {remedy}"
        )


def total_bytes(device: torch.device | None = None) -> int:
    """Returns the memory of a GPU, or what this process may use of the machine's."""
    if device is not None and device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[1]
    machine = sys.maxsize
    if hasattr(os, "sysconf"):
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(machine, *_control_group_limits(), sys.maxsize)


def is_exhausted(error: BaseException) -> bool:
    """True for an error of Python or of PyTorch that says that memory could not be allocated."""
    named = type(error).__name__ == "OutOfMemoryError"  # torch's, which need not be imported
    words = ("can't allocate memory", "Storage size calculation overflowed")
    return named or isinstance(error, MemoryError) or any(word in str(error) for word in words)


def _control_group_limits() -> Iterator[int]:
    """Yields the limits in bytes of the Linux control groups that this process is in."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            root, name = Path("/sys/fs/cgroup"), "memory.max"
            if controllers:  # of version 1
                root, name = root / "memory", "memory.limit_in_bytes"
            inner = PurePosixPath(group.lstrip("/"))
            for folder in (inner, *inner.parents):
                with suppress(OSError, ValueError):  # no file, or "max"
                    yield int((root / folder / name).read_text())
