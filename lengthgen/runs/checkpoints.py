"""Checkpoints: weights and trainer state; written whole or not at all, and read as data alone."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from lengthgen.config.schema import Config
from lengthgen.errors import UserError
from lengthgen.model.transformer import Memory, Transformer
from lengthgen.reading import open_regular, parse_json, read_bytes
from lengthgen.runs.status import checkpoint_folders

KEPT = 2  # the newest, and the one before it in case the newest is damaged


class Checkpoint(NamedTuple):
    """A training state: `step` optimizer steps are done.

    unlogged: nats and number of targets since the last row of train.jsonl. memory: a model.Memory.
    """

    step: int
    unlogged: tuple[float, int]
    memory: tuple[Tensor, Tensor] | None
    weights: dict[str, Tensor]
    optimizer: dict[str, Any]


def check_room(config: Config, model_bytes: int) -> None:
    """Raises UserError if the disk has no room for the run's checkpoints.

    A checkpoint is the weights and two moments; one more than are kept exists while it is written.
    """
    needed = 3 * model_bytes * (KEPT + 1)
    root = config.runtime.root
    existing = next(p for p in (root.absolute(), *root.absolute().parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise UserError(
            f"runtime.root: {existing} has {free >> 20:,} MiB free, and the checkpoints of "
            f"this run need {-(-needed >> 20):,} MiB; free some, or give runtime.root=FOLDER"
        )


def save(
    run_dir: Path,
    *,
    step: int,
    unlogged: tuple[float, int],
    memory: Memory | None,
    model: Transformer,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Writes checkpoints/step-N under a temporary name, syncs and renames it, drops old ones.

    Checkpoints of later steps are dropped too: they are there only if they are damaged.
    """
    folder = run_dir / "checkpoints"
    final = folder / f"step-{step:08d}"
    temporary = folder / f".tmp-{os.getpid()}"
    try:
        for left in folder.glob(".tmp-*"):  # of a killed process
            shutil.rmtree(left, ignore_errors=True)
        temporary.mkdir(parents=True)
        weights = {name: w.detach().contiguous().cpu() for name, w in model.state_dict().items()}
        save_file(weights, temporary / "model.safetensors")
        trainer = {
            "step": step,
            "unlogged": unlogged,
            "memory": None if memory is None else tuple(memory),
            "optimizer": optimizer.state_dict(),
        }
        with (temporary / "trainer.pt").open("wb") as file:
            torch.save(trainer, file)
        sums = {file.name: _sha256(file) for file in sorted(temporary.iterdir())}
        (temporary / "sha256.json").write_text(json.dumps(sums), encoding="utf-8")
        for file in temporary.iterdir():
            _sync(file)
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        _sync(folder)
    except (OSError, SafetensorError, RuntimeError) as error:  # all three for a full disk
        shutil.rmtree(temporary, ignore_errors=True)
        raise UserError(
            f"{final}: cannot write the checkpoint of step {step} ({_reason(error)}); "
            "free disk space and run the same command again: it resumes from the one before"
        ) from error
    there = checkpoint_folders(run_dir)
    here = there.index(final) + 1
    for other in (*there[here:], *there[: max(0, here - KEPT)]):
        shutil.rmtree(other, ignore_errors=True)


def newest(run_dir: Path, *, say: Callable[[str], None]) -> Checkpoint | None:
    """Returns the newest valid checkpoint, or None; a damaged one is named and skipped."""
    for folder in reversed(checkpoint_folders(run_dir)):
        try:
            sums = parse_json(read_bytes(folder / "sha256.json"))
            for name in ("model.safetensors", "trainer.pt"):
                if sums[name] != _sha256(folder / name):
                    raise ValueError(f"{name} does not match its sha256")
            trainer = torch.load(folder / "trainer.pt", map_location="cpu", weights_only=True)
            weights = load_file(folder / "model.safetensors")
            return Checkpoint(
                trainer["step"],
                trainer["unlogged"],
                trainer["memory"],
                weights,
                trainer["optimizer"],
            )
        except (
            *(OSError, ValueError, KeyError, TypeError, RuntimeError),
            *(EOFError, UnpicklingError, SafetensorError),
        ) as error:
            say(f"{folder} is damaged and skipped: {(str(error) or repr(error)).splitlines()[0]}")
    return None


def _reason(error: Exception) -> str:
    """Returns why a file was not written; torch keeps the system's own error in its context."""
    first = error.__context__ if isinstance(error.__context__, OSError) else error
    reason = first.strerror if isinstance(first, OSError) else None
    return reason or str(first).splitlines()[0]


def _sha256(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
