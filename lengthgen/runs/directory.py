"""The run directory: its configuration and its provenance; and the runs under a root."""

import json
import platform
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import yaml

from lengthgen.config import plugins
from lengthgen.config.schema import Config, from_plain, to_plain
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.errors import UserError, suggestion
from lengthgen.files import parse_yaml, read_bytes, replace_file, utf8
from lengthgen.runs.status import read_of_run

_LIBRARIES = (
    *("torch", "numpy", "tokenizers", "datasets", "hydra-core", "pydantic", "safetensors"),
    *("scipy", "matplotlib"),  # a report's intervals and figures
)
OF_A_RUN = ("config.yaml", "env.json")  # one of them makes a directory that of a run


def write_config(config: Config, run_dir: Path) -> None:
    """Writes config.yaml and the plugins.

    A plugin becomes plugins/DIGEST.py: a run whose author goes on to edit the original keeps what
    it was trained with.
    """
    for digest in config.plugins:
        replace_file(run_dir / f"plugins/{digest}.py", plugins.given(digest).content)
    text = yaml.safe_dump(to_plain(config), sort_keys=False)
    replace_file(run_dir / "config.yaml", text.encode())


def load_config(run_dir: Path) -> Config:
    """Reads the configuration of a run. Raises UserError if there is none or it is damaged."""
    path = run_dir / "config.yaml"
    again = "repeat the lengthgen train command of this run, which writes it again"
    try:
        plain = parse_yaml(read_bytes(path).decode())
        if not isinstance(plain, dict):
            raise ValueError("it holds no mapping")
    except FileNotFoundError:
        if (run_dir / "env.json").exists():
            raise UserError(f"{path} is missing; {again}") from None
        raise UserError(f"{run_dir} is not a run directory: it has no config.yaml") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); fix its permissions") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}); restore it, or {again}") from None
    return from_plain(cast("dict[str, Any]", plain))


def write_provenance(
    run_dir: Path, corpus: TokenizedCorpus, *, run: str, n_parameters: int
) -> None:
    """Writes env.json: what the run is trained on, and a segment for each start that differs.

    A segment holds the command, the host, the commit and the versions.
    """
    words = [utf8(word) for word in sys.argv]
    segment = {"argv": words, "host": platform.node(), **environment()}
    before = read_provenance(run_dir, run=run).get("segments", [])
    if before and before[-1] == segment:
        return
    provenance = {
        "run": run,
        "fingerprint": corpus.fingerprint,
        "n_parameters": n_parameters,
        "corpus": corpus.meta,
        "segments": [*before, segment],
    }
    replace_file(run_dir / "env.json", json.dumps(provenance, indent=1).encode())


def environment() -> dict[str, Any]:
    """Returns commit, machine and versions of this process."""
    import torch  # takes as long as listing 300 runs, which does without it

    cpuinfo = Path("/proc/cpuinfo")
    cpus = re.findall("^model name.*: (.+)", cpuinfo.read_text(), re.M) if cpuinfo.exists() else []
    return {
        "commit": _commit(),
        "platform": platform.platform(),
        "processor": [*cpus, platform.processor()][0],
        "python": platform.python_version(),
        "lengthgen": version("lengthgen"),
        "libraries": {name: version(name) for name in _LIBRARIES},
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def _commit() -> str | None:
    """Returns the commit of the checkout this package runs from, None outside one."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        described = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # no git here
        return None
    return described.stdout.strip() or None


def read_provenance(run_dir: Path, *, run: str) -> dict[str, Any]:
    """Returns env.json of the run with this id, an empty mapping if it is not there."""
    return read_of_run(run_dir / "env.json", run=run) or {}


def corpus_fingerprint(run_dir: Path, *, run: str) -> str | None:
    """Returns that of the tokens that the run was begun on, None without env.json."""
    return read_provenance(run_dir, run=run).get("fingerprint")


def check_corpus(run_dir: Path, corpus: TokenizedCorpus, *, run: str) -> None:
    """Raises UserError if the run was begun on other tokens: its numbers would mix two corpora."""
    begun = corpus_fingerprint(run_dir, run=run)
    if begun not in (None, corpus.fingerprint):
        raise UserError(
            f"{run_dir}: corpus {corpus.name} has changed since this run began (tokens "
            f"{str(begun)[:12]} then, {corpus.fingerprint[:12]} now); restore it, or remove the run"
        )


def run_dirs(root: Path) -> list[Path]:
    """Returns the directories of the runs under a root, by name; also one without config.yaml."""
    return sorted({path.parent for name in OF_A_RUN for path in root.glob(f"*/{name}")})


def find(name: str, root: Path) -> Path:
    """Returns the run directory of a path, a run id or an unambiguous beginning of one.

    Raises UserError if there is none, or several.
    """
    if any((Path(name) / file).exists() for file in OF_A_RUN):
        return Path(name).resolve()
    ids = [path.name for path in run_dirs(root)]
    matching = [name] if name in ids else [run_id for run_id in ids if run_id.startswith(name)]
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
