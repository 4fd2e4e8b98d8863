"""The device of a run, its threads and its memory allocator."""

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from lengthgen.config.schema import Runtime
from lengthgen.errors import UserError
from lengthgen.model.kernels import triton_compiles
from lengthgen.runs.distributed import Ranks

CPU_MICRO_BATCH_TOKENS = 4096  # what a forward and backward pass holds stays near the caches
GPU_MICRO_BATCH_TOKENS = 32768


def device_of(runtime: Runtime, ranks: Ranks) -> torch.device:
    """Returns the device of this process. Raises UserError if it is not there."""
    kind, n_gpus = runtime.device, torch.cuda.device_count()
    has_mps = torch.backends.mps.is_available()
    if kind == "auto":
        kind = "cuda" if n_gpus else "mps" if has_mps and ranks.world_size == 1 else "cpu"
    if kind == "cuda" and not n_gpus:
        raise UserError(
            "runtime.device=cuda: there is no GPU in this machine; leave out what asks for "
            "one (runtime.device=cuda, train=gpu), or add runtime.device=cpu, which may take days"
        )
    # srun --gpus-per-task=1 shows each process one GPU, its own.
    is_bound = n_gpus == 1 and os.environ.get("SLURM_LOCALID") == str(ranks.local_rank)
    index = 0 if is_bound else ranks.local_rank
    if kind == "cuda" and index >= n_gpus:
        raise UserError(
            f"runtime.device=cuda: process {index} of this machine has no GPU "
            f"({n_gpus} visible); start as many processes as GPUs, or give runtime.device=cpu"
        )
    if kind == "mps" and ranks.world_size > 1:  # gloo takes no tensors of it
        raise UserError("runtime.device=mps: one process alone can use it; give runtime.device=cpu")
    if kind == "mps" and not has_mps:
        raise UserError("runtime.device=mps: this machine has no MPS device; use cpu")
    return torch.device(kind, index) if kind == "cuda" else torch.device(kind)


def native_precision(device: str) -> Literal["bf16", "fp32"]:
    """Returns bf16 where `device` (auto, cpu, cuda or mps) multiplies it natively, else fp32.

    A CUDA device does from compute capability 8.0 on; one that is not in this machine is taken to.
    """
    there = torch.cuda.is_available()
    if device == "cuda" or (device == "auto" and there):
        takes = not there or torch.cuda.is_bf16_supported(including_emulation=False)
    else:  # CPUs without AVX512-bf16 widen bf16 to fp32 first
        has_avx512_bf16 = torch.cpu._is_avx512_bf16_supported  # pyright: ignore[reportPrivateUsage]
        takes = device != "mps" and has_avx512_bf16()
    return "bf16" if takes else "fp32"


def prepare(runtime: Runtime, device: torch.device) -> None:
    """Sets the process up for the device: no TF32 on CUDA; threads and allocator on a CPU."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False  # of convolutions
        return
    torch.set_num_threads(runtime.threads or min(torch.get_num_threads(), cores()))
    # glibc maps each tensor above 32 MiB separately, and its pages fault on first use. Blocks up to
    # 64 MiB are kept instead; larger ones are not, since a heap of them fragments.
    if os.name == "posix" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        mmap_threshold, trim_threshold, top_pad = -3, -1, -2  # M_* of malloc.h
        libc.mallopt(mmap_threshold, 64 << 20)
        libc.mallopt(trim_threshold, (1 << 31) - 1)
        libc.mallopt(top_pad, 64 << 20)


def cores() -> int:
    """Returns how many cores this process may use, within what taskset and containers leave."""
    n = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # no cgroup, or one without a limit
        quota, period = map(int, Path("/sys/fs/cgroup/cpu.max").read_text().split())
        n = min(n, max(1, quota // period))
    return n


def compiles(runtime: Runtime, device: torch.device) -> bool:
    """True if training is compiled: by runtime.compile, or where Triton makes fast kernels."""
    if runtime.compile is not None:
        return runtime.compile
    return device.type == "cuda" and triton_compiles()


def peak_memory(device: torch.device) -> int:
    """Returns the most bytes held so far: of the GPU, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # on Windows
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def micro_batch(runtime: Runtime, device: torch.device, length: int) -> int:
    """Returns the number of windows in one forward pass."""
    tokens = GPU_MICRO_BATCH_TOKENS if device.type == "cuda" else CPU_MICRO_BATCH_TOKENS
    return runtime.micro_batch or max(1, tokens // length)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns a tensor of the CPU on the device; to a GPU without waiting for the copy."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
