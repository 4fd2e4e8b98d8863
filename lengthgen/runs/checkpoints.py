"""Checkpoints: weights, and what else training continues from; each a file of its own.

checkpoints/step-N/ is written under another name, synced and renamed. sha256.json holds the hashes
of model.safetensors, which names its run, and trainer.pt. Only a file that differs from its hash is
damaged; one that cannot be read is an error, and nothing is trained or deleted then.
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
from lengthgen.runs.status import (
    checkpoint_folder,
    checkpoint_folders,
    final_weights,
    read_status,
)

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
            torch.save(dict(trainer), file)
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
            f"{final}: cannot write the checkpoint of step {step} ({first_line(error)}); "
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
            sums = json.loads(read_bytes(folder / "sha256.json"))
            damaged = [name for name in files if sums[name] != sha256_of(folder / name)]
            if not damaged:
                return _load(folder, run=run, sha256=sums[WEIGHTS])
        except (ValueError, KeyError, TypeError):
            damaged = ["sha256.json"]
        except OSError as error:
            raise UserError(
                f"{error.filename or folder}: cannot be read ({error.strerror}); nothing was "
                f"changed. Restore it, or remove {folder} to go on from the checkpoint before"
            ) from None
        say(f"{folder} is damaged and skipped: {damaged[0]} is not as it was written")
    if folders:
        raise UserError(
            f"{run_dir}: all checkpoints are damaged; restore one, or remove "
            f"{run_dir / 'checkpoints'}: the lengthgen train command of this run then begins again"
        )
    return None


def _load(folder: Path, *, run: str, sha256: str) -> Checkpoint:
    """Returns a checkpoint that is not damaged. Raises UserError if it is of another run."""
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        owner = json.loads(file.metadata()["lengthgen"])["run"]
    if owner != run:
        raise UserError(
            f"{folder}: a checkpoint of run {owner}, but config.yaml here is of run {run}; "
            "restore the checkpoint of this run, or move it away"
        )
    return Checkpoint(folder, int(folder.name[5:]), sha256, load_file(folder / WEIGHTS))


def final(config: Config, run_dir: Path, *, say: Callable[[str], None]) -> Checkpoint:
    """Returns the checkpoint that a run stands for: of a trained run the last one, else the newest.

    Raises UserError if there is none, or if that of a trained run is damaged, lost or another's.
    """
    checkpoint = newest(run_dir, run=config.run_id, say=say)
    if checkpoint is None:
        state, reason, *_ = read_status(run_dir, run=config.run_id)
        why = f" ({state}: {reason})" if reason else ""
        raise UserError(f"{run_dir} has no checkpoint yet{why}; lengthgen train continues it")
    if final_weights(run_dir, run=config.run_id) not in (None, checkpoint.sha256):
        raise UserError(
            f"{run_dir}: the last checkpoint, of step {config.train.steps}, is damaged or lost; "
            "the lengthgen train command of this run makes it again"
        )
    return checkpoint


def weights_sha256(run_dir: Path, *, step: int) -> str:
    """Returns the sha256 of the weights of a step, as their checkpoint records it."""
    return json.loads(read_bytes(checkpoint_folder(run_dir, step) / "sha256.json"))[WEIGHTS]


def has_final(config: Config, *, say: Callable[[str], None]) -> bool:
    """True if DONE is there and so is the checkpoint that it names."""
    sha256 = final_weights(config.run_dir, run=config.run_id)
    checkpoint = newest(config.run_dir, run=config.run_id, say=say) if sha256 else None
    return checkpoint is not None and checkpoint.sha256 == sha256
