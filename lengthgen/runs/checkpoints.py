"""Checkpoints: checkpoints/step-N/ with model.safetensors, trainer.pt and their sha256.json.

Of a finished run the last weights stay, and with train.keep_optimizer all that it resumes from.

kept/step-N/ are those of train.keep_checkpoints, without trainer.pt: nothing resumes from them.

Where one is damaged or cannot be read, nothing is trained or deleted. No random state is kept:
batches, dropout and draws are functions of seed and step.
"""

import errno
import json
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lengthgen.config.schema import Config
from lengthgen.errors import UserError, first_line
from lengthgen.files import (
    Unreadable,
    new_folder,
    read_bytes,
    reading,
    sha256_of,
    sync,
    write_rows,
)
from lengthgen.runs import status

MOST_KEPT = 2  # the newest, and the one before it in case the newest is lost
FILES = WEIGHTS, TRAINER = "model.safetensors", "trainer.pt"


class Checkpoint(NamedTuple):
    """The weights after `step` optimizer steps, whose file has this sha256."""

    folder: Path
    step: int
    sha256: str
    weights: dict[str, Tensor]

    def trainer_state(self) -> dict[str, Any]:
        """Returns what was given to save() besides the weights."""
        return torch.load(self.folder / TRAINER, map_location="cpu", weights_only=True)


def save(
    run_dir: Path,
    *,
    run: str,
    step: int,
    weights: Mapping[str, Tensor],
    trainer: dict[str, Any] | None = None,
) -> None:
    """Writes the checkpoint of a step in one step, and drops all but MOST_KEPT.

    Without the state of the trainer, those of kept/, which stay. Raises UserError for a full disk.
    """
    folder = run_dir / ("kept" if trainer is None else "checkpoints")
    final, files = folder / f"step-{step:08d}", (WEIGHTS,) if trainer is None else FILES
    with new_folder(final, aside=folder / ".tmp") as aside:
        sync(run_dir)
        if trainer is not None:
            with _as_os_error(), (aside / TRAINER).open("wb") as file:
                torch.save(trainer, file)
        # One key: several are written in any order, and equal weights are to be equal files.
        metadata = {"lengthgen": json.dumps({"run": run, "step": step})}
        plain = {name: w.detach().contiguous().cpu() for name, w in weights.items()}
        write_weights(aside / WEIGHTS, plain, metadata)
        sums = {name: sha256_of(aside / name) for name in files}
        (aside / "sha256.json").write_text(json.dumps(sums), encoding="utf-8")
        shutil.rmtree(final, ignore_errors=True)
    for superseded in status.checkpoint_folders(run_dir)[:-MOST_KEPT]:
        shutil.rmtree(superseded, ignore_errors=True)


def write_weights(path: Path, weights: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Writes a file of safetensors as the umask has it. Raises OSError for a full disk."""
    path.touch()
    mode = path.stat().st_mode
    with _as_os_error():
        save_file({**weights}, path, metadata=metadata)
    path.chmod(mode)  # 0600 in spite of the umask


@contextmanager
def _as_os_error() -> Generator[None]:
    """Raises OSError in place of what torch and safetensors raise for a full disk."""
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        is_full = "inline_container" in str(error)  # all that torch.save says
        why = "no space left, or a limit on the size of files" if is_full else first_line(error)
        raise OSError(errno.EIO, why) from error


def mark_trained(run_dir: Path, *, run: str, keep_optimizer: bool = False) -> None:
    """Writes DONE, with the sha256 of the last weights: training is complete.

    Nothing resumes from it: the optimizer and earlier checkpoints go, unless they are to be kept.
    """
    last = status.checkpoint_folders(run_dir)[-1]
    weights = json.loads(read_bytes(last / "sha256.json"))[WEIGHTS]
    write_rows(run_dir / "DONE", [{"run": run, "weights": weights}])
    if not keep_optimizer:
        drop_optimizer(run_dir)


def drop_optimizer(run_dir: Path) -> int:
    """Removes all of the checkpoints but the last weights; returns how many bytes that were."""
    *earlier, last = status.checkpoint_folders(run_dir)
    gone = [file for folder in earlier for file in folder.iterdir()] + [last / TRAINER]
    n_bytes = sum(file.stat().st_size for file in gone if file.exists())
    for folder in earlier:
        shutil.rmtree(folder, ignore_errors=True)
    (last / TRAINER).unlink(missing_ok=True)
    return n_bytes


def newest(run_dir: Path, *, run: str, files: Sequence[str] = (WEIGHTS,)) -> Checkpoint | None:
    """Returns the newest checkpoint, None if there is none.

    Raises UserError if one of these files cannot be read, is damaged, or is of another run.
    """
    folders = status.checkpoint_folders(run_dir)
    if not folders:
        return None
    folder = folders[-1]
    start = "from the checkpoint before" if folders[1:] else "from step 0: no other is left"
    remedy = f"restore it, or remove {folder}: lengthgen train then starts {start}"
    return _read(folder, run=run, files=files, remedy=remedy)


def kept(run_dir: Path, *, run: str, step: int) -> Checkpoint:
    """Returns the weights that are kept of a step. Raises UserError as `newest` does."""
    folder = run_dir / "kept" / f"step-{step:08d}"
    remedy = f"restore it, or remove {folder} to leave it out"
    return _read(folder, run=run, files=(WEIGHTS,), remedy=remedy)


def _read(folder: Path, *, run: str, files: Sequence[str], remedy: str) -> Checkpoint:
    try:
        sums = json.loads(read_bytes(folder / "sha256.json"))
        for name in files:
            if sums[name] != sha256_of(folder / name):
                raise UserError(f"{folder / name} is damaged; {remedy}")
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{folder / 'sha256.json'} is damaged; {remedy}") from None
    except FileNotFoundError as error:
        why = ""
        if Path(error.filename or "").name == TRAINER:
            why = " (a finished run keeps its optimizer with train.keep_optimizer=true alone)"
        raise UserError(f"{error.filename} does not exist{why}; {remedy}") from None
    except OSError as error:  # for a moment perhaps: nothing is to be removed
        raise Unreadable(Path(error.filename or folder), error) from None
    with reading(folder), safe_open(folder / WEIGHTS, framework="pt") as file:
        about = json.loads(file.metadata()["lengthgen"])
        of_run, of_step = about["run"], about["step"]
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    step = status.step_of(folder)
    if of_run != run:
        raise UserError(f"{folder} is of run {of_run}, but config.yaml here of {run}; {remedy}")
    if of_step != step:
        raise UserError(f"{folder} holds step {of_step}; rename it to step-{of_step:08d}")
    return Checkpoint(folder, step, sums[WEIGHTS], weights)


def has_final(config: Config) -> bool:
    """True if DONE is there and so is the checkpoint that it names."""
    sha256 = status.final_weights(config.run_dir, run=config.run_id)
    checkpoint = newest(config.run_dir, run=config.run_id) if sha256 else None
    return checkpoint is not None and checkpoint.sha256 == sha256


def final(config: Config, run_dir: Path) -> Checkpoint:
    """Returns the checkpoint that a run stands for: of a trained run the last one, else the newest.

    Raises UserError if there is none, or if that of a trained run is damaged, lost or another's.
    """
    checkpoint = newest(run_dir, run=config.run_id)
    if checkpoint is None:
        state, reason, *_ = status.read_status(run_dir, run=config.run_id)
        if state == "diverged":
            raise UserError(f"{run_dir} diverged: {reason or 'lower train.lr'}")
        raise UserError(
            f"{run_dir} has no checkpoint yet; lengthgen show {run_dir} has its command"
        )
    if status.final_weights(run_dir, run=config.run_id) not in (None, checkpoint.sha256):
        raise UserError(
            f"{run_dir}: the checkpoint of step {config.train.steps} is lost; the lengthgen train "
            "command of this run makes it again"
        )
    return checkpoint
