"""The run directory: configuration, provenance, checkpoints, state; every write is atomic."""

import json
import logging
import math
import platform
import shlex
import subprocess
import sys
import zlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open

from lengthgen.config import compose, plugins
from lengthgen.config.schema import Config, from_plain, to_plain
from lengthgen.config.sections import first_error
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.errors import UserError, suggestion
from lengthgen.files import (
    open_regular,
    parse_row,
    parse_yaml,
    read_bytes,
    read_rows,
    replace_file,
    utf8,
    writing,
)
from lengthgen.runs import status

_LIBRARIES = (
    *("torch", "numpy", "tokenizers", "datasets", "hydra-core", "pydantic", "safetensors"),
    *("scipy", "matplotlib"),  # a report's intervals and figures
)
FORMAT = 2  # of a run's files: since 2, rows and checkpoints name the run, and rows have checksums
_HEADING = b"# crc32 of what follows: "
OF_A_RUN = ("config.yaml", "env.json")  # one of them makes a directory that of a run


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run as `lengthgen list runs` shows it."""

    run_id: str  # the directory's name
    trained_as: str  # run_id() of its configuration
    path: Path
    state: str  # that of status.read_status, or unreadable
    reason: str | None
    step: int
    steps: int
    command: str | None  # that began it, and continues it


@contextmanager
def logged(run_dir: Path) -> Generator[None]:
    """Copies the package's log into log.txt while the block lasts.

    A line that a full disk has no room for is lost silently: the terminal has shown it, and a loss
    that matters ends the run by itself.
    """
    package = logging.getLogger("lengthgen")
    path = run_dir / "log.txt"
    with writing(path):
        if path.exists():
            open_regular(path).close()
        handler = logging.FileHandler(path, encoding="utf-8")
    handler.handleError = _ignore
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    level = package.level
    package.addHandler(handler)
    package.setLevel(logging.INFO)
    try:
        yield
    finally:
        package.setLevel(level)
        package.removeHandler(handler)
        with suppress(OSError):  # it writes again the lines that there was no room for
            handler.close()


def _ignore(record: logging.LogRecord) -> None:
    """Replaces logging's traceback on stderr."""


def write_config(config: Config, run_dir: Path) -> None:
    """Writes config.yaml and the plugins, and reads them back to prove that they are the same.

    A plugin becomes plugins/DIGEST.py: a run whose author goes on to edit the original keeps what
    it was trained with.
    """
    for digest in config.plugins:
        replace_file(run_dir / f"plugins/{digest}.py", plugins.given(digest).content)
    text = yaml.safe_dump(to_plain(config), sort_keys=False).encode()
    replace_file(run_dir / "config.yaml", _heading(text) + text)
    assert load_config(run_dir) == config, "config.yaml does not round-trip"


def load_config(run_dir: Path) -> Config:
    """Reads the configuration of a run. Raises UserError if there is none or it is damaged.

    Keys of eval and runtime that an older version did not have take their defaults, which do not
    change what was trained.
    """
    return _built(read_config(run_dir), run_dir)


def _built(read: Mapping[str, Any], run_dir: Path) -> Config:
    plain = {**read}
    for section in ("eval", "runtime"):
        if isinstance(plain.get(section), dict):
            plain[section] = {**_defaults()[section], **plain[section]}
    return from_plain(plain)


@cache
def _defaults() -> dict[str, Any]:
    """Returns the values of the sections that may lack keys, not to be changed in place."""
    return {"eval": compose.load("eval", "default", config_dir=None), **compose.defaults()}


def read_config(run_dir: Path) -> dict[str, Any]:
    """Returns config.yaml as it stands, so that runs of an older schema can still be shown.

    Raises UserError if there is none, or if it is not what was written; of a run that an older
    version began, whatever is a mapping passes without a checksum.
    """
    path = run_dir / "config.yaml"
    try:
        content = read_bytes(path)
        first, newline, rest = content.partition(b"\n")
        sealed = first.startswith(_HEADING)
        if sealed and first + newline != _heading(rest):
            raise ValueError("the text differs from the checksum in its first line")
        plain = parse_yaml(content.decode())
    except FileNotFoundError:
        if not (run_dir / "env.json").exists():
            raise UserError(f"{run_dir} is not a run directory: it has no config.yaml") from None
        raise UserError(
            f"{path} is missing; repeat the lengthgen train command of this run, which writes it "
            "again"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); fix its permissions") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(
            f"{path} is damaged ({error}); restore it, or repeat the lengthgen train command of "
            "this run, which writes it again"
        ) from None
    if not isinstance(plain, dict):
        raise UserError(f"{path} is damaged: it holds no mapping")
    return plain


def _heading(text: bytes) -> bytes:
    """Returns the first line of config.yaml, with the checksum of the others."""
    return _HEADING + f"{zlib.crc32(text):08x}\n".encode()


def write_provenance(run_dir: Path, corpus: TokenizedCorpus, *, run: str) -> None:
    """Writes env.json: what the run was begun with. A later start leaves it as it is.

    It has a format unless the rows are older than that, and env.json was removed.
    """
    path = run_dir / "env.json"
    if path.exists():
        return
    is_new = all("run" in row for row in read_rows(run_dir / "train.jsonl"))
    provenance = {
        **({"format": FORMAT} if is_new else {}),
        "run": run,
        "fingerprint": corpus.fingerprint,
        "corpus": corpus.meta,
        "argv": [utf8(word) for word in sys.argv],
        "host": platform.node(),
        **environment(),
    }
    replace_file(path, json.dumps(provenance, indent=1).encode())


def environment() -> dict[str, Any]:
    """Returns commit, machine and versions of this process."""
    import torch  # takes as long as listing 300 runs, which does without it

    return {
        "commit": _commit(),
        "platform": platform.platform(),
        "processor": _processor(),
        "python": platform.python_version(),
        "lengthgen": version("lengthgen"),
        "libraries": {name: version(name) for name in _LIBRARIES},
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def read_provenance(run_dir: Path, *, run: str) -> dict[str, Any]:
    """Returns env.json of the run with this id; older ones do not name it.

    Raises UserError if it is of another run, OSError and ValueError if it cannot be read.
    """
    path = run_dir / "env.json"
    found = parse_row(read_bytes(path))
    if found.get("run", run) != run:
        raise UserError(
            f"{path} is of run {found['run']}, but config.yaml here is of run {run}; restore it, "
            "or remove it if the corpus is still the same"
        )
    return found


def check_corpus(run_dir: Path, corpus: TokenizedCorpus, *, run: str) -> None:
    """Raises UserError if the run was begun on other tokens: its numbers would mix two corpora."""
    begun = corpus_fingerprint(run_dir, run=run)
    if begun is not None and begun != corpus.fingerprint:
        raise UserError(
            f"{run_dir}: corpus {corpus.name} has changed since this run began (tokens "
            f"{begun[:12]} then, {corpus.fingerprint[:12]} now); restore it, or remove the run"
        )


def corpus_fingerprint(run_dir: Path, *, run: str) -> str | None:
    """Returns that of the tokens that the run was begun on, None without env.json."""
    path = run_dir / "env.json"
    if not path.exists():
        return None
    try:
        return str(read_provenance(run_dir, run=run)["fingerprint"])
    except (OSError, ValueError, KeyError):
        raise UserError(f"{path} is damaged; remove it if the corpus is still the same") from None


def run_id(plain: Mapping[str, Any], run_dir: Path) -> str:
    """Returns the id that the files of a run are bound to: that of its plain configuration.

    A configuration of an older schema has none; the directory's name stands for it.
    """
    try:
        return _built(plain, run_dir).run_id
    except UserError:
        return run_dir.resolve().name


class _TrainRow(BaseModel):
    """What is read of a row of train.jsonl."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    step: int = Field(alias="train/step", ge=0, le=1 << 53)
    tokens: int = Field(alias="train/tokens", ge=0, le=1 << 53)
    tokens_per_s: float = Field(alias="train/tokens_per_s", gt=0)
    peak_mib: float | None = Field(alias="train/peak_mib", default=None, gt=0)  # older rows: none


def train_rows(run_dir: Path, *, run: str) -> list[dict[str, Any]]:
    """Returns the rows of train.jsonl of the run with this id.

    Raises UserError as read_rows does, and for a row without its numbers.
    """
    path = run_dir / "train.jsonl"
    rows = read_rows(path, run=run)
    for number, row in enumerate(rows, start=1):
        try:
            _TrainRow.model_validate(row)
        except ValidationError as error:
            raise UserError(
                f"{path}:{number}: damaged row ({first_error(error)}); delete this line or restore "
                "the file"
            ) from None
    return rows


def weights_binding(weights: safe_open) -> dict[str, Any]:
    """Returns the run and the step that a model.safetensors is of; empty for an old one."""
    return json.loads((weights.metadata() or {}).get("lengthgen", "{}"))


def n_parameters(run_dir: Path, *, run: str) -> int | None:
    """Returns the number of parameters in the newest weights, tied ones counted once.

    None if there are no weights, or if they are damaged or another run's.
    """
    folders = status.checkpoint_folders(run_dir)
    if not folders:
        return None
    path = folders[-1] / "model.safetensors"
    try:
        open_regular(path).close()
        with safe_open(path, framework="numpy") as weights:
            if weights_binding(weights).get("run", run) != run:
                return None
            names = weights.offset_keys()
            return sum(math.prod(weights.get_slice(name).get_shape()) for name in names)
    except (OSError, ValueError, UserError, SafetensorError):
        return None


def training_log(run_dir: Path, *, run: str) -> list[dict[str, Any]]:
    """Returns the rows of train.jsonl; none if a trained run has lost the last of them.

    Raises UserError as train_rows does, and if a row was removed, added or changed since.
    """
    rows = train_rows(run_dir, run=run)
    done = status.read_done(run_dir)
    if done is None:
        return rows
    if not rows or rows[-1]["train/step"] != done.step:
        return []
    if done.rows not in (None, status.digest(rows)):
        raise UserError(
            f"{run_dir / 'train.jsonl'}: its {len(rows)} rows are not the {done.n_rows} that were "
            "there when training ended; restore the file, or delete it: only the cost is lost"
        )
    return rows


def run_dirs(root: Path) -> list[Path]:
    """Returns the directories of the runs under a root, by name; also one without config.yaml."""
    return sorted({path.parent for name in OF_A_RUN for path in root.glob(f"*/{name}")})


def list_runs(root: Path) -> list[RunSummary]:
    """Returns the runs under a root, oldest first. A directory that is no run is passed over."""

    def begun(path: Path) -> float:
        config = path / "config.yaml"
        return config.stat().st_mtime if config.exists() else 0.0

    return [_summary(path) for path in sorted(run_dirs(root), key=begun)]


def _summary(path: Path) -> RunSummary:
    state, reason, step, steps, command = "unreadable", None, 0, 0, None
    trained_as = path.name
    try:
        config = load_config(path)
        steps, trained_as = config.train.steps, config.run_id
        state, reason, *_ = status.read_status(path, run=trained_as)
        step = status.last_step(path)
        argv = read_provenance(path, run=config.run_id)["argv"]
        if argv[1] == "train":
            command = shlex.join(["lengthgen", *argv[1:]])
    except UserError as error:
        state, reason = "unreadable", str(error)
    except (OSError, ValueError, KeyError, TypeError, IndexError):  # env.json lacks or is damaged
        pass
    return RunSummary(
        run_id=path.name,
        trained_as=trained_as,
        path=path,
        state=state,
        reason=reason,
        step=steps if status.is_trained(path) else step,
        steps=steps,
        command=command,
    )


def find(name: str, root: Path) -> Path:
    """Returns the run directory of a path, a run id or an unambiguous beginning of one.

    Raises UserError if there is none, or several.
    """
    if any((Path(name) / file).exists() for file in OF_A_RUN):
        return Path(name).resolve()
    ids = [path.name for path in run_dirs(root)]
    if name in ids:
        return root / name
    matching = [run_id for run_id in ids if run_id.startswith(name)]
    if len(matching) == 1:
        return root / matching[0]
    if matching:
        raise UserError(f"{name} begins several runs in {root}: {', '.join(matching)}")
    folder = "no folder of a run, and " if "/" in name else ""
    raise UserError(f"{name}: {folder}no such run in {root}; {suggestion(name, ids)}")


def newest(root: Path) -> Path:
    """Returns the run that was worked on last. Raises UserError if there is none."""
    logs = [*root.glob("*/train.jsonl"), *root.glob("*/eval.jsonl")]
    if not logs:
        raise UserError(f"{root} holds no run yet; lengthgen train scheme=rope makes one")
    return max(logs, key=lambda path: path.stat().st_mtime).parent


def _commit() -> str | None:
    """Returns the commit of the checkout this package runs from, None outside one."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        described = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # no git here
        return None
    return described.stdout.strip() or None
