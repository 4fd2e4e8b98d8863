"""What was sent to W&B of a run: wandb.json in the run directory, so that nothing is sent twice."""

import hashlib
import re
import secrets
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter

from lengthgen.config.schema import Config
from lengthgen.errors import UserError
from lengthgen.files import read_bytes, read_rows, replace_file


class Sent(BaseModel):
    """What was sent to one W&B run."""

    model_config = ConfigDict(extra="forbid")

    run_id: str  # of the W&B run
    step: float | None = None  # of the last row of train.jsonl
    evaluation: str | None = None  # the digest of the eval.jsonl whose results were sent
    points: set[str] = set()  # such as eval/ppl@512
    pictures: dict[str, str] = {}  # the sha256 of each
    offline: list[str] = []  # the folders, in wandb/, that hold what was not sent online


_FILE = TypeAdapter(dict[str, Sent])  # by W&B project: each has a W&B run of its own


def load_sent(config: Config, run_dir: Path) -> Sent:
    """Returns what was sent to the run in the configured W&B project: nothing if it is new.

    Raises UserError if wandb.json is damaged, or of another run.
    """
    return _load(config, run_dir).get(_project(config), Sent(run_id=config.run_id))


def save_sent(sent: Sent, config: Config, run_dir: Path) -> None:
    """Writes wandb.json; what was sent to other projects stays in it."""
    _save({**_load(config, run_dir), _project(config): sent}, run_dir)


def start_again(config: Config, run_dir: Path) -> None:
    """Lets the next rows, and all before them, go to a fresh W&B run: RUN and four digits."""
    try:
        others = _load(config, run_dir)
    except UserError:
        others = {}
    fresh = Sent(run_id=f"{config.run_id}-{secrets.token_hex(2)}")
    _save({**others, _project(config): fresh}, run_dir)


def is_shown(config: Config, run_dir: Path) -> bool:
    """True if W&B has all of train.jsonl and eval.jsonl: there is nothing to open."""
    try:
        sent = load_sent(config, run_dir)
    except UserError:  # the Tracker reports it
        return False
    rows = read_rows(run_dir / "train.jsonl", run=config.run_id)
    trained = bool(rows) and sent.step == rows[-1]["train/step"]
    return trained and sent.evaluation == digest(run_dir)


def digest(run_dir: Path) -> str | None:
    """Returns the sha256 of eval.jsonl, None if there is none."""
    path = run_dir / "eval.jsonl"
    return hashlib.sha256(read_bytes(path)).hexdigest() if path.exists() else None


def unsynced(sent: Sent, run_dir: Path) -> list[Path]:
    """Returns the folders of offline parts that `wandb sync` has not uploaded yet."""
    folders = [run_dir.absolute() / "wandb" / name for name in sent.offline]
    return [folder for folder in folders if folder.exists() and not list(folder.glob("*.synced"))]


def _project(config: Config) -> str:
    entity, project = config.runtime.wandb_entity, config.runtime.wandb_project
    return project if entity is None else f"{entity}/{project}"


def _load(config: Config, run_dir: Path) -> dict[str, Sent]:
    path, wrong = run_dir / "wandb.json", "is damaged"
    try:
        found = _FILE.validate_json(read_bytes(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):  # pydantic's errors are ValueErrors
        found = None
    if found is not None:
        ids = {
            re.sub(r"(?<=-[0-9a-f]{8})-[0-9a-f]{4}$", "", sent.run_id) for sent in found.values()
        }
        if ids <= {config.run_id, run_dir.resolve().name}:
            return found
        wrong = f"is of run {min(ids - {config.run_id})}, but config.yaml here of {config.run_id}"
    raise UserError(
        f"{path} {wrong}, so what W&B has is not known; "
        f"lengthgen track push {run_dir} --again sends all to a fresh W&B run"
    )


def _save(every: dict[str, Sent], run_dir: Path) -> None:
    replace_file(run_dir / "wandb.json", _FILE.dump_json(every))
