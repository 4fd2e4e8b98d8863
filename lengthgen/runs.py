"""The run directory: configuration, provenance, checkpoints, state; every write is atomic."""

import hashlib
import json
import logging
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import torch
import yaml
from filelock import FileLock, Timeout
from safetensors.torch import load_file, save_file
from torch import Tensor

from lengthgen.config import Config, from_plain, to_plain
from lengthgen.corpora import TokenizedCorpus
from lengthgen.errors import UserError, suggestion
from lengthgen.model import Memory, Transformer
from lengthgen.tracking import replace_file

KEPT_CHECKPOINTS = 2  # the newest, and the one before it in case the newest is damaged
_LIBRARIES = ("torch", "numpy", "tokenizers", "datasets", "hydra-core", "pydantic", "safetensors")


class Checkpoint(NamedTuple):
    """A training state: `step` optimizer steps are done.

    unlogged: nats and number of targets since the last row of train.jsonl. memory: a model.Memory.
    """

    step: int
    unlogged: tuple[float, int]
    memory: tuple[Tensor, Tensor] | None
    weights: dict[str, Tensor]
    optimizer: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run as `lengthgen list runs` shows it."""

    run_id: str
    path: Path
    state: str  # done | stopped | unreadable
    step: int
    steps: int


@contextmanager
def claimed(run_dir: Path, work: str) -> Generator[None]:
    """Holds the run directory for one process that does this work (train or eval).

    Raises UserError if another process holds it or the directory cannot be written.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = FileLock(run_dir / f".{work}.lock")
        lock.acquire(blocking=False)
    except Timeout:
        raise UserError(
            f"{run_dir}: another process is at work on this run ({work}); wait for it, or stop it"
        ) from None
    except OSError as error:
        raise UserError(
            f"runtime.root: cannot write {run_dir} ({error.strerror}); give runtime.root=FOLDER"
        ) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def logged(run_dir: Path) -> Generator[None]:
    """Copies the package's log into log.txt while the block lasts."""
    package = logging.getLogger("lengthgen")
    handler = logging.FileHandler(run_dir / "log.txt", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    level = package.level
    package.addHandler(handler)
    package.setLevel(logging.INFO)
    try:
        yield
    finally:
        package.setLevel(level)
        package.removeHandler(handler)
        handler.close()


def write_config(config: Config, run_dir: Path) -> None:
    """Writes config.yaml and the plugins, and reads them back to prove that they say the same.

    A plugin becomes plugins/DIGEST.py, and config.yaml names it so: a run that is moved, or whose
    author goes on to edit the original, keeps what it was trained with.
    """
    plain = {**to_plain(config), "plugins": []}
    for plugin in config.plugins:
        (run_dir / "plugins").mkdir(exist_ok=True)
        kept = f"plugins/{plugin.digest}.py"
        replace_file(run_dir / kept, plugin.content)
        plain["plugins"].append(kept)
    replace_file(run_dir / "config.yaml", yaml.safe_dump(plain, sort_keys=False).encode())
    assert load_config(run_dir) == config, "config.yaml does not round-trip"


def load_config(run_dir: Path) -> Config:
    """Reads the configuration of a run. Raises UserError if there is none or it is damaged."""
    path = run_dir / "config.yaml"
    try:
        plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{run_dir} is not a run directory: it has no config.yaml") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged: {error}") from None
    if not isinstance(plain, dict):
        raise UserError(f"{path} is damaged: it holds no mapping")
    if isinstance(plain.get("plugins"), list):
        plain["plugins"] = [str(run_dir / str(plugin)) for plugin in plain["plugins"]]
    config = from_plain(plain)
    for plugin in config.plugins:
        if plugin.path.parent == run_dir / "plugins" and plugin.path.stem != plugin.digest:
            raise UserError(
                f"{plugin.path} was changed since this run began; restore it, or train its new "
                f"content as a run of its own: lengthgen train --plugin {plugin.path} ..."
            )
    return config


def write_provenance(run_dir: Path, corpus: TokenizedCorpus) -> None:
    """Writes env.json: what the run was begun with. A later start leaves it as it is."""
    path = run_dir / "env.json"
    if path.exists():
        return
    said = {
        "fingerprint": corpus.fingerprint,
        "corpus": corpus.meta,
        "argv": sys.argv,
        "commit": _commit(),
        "host": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "lengthgen": version("lengthgen"),
        "libraries": {name: version(name) for name in _LIBRARIES},
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }
    replace_file(path, json.dumps(said, indent=1).encode())


def check_corpus(run_dir: Path, corpus: TokenizedCorpus) -> None:
    """Raises UserError if the run was begun on other tokens: its numbers would mix two corpora."""
    path = run_dir / "env.json"
    if not path.exists():
        return
    try:
        begun = json.loads(path.read_text(encoding="utf-8"))["fingerprint"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is damaged; remove it if the corpus is still the same") from None
    if begun != corpus.fingerprint:
        raise UserError(
            f"{run_dir}: corpus {corpus.name} has changed since this run began (tokens "
            f"{begun[:12]} then, {corpus.fingerprint[:12]} now); restore it, or remove the run"
        )


def check_room(config: Config, model_bytes: int) -> None:
    """Raises UserError if the disk has no room for the run's checkpoints.

    A checkpoint is the weights and two moments; one more than are kept exists while it is written.
    """
    needed = 3 * model_bytes * (KEPT_CHECKPOINTS + 1)
    root = config.runtime.root
    existing = next(p for p in (root.absolute(), *root.absolute().parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise UserError(
            f"runtime.root: {existing} has {free / 2**20:,.0f} MiB free, and the checkpoints of "
            f"this run need {needed / 2**20:,.0f} MiB; free some, or give runtime.root=FOLDER"
        )


def save_checkpoint(
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
        torch.save(trainer, temporary / "trainer.pt")
        sums = {file.name: _sha256(file) for file in sorted(temporary.iterdir())}
        (temporary / "sha256.json").write_text(json.dumps(sums), encoding="utf-8")
        for file in temporary.iterdir():
            _sync(file)
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        _sync(folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise UserError(
            f"{final}: cannot write the checkpoint of step {step} ({error.strerror or error}); "
            "free disk space and run the same command again: it resumes from the one before"
        ) from error
    there = _checkpoints(run_dir)
    here = there.index(final) + 1
    for other in (*there[here:], *there[: max(0, here - KEPT_CHECKPOINTS)]):
        shutil.rmtree(other, ignore_errors=True)


def newest_checkpoint(run_dir: Path, *, say: Callable[[str], None]) -> Checkpoint | None:
    """Returns the newest valid checkpoint, or None; a damaged one is named and skipped."""
    for folder in reversed(_checkpoints(run_dir)):
        try:
            sums = json.loads((folder / "sha256.json").read_text(encoding="utf-8"))
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
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, UnpicklingError) as error:
            say(f"{folder} is damaged and skipped: {str(error).splitlines()[0]}")
    return None


def mark_done(run_dir: Path, *, step: int) -> None:
    """Writes DONE: training is complete."""
    replace_file(run_dir / "DONE", f"{step}\n".encode())


def is_done(run_dir: Path) -> bool:
    return (run_dir / "DONE").exists()


def list_runs(root: Path) -> list[RunSummary]:
    """Returns the runs under a root, oldest first. A directory that is no run is passed over."""
    found = [path.parent for path in root.glob("*/config.yaml")]
    summaries: list[RunSummary] = []
    for path in sorted(found, key=lambda p: (p / "config.yaml").stat().st_mtime):
        try:
            steps = load_config(path).train.steps
        except UserError:
            summaries.append(
                RunSummary(run_id=path.name, path=path, state="unreadable", step=0, steps=0)
            )
            continue
        done = is_done(path)
        kept = _checkpoints(path)
        step = steps if done else int(kept[-1].name.removeprefix("step-")) if kept else 0
        state = "done" if done else "stopped"
        summaries.append(
            RunSummary(run_id=path.name, path=path, state=state, step=step, steps=steps)
        )
    return summaries


def find(name: str, root: Path) -> Path:
    """Returns the run directory of a path, a run id or an unambiguous beginning of one.

    Raises UserError if there is none, or several.
    """
    if (Path(name) / "config.yaml").exists():
        return Path(name).resolve()
    ids = sorted(path.parent.name for path in root.glob("*/config.yaml"))
    if name in ids:
        return root / name
    matching = [run_id for run_id in ids if run_id.startswith(name)]
    if len(matching) == 1:
        return root / matching[0]
    if matching:
        raise UserError(f"{name} begins several runs in {root}: {', '.join(matching)}")
    raise UserError(f"{name}: no such run in {root}; {suggestion(name, ids)}")


def newest(root: Path) -> Path:
    """Returns the run that was worked on last. Raises UserError if there is none."""
    logs = [*root.glob("*/train.jsonl"), *root.glob("*/eval.jsonl")]
    if not logs:
        raise UserError(f"{root} holds no run yet; lengthgen train scheme=rope makes one")
    return max(logs, key=lambda path: path.stat().st_mtime).parent


def _checkpoints(run_dir: Path) -> list[Path]:
    return sorted((run_dir / "checkpoints").glob("step-*"))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _commit() -> str | None:
    """Returns the commit of the checkout this package runs from, None outside one."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # no git here
        return None
    return asked.stdout.strip() or None
