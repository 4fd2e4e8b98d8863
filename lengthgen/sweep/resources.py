"""The places for runs on this machine: which GPUs, and how many CPU threads each."""

import os
from typing import NamedTuple

import torch

from lengthgen.errors import UserError
from lengthgen.runs import devices


class Slot(NamedTuple):
    """A place for one run: CPU threads of each of its processes; its GPUs, none on a CPU."""

    threads: int
    gpus: tuple[str, ...]


class Machine(NamedTuple):
    """What runs may use here: cores, and GPUs as CUDA_VISIBLE_DEVICES names them."""

    cores: int
    gpus: tuple[str, ...]

    @staticmethod
    def this() -> "Machine":
        """Returns what is here, within what taskset and CUDA_VISIBLE_DEVICES leave."""
        gpus = tuple(str(i) for i in range(torch.cuda.device_count()))
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        if gpus and named is not None:
            gpus = tuple(name.strip() for name in named.split(","))[: len(gpus)]
        if torch.backends.mps.is_available():  # one, whatever it is called
            gpus = ("0",)
        return Machine(cores=devices.cores(), gpus=gpus)


def slots(
    machine: Machine, *, jobs: int | None, gpus: int | None, per_gpu: int, n_points: int
) -> list[Slot]:
    """Returns the places for runs: the machine's GPUs if it has any, else its cores.

    With GPUs: `gpus` of them (one by default) for a run, and `per_gpu` runs on each. On a CPU one
    process takes one core: two runs of one thread each finish sooner than two runs of two threads
    one after the other.
    `jobs` sets the number of runs at a time; cores are divided among as many as there can be.
    Raises UserError if a run needs what the machine does not have.
    """
    each = gpus or 1
    if not machine.gpus:
        if per_gpu > 1:
            raise UserError("--per-gpu: there is no GPU to share; give --jobs N")
        n = min(jobs or max(1, machine.cores // each), max(1, n_points))
        return [Slot(max(1, machine.cores // (n * each)), ())] * n
    if each > len(machine.gpus):
        raise UserError(
            f"--gpus: {each} requested for one run, {len(machine.gpus)} in this machine"
        )
    if each > 1 and per_gpu > 1:
        raise UserError("--per-gpu: runs of several GPUs do not share them; drop it or --gpus")
    groups = [machine.gpus[i : i + each] for i in range(0, len(machine.gpus) - each + 1, each)]
    there = len(groups) * per_gpu
    if jobs is not None and jobs > there:
        remedy = f"give --jobs {there}" + (
            f" or --per-gpu {-(-jobs // there)}" if each == 1 else ""
        )
        raise UserError(f"--jobs: the GPUs here have room for {there} runs, not {jobs}; {remedy}")
    n = min(jobs or there, max(1, n_points))
    return [Slot(max(1, machine.cores // (n * each)), group) for group in (groups * per_gpu)[:n]]
