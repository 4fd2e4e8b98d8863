"""Checkpoints: weights and trainer state; written whole or not at all, and read as data alone."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from lengthgen.config.schema import Config
from lengthgen.errors import UserError, first_line
from lengthgen.files import read_bytes, sha256_of, sync
from lengthgen.model.recurrent import Memory
from lengthgen.model.transformer import Transformer
from lengthgen.runs import directory
from lengthgen.runs.status import checkpoint_folder, checkpoint_folders, read_done, read_status

KEPT = 2  # the newest, and the one before it in case the newest is damaged


class Checkpoint(NamedTuple):
    """A training state: `step` optimizer steps are done.

    sha256: of model.safetensors. unlogged: nats and number of targets since the last row of
    train.jsonl. memory: a model.Memory.
    """

    step: int
    sha256: str
    unlogged: tuple[float, int]
    memory: tuple[Tensor, Tensor] | None
    weights: dict[str, Tensor]
    optimizer: dict[str, Any]


def save(
    run_dir: Path,
    *,
    run: str,
    step: int,
    unlogged: tuple[float, int],
    memory: Memory | None,
    model: Transformer,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Writes checkpoints/step-N under a temporary name, syncs and renames it, drops old ones.

    run: the id that its files are bound to. Checkpoints of later steps are dropped too: they are
    there only if they are damaged.
    """
    final = checkpoint_folder(run_dir, step)
    folder = final.parent
    temporary = folder / f".tmp-{os.getpid()}"
    try:
        for left in folder.glob(".tmp-*"):  # of a killed process
            shutil.rmtree(left, ignore_errors=True)
        temporary.mkdir(parents=True)
        sync(run_dir)
        weights = {name: w.detach().contiguous().cpu() for name, w in model.state_dict().items()}
        # One key: safetensors writes several in any order, and equal weights are to be equal files.
        metadata = {"lengthgen": json.dumps({"run": run, "step": step})}
        save_file(weights, temporary / "model.safetensors", metadata=metadata)
        trainer = {
            "run": run,
            "step": step,
            "unlogged": unlogged,
            "memory": None if memory is None else tuple(memory),
            "optimizer": optimizer.state_dict(),
        }
        with (temporary / "trainer.pt").open("wb") as file:
            torch.save(trainer, file)
        sums = {file.name: sha256_of(file) for file in sorted(temporary.iterdir())}
        (temporary / "sha256.json").write_text(json.dumps(sums), encoding="utf-8")
        for path in (*temporary.iterdir(), temporary):
            sync(path)
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        sync(folder)
    except (OSError, SafetensorError, RuntimeError) as error:  # all three for a full disk
        shutil.rmtree(temporary, ignore_errors=True)
        raise UserError(
            f"{final}: cannot write the checkpoint of step {step} ({_reason(error)}); "
            "free disk space and run the same command again: it resumes from the one before"
        ) from error
    there = checkpoint_folders(run_dir)
    here = there.index(final) + 1
    for superseded in (*there[here:], *there[: max(0, here - KEPT)]):
        shutil.rmtree(superseded, ignore_errors=True)


def newest(run_dir: Path, *, run: str, say: Callable[[str], None]) -> Checkpoint | None:
    """Returns the newest valid checkpoint, or None; a damaged one is named and skipped.

    Raises UserError for one that is bound to the id of another run.
    """
    for folder in reversed(checkpoint_folders(run_dir)):
        try:
            sums = json.loads(read_bytes(folder / "sha256.json"))
            for name in ("model.safetensors", "trainer.pt"):
                if sums[name] != sha256_of(folder / name):
                    raise ValueError(f"{name} does not match its sha256")
            trainer = torch.load(folder / "trainer.pt", map_location="cpu", weights_only=True)
            _check_binding(folder, trainer, run)
            weights = load_file(folder / "model.safetensors")
            return Checkpoint(
                trainer["step"],
                sums["model.safetensors"],
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


def final(config: Config, run_dir: Path, *, say: Callable[[str], None]) -> Checkpoint:
    """Returns the checkpoint that a run stands for: of a trained run the last one, else the newest.

    Raises UserError if there is none, or if that of a trained run is damaged, lost or another's.
    """
    found = newest(run_dir, run=config.run_id, say=say)
    if found is None:
        state = read_status(run_dir, run=config.run_id)
        if state.state == "diverged":
            raise UserError(f"{run_dir} diverged in training and has no checkpoint: {state.reason}")
        raise UserError(f"{run_dir} has no checkpoint yet; lengthgen train continues it")
    done, steps = read_done(run_dir), config.train.steps
    if done and (found.step < steps or done.weights not in (None, found.sha256)):
        raise UserError(
            f"{run_dir}: the last checkpoint, of step {steps}, is damaged or lost; "
            "the lengthgen train command of this run makes it again"
        )
    return found


def _check_binding(folder: Path, trainer: dict[str, Any], run: str) -> None:
    """Raises UserError for a checkpoint of another run, ValueError if its files disagree."""
    run_dir = folder.parent.parent
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        of_weights = directory.weights_binding(file)
    of_trainer = {key: trainer[key] for key in ("run", "step") if "run" in trainer}
    for bound in (of_trainer.get("run", run), of_weights.get("run", run)):
        if bound != run:
            raise UserError(
                f"{folder}: a checkpoint of run {bound}, but config.yaml here is of run {run}; "
                "restore the checkpoint of this run, or move it away"
            )
    if of_weights != of_trainer or folder != checkpoint_folder(run_dir, trainer["step"]):
        raise ValueError("its files are not of one run and step")
    if not of_trainer:
        raise ValueError("it does not name its run")


def weights_sha256(run_dir: Path, *, step: int) -> str:
    """Returns the sha256 of the weights of a step, as their checkpoint records it."""
    sums = json.loads(read_bytes(checkpoint_folder(run_dir, step) / "sha256.json"))
    return sums["model.safetensors"]


def _reason(error: Exception) -> str:
    """Returns why a file was not written; torch keeps the system's own error in its context."""
    first = error.__context__ if isinstance(error.__context__, OSError) else error
    reason = first.strerror if isinstance(first, OSError) else None
    return reason or first_line(first)
