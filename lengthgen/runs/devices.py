"""The device of a run, its threads and its memory allocator."""

import ctypes
import os
import resource
import shutil
import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._triton import has_triton  # not public; as PyTorch itself tests

from lengthgen.config.schema import Runtime
from lengthgen.errors import UserError
from lengthgen.runs.distributed import Ranks

CPU_MICRO_BATCH_TOKENS = 4096  # what a forward and backward pass holds stays near the caches
GPU_MICRO_BATCH_TOKENS = 32768


def device_of(runtime: Runtime, ranks: Ranks) -> torch.device:
    """Returns the device of this process. Raises UserError if it is not there."""
    kind = runtime.device
    if kind == "auto":
        has_mps = torch.backends.mps.is_available()
        kind = "cuda" if torch.cuda.is_available() else "mps" if has_mps else "cpu"
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "runtime.device=cuda: there is no GPU in this machine; leave out what asks for "
            "one (runtime.device=cuda, train=gpu), or add runtime.device=cpu, which may take days"
        )
    if kind == "cuda" and ranks.local_rank >= torch.cuda.device_count():
        raise UserError(
            f"runtime.device=cuda: process {ranks.local_rank} of this machine has no GPU "
            f"({torch.cuda.device_count()} visible); start as many processes as GPUs"
        )
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UserError("runtime.device=mps: this machine has no MPS device; use cpu")
    return torch.device(kind, ranks.local_rank) if kind == "cuda" else torch.device(kind)


def prepare(runtime: Runtime, device: torch.device) -> None:
    """Sets the process up for the device: threads and allocator on a CPU, precision on CUDA.

    TF32 is never used: training and evaluation in fp32 are in fp32, FlexAttention's too.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("highest")
        return
    local_processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    torch.set_num_threads(runtime.threads or default_threads(local_processes))
    keep_freed_memory()


def default_threads(local_processes: int) -> int:
    """Returns OMP_NUM_THREADS of the environment, else the share of the cores of one process.

    1 does not count for several processes: torchrun sets it where it is not set.
    """
    outer = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # the others are of inner loops
    if outer.isdecimal() and int(outer) > (local_processes > 1):
        return int(outer)
    return max(1, cores() // local_processes)


def cores() -> int:
    """Returns how many cores this process may use, within what taskset leaves."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def summary(precision: str, device: torch.device, *, multiplies_bf16: bool) -> str:
    """Returns the precision and device of a training, with a remedy where they do not fit."""
    message = f"training in {precision} on {device}"
    if precision == "bf16" and device.type == "cpu" and not multiplies_bf16:
        message += (
            "; this processor has no bf16 products: train.precision=fp32 (another run) may be many "
            "times faster"
        )
    return message


def compiles(runtime: Runtime, device: torch.device) -> bool:
    """True if training is compiled: by runtime.compile, or where Triton makes fast kernels."""
    if runtime.compile is not None:
        return runtime.compile
    has_cc = any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang")))  # Triton's own
    return device.type == "cuda" and has_triton() and has_cc


def keep_freed_memory() -> None:
    """Makes glibc keep freed blocks of up to 64 MiB instead of returning them to the kernel.

    By default every tensor above 32 MiB is mapped and unmapped each time, and each of its pages
    faults on first use. Larger ones still are: a heap of them loses a block of that size to each
    small result that lands in it, and grew to 18 GiB in one evaluation. Without glibc nothing
    happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mmap_threshold, trim_threshold, top_pad = -3, -1, -2  # M_* of malloc.h
    if not mallopt(mmap_threshold, 1 << 26):
        mallopt(mmap_threshold, 1 << 25)  # the most that glibc before 2.35 accepts
    mallopt(trim_threshold, (1 << 31) - 1)
    mallopt(top_pad, 64 << 20)


def peak_memory(device: torch.device) -> int:
    """Returns the most bytes held so far: of the GPU, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.exists():  # of this program; ru_maxrss counts the one that started it, too
        [peak] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        return int(peak.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def micro_batch(runtime: Runtime, device: torch.device, length: int) -> int:
    """Returns the number of windows in one forward pass."""
    tokens = GPU_MICRO_BATCH_TOKENS if device.type == "cuda" else CPU_MICRO_BATCH_TOKENS
    return runtime.micro_batch or max(1, tokens // length)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns a tensor of the CPU on the device; to a GPU without waiting for the copy."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
