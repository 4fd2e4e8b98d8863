"""Checkpoints: weights, and what else training continues from; each a file of its own.

checkpoints/step-N/ is written under another name, synced and renamed. sha256.json holds the hashes
of model.safetensors and trainer.pt, both of which name their run and step. Only a file that differs
from its hash, or is of another step, is damaged; one that cannot be read is an error, and nothing
is trained or deleted then.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from lengthgen.config.schema import Config
from lengthgen.errors import UserError, first_line
from lengthgen.files import read_bytes, sha256_of, sync
from lengthgen.runs.status import checkpoint_folder, checkpoint_folders, read_done, read_status

KEPT = 2  # the newest, and the one before it in case the newest is damaged
FILES = WEIGHTS, TRAINER = "model.safetensors", "trainer.pt"


class Checkpoint(NamedTuple):
    """The weights after `step` optimizer steps, whose file has this sha256."""

    folder: Path
    step: int
    sha256: str
    weights: dict[str, Tensor]

    def trainer_state(self) -> dict[str, Any]:
        """Returns what training continues from besides the weights, as it was given to save()."""
        return torch.load(self.folder / TRAINER, map_location="cpu", weights_only=True)


class _Damaged(ValueError):
    """What is wrong with a file that could be read."""


def save(
    run_dir: Path,
    *,
    run: str,
    step: int,
    weights: Mapping[str, Tensor],
    trainer: Mapping[str, Any],
) -> None:
    """Writes the checkpoint of a step, and drops all but KEPT; those of later steps are damaged."""
    final = checkpoint_folder(run_dir, step)
    temporary = final.parent / f".tmp-{os.getpid()}"
    try:
        for left in final.parent.glob(".tmp-*"):  # of a killed process
            shutil.rmtree(left, ignore_errors=True)
        temporary.mkdir(parents=True)
        sync(run_dir)
        with (temporary / TRAINER).open("wb") as file:
            torch.save({"run": run, "step": step, **trainer}, file)
        plain = {name: w.detach().contiguous().cpu() for name, w in weights.items()}
        # One key: safetensors writes several in any order, and equal weights are to be equal files.
        metadata = {"lengthgen": json.dumps({"run": run, "step": step})}
        save_file(plain, temporary / WEIGHTS, metadata=metadata)
        shutil.copymode(temporary / TRAINER, temporary / WEIGHTS)  # 0600 in spite of the umask
        sums = {name: sha256_of(temporary / name) for name in FILES}
        (temporary / "sha256.json").write_text(json.dumps(sums), encoding="utf-8")
        for path in (*temporary.iterdir(), temporary):
            sync(path)
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        sync(final.parent)
    except (OSError, SafetensorError, RuntimeError) as error:  # all three for a full disk
        shutil.rmtree(temporary, ignore_errors=True)
        raise UserError(
            f"{final}: cannot write the checkpoint of step {step} ({_reason(error)}); "
            "free disk space and run the same command again: it resumes from the one before"
        ) from error
    folders = checkpoint_folders(run_dir)
    n = folders.index(final) + 1
    for superseded in (*folders[n:], *folders[: max(0, n - KEPT)]):
        shutil.rmtree(superseded, ignore_errors=True)


def newest(
    run_dir: Path,
    *,
    run: str,
    say: Callable[[str], None],
    files: Sequence[str] = (WEIGHTS,),
) -> Checkpoint | None:
    """Returns the newest checkpoint of which these files are valid; None if there is none at all.

    A damaged one is named and skipped. Raises UserError for one that cannot be read or is of
    another run, and if all are damaged.
    """
    folders = checkpoint_folders(run_dir)
    for folder in reversed(folders):
        try:
            return _read(folder, run=run, files=files)
        except OSError as error:
            raise UserError(
                f"{error.filename or folder}: cannot be read ({error.strerror}); nothing was "
                f"changed. Restore it, or remove {folder} to go on from the checkpoint before"
            ) from None
        except _Damaged as damage:
            say(f"{folder} is damaged and skipped: {damage}")
    if folders:
        raise UserError(
            f"{run_dir}: all checkpoints are damaged; restore one, or remove "
            f"{run_dir / 'checkpoints'}: the lengthgen train command of this run then begins again"
        )
    return None


def _read(folder: Path, *, run: str, files: Sequence[str]) -> Checkpoint:
    """Returns a checkpoint of which these files are as their hashes say.

    Raises _Damaged, OSError, and UserError if it is of another run.
    """
    try:
        sums = json.loads(read_bytes(folder / "sha256.json"))
        expected = {name: sums[name] for name in files}
    except (ValueError, KeyError, TypeError):
        raise _Damaged("sha256.json holds no hashes") from None
    for name, sha256 in expected.items():
        if sha256_of(folder / name) != sha256:
            raise _Damaged(f"{name} does not match its sha256")
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        bound = json.loads((file.metadata() or {}).get("lengthgen", "{}"))
    if bound.get("run") != run:
        raise UserError(
            f"{folder}: a checkpoint of run {bound.get('run')}, but config.yaml here is of run "
            f"{run}; restore the checkpoint of this run, or move it away"
        )
    if checkpoint_folder(folder.parent.parent, bound["step"]) != folder:
        raise _Damaged(f"{WEIGHTS} is of step {bound['step']}")
    return Checkpoint(folder, bound["step"], expected[WEIGHTS], load_file(folder / WEIGHTS))


def final(config: Config, run_dir: Path, *, say: Callable[[str], None]) -> Checkpoint:
    """Returns the checkpoint that a run stands for: of a trained run the last one, else the newest.

    Raises UserError if there is none, or if that of a trained run is damaged, lost or another's.
    """
    checkpoint = newest(run_dir, run=config.run_id, say=say)
    if checkpoint is None:
        state = read_status(run_dir, run=config.run_id)
        if state.state == "diverged":
            raise UserError(f"{run_dir} diverged in training and has no checkpoint: {state.reason}")
        raise UserError(f"{run_dir} has no checkpoint yet; lengthgen train continues it")
    done = read_done(run_dir, run=config.run_id)
    if done and checkpoint.sha256 != done.weights:
        raise UserError(
            f"{run_dir}: the last checkpoint, of step {config.train.steps}, is damaged or lost; "
            "the lengthgen train command of this run makes it again"
        )
    return checkpoint


def weights_sha256(run_dir: Path, *, step: int) -> str:
    """Returns the sha256 of the weights of a step, as their checkpoint records it."""
    return json.loads(read_bytes(checkpoint_folder(run_dir, step) / "sha256.json"))[WEIGHTS]


def _reason(error: Exception) -> str:
    """Returns why a file was not written; torch keeps the system's own error in its context."""
    first = error.__context__ if isinstance(error.__context__, OSError) else error
    reason = first.strerror if isinstance(first, OSError) else None
    return reason or first_line(first)


def has_final(config: Config, *, say: Callable[[str], None]) -> bool:
    """True if DONE is there and so is the checkpoint that it names."""
    done = read_done(config.run_dir, run=config.run_id)
    checkpoint = newest(config.run_dir, run=config.run_id, say=say) if done else None
    return bool(done and checkpoint and checkpoint.sha256 == done.weights)
