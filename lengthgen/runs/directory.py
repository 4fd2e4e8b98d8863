"""The run directory: its configuration and its provenance; and the runs under a root."""

import os
import platform
import re
import secrets
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from lengthgen import __version__, files
from lengthgen.config import conf
from lengthgen.config.drafts import from_stored
from lengthgen.config.plugins import Plugin
from lengthgen.config.schema import Config, to_plain
from lengthgen.errors import Say, UserError, suggestion
from lengthgen.runs.status import read_of_run

if TYPE_CHECKING:  # torch takes as long as listing 300 runs, which does without it
    from torch import Tensor

    from lengthgen.data.corpora import TokenizedCorpus
    from lengthgen.data.sources import Source

TRACES = ("config.yaml", "env.json", "train.jsonl", "eval.jsonl", "checkpoints")  # of a run
LIBRARIES = "torch numpy tokenizers datasets hydra-core pydantic safetensors scipy matplotlib"


def write_config(config: Config, run_dir: Path, plugins: Sequence[Plugin] = ()) -> None:
    """Writes config.yaml, and each plugin as it was read: its author may go on to edit it."""
    for plugin in plugins:
        files.replace_file(run_dir / f"plugins/{plugin.digest}.py", plugin.content)
    text = yaml.safe_dump(to_plain(config), sort_keys=False)
    files.replace_file(run_dir / "config.yaml", text.encode())


@contextmanager
def or_said(run_dir: Path, what: str, say: Say | None) -> Generator[None]:
    """Says in one line why a run is not `what`, such as shown: an error stops no other run.

    Without `say`, of a run that is alone, it raises a UserError, whatever the error.
    """
    try:
        with files.reading(run_dir):
            yield
    except UserError as error:
        if say is None:
            raise
        say(f"{run_dir} is not {what}: {error}")


def load_config(run_dir: Path) -> Config:
    """Reads the configuration of a run. Raises UserError if there is none or it is damaged."""
    path = run_dir / "config.yaml"
    if path.name not in files.names_in(run_dir):
        raise UserError(f"{run_dir} is not a run directory: it has no config.yaml")
    try:
        with files.reading(run_dir):
            return from_stored(plain_config(run_dir))
    except files.Unreadable:
        raise
    except UserError as error:
        raise UserError(
            f"{error}; restore {path}, or repeat the lengthgen train command of this run"
        ) from None


def plain_config(run_dir: Path) -> dict[str, Any]:
    """Returns config.yaml as plain values. Raises UserError if it holds none."""
    return conf.read_yaml(run_dir / "config.yaml", takes_aliases=False)


def write_provenance(
    run_dir: Path,
    corpus: "TokenizedCorpus | None",
    *,
    run: str,
    weights: "Mapping[str, Tensor]",
    code: Mapping[str, str],
) -> None:
    """Writes env.json: command, host, commit, versions, size and corpus of the first start.

    `code` holds digests of the parts' code by name.
    """
    if read_provenance(run_dir, run=run):
        return
    import torch

    provenance: dict[str, Any] = {
        "run": run,
        "training": secrets.token_hex(2),
        "argv": [files.utf8(word) for word in sys.argv],
        "host": platform.node(),
        **environment(),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        or ["MPS"] * torch.backends.mps.is_available(),
        **n_parameters(weights),
        "code": {**code},
    }
    if corpus is not None:  # not imported
        provenance |= {"fingerprint": corpus.fingerprint, "corpus": corpus.meta}
    files.write_rows(run_dir / "env.json", [provenance])


def n_parameters(weights: "Mapping[str, Tensor]") -> dict[str, int]:
    """Returns how many numbers a model has, in all and without embedding and head."""
    sizes = {name: weight.numel() for name, weight in weights.items()}
    ends = sum(n for name, n in sizes.items() if name in ("embedding.weight", "head.weight"))
    total = sum(sizes.values())
    return {"n_parameters": total, "n_parameters_without_embedding": total - ends}


def environment() -> dict[str, Any]:
    """Returns commit, machine and versions of this process."""
    cpuinfo = Path("/proc/cpuinfo")
    cpus = re.findall("^model name.*: (.+)", cpuinfo.read_text(), re.M) if cpuinfo.exists() else []
    top = Path(__file__).parents[2]  # the checkout, if this package is not installed
    command = ["git", f"--git-dir={top}/.git", f"--work-tree={top}"]
    command += ["describe", "--always", "--dirty"]
    try:
        git = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # no git here
        git = ""
    return {
        "commit": git or None,
        "platform": platform.platform(),
        "processor": [*cpus, platform.processor()][0],
        "python": platform.python_version(),
        "lengthgen": __version__,
        "libraries": {name: version(name) for name in LIBRARIES.split()},
    }


def read_provenance(run_dir: Path, *, run: str) -> dict[str, Any]:
    """Returns env.json of the run with this id, an empty mapping if it is not there."""
    return read_of_run(run_dir / "env.json", run=run)


def read_log(run_dir: Path, *, run: str) -> list[dict[str, Any]]:
    """Returns the rows of train.jsonl, without those of another training of the same id."""
    rows = files.read_rows(run_dir / "train.jsonl", run=run)
    training = read_provenance(run_dir, run=run).get("training")
    return [row for row in rows if training is None or row.get("training", training) == training]


def load_corpus(config: Config, source: "Source", run_dir: Path, *, say: Say) -> "TokenizedCorpus":
    """Returns the corpus of a run. Raises UserError if the run was begun on other tokens.

    That of an imported model has no training text, unless it is compared with the validation text.
    """
    from lengthgen.data import corpora

    asked, kept = config.corpus, run_dir.parent / ".tokenizers" / Path(config.corpus.tokenizer).name
    if not os.path.exists(asked.tokenizer) and kept.exists():  # the run was moved here
        asked = asked.model_copy(update={"tokenizer": str(kept)})
    begun = read_provenance(run_dir, run=config.run_id).get("fingerprint")
    corpus = corpora.load_tokenized(
        asked,
        source,
        cache_dir=config.runtime.cache_dir,
        say=say,
        fingerprint=begun,
        with_training=not config.is_imported or config.eval.deduplicate,
    )
    if begun not in (None, corpus.fingerprint):  # its numbers would mix two corpora
        raise UserError(
            f"{run_dir}: corpus {corpus.name} has changed since this run began (tokens "
            f"{begun[:12]} then, {corpus.fingerprint[:12]} now); restore it, or remove the run"
        )
    return corpus


def say_edited(run_dir: Path, code: Mapping[str, str], *, run: str, say: Say) -> None:
    """Names the parts whose code was another when the run began."""
    begun = read_provenance(run_dir, run=run).get("code", {})
    for name, digest in code.items():
        if begun.get(name, digest) != digest:
            say(
                f"{run_dir}: the code of scheme.parts.{name} has changed since this run began; "
                "lengthgen rm removes the run, to train it again"
            )


def run_dirs(root: Path) -> list[Path]:
    """Returns the directories of the runs under a root, by name, damaged ones too."""
    folders = [root / name for name in files.names_in(root) if not name.startswith(".")]
    return [folder for folder in folders if any(files.is_there(folder / name) for name in TRACES)]


def find_all(name: str, root: Path) -> list[Path]:
    """Returns the run directories of a glob such as rope-*, or else the one of `find`."""
    if not set(name) & set("*?[") or os.path.exists(name):
        return [find(name, root)]
    if found := [path for path in run_dirs(root) if fnmatchcase(path.name, name)]:
        return found
    raise UserError(f"{name}: no run in {root} has such a name; lengthgen list runs names all")


def find(name: str, root: Path) -> Path:
    """Returns the run directory of a path, a run id or an unambiguous beginning of one.

    Raises UserError if there is none, or several.
    """
    if (Path(name) / "config.yaml").exists():
        return Path(name).resolve()
    ids = [path.name for path in run_dirs(root)]
    matching = [name] if name in ids else [i for i in ids if name and i.startswith(name)]
    if len(matching) == 1:
        return root / matching[0]
    if matching:
        all_of = f"name one, or '{name}*' for all"
        raise UserError(f"{name} begins several runs in {root}: {', '.join(matching)}; {all_of}")
    folder = "no folder of a run, and " if "/" in name else ""
    begun = {run_id[: len(name) + 1]: run_id for run_id in ids}  # a name that is a beginning
    near = get_close_matches(name, begun, n=1, cutoff=0.8)
    remedy = suggestion(begun[near[0]] if near else name, ids)
    raise UserError(f"{name or repr(name)}: {folder}no such run in {root}; {remedy}")


def newest_run(root: Path) -> Path:
    """Returns the run that was worked on last. Raises UserError if there is none."""
    return max(every(root), key=lambda run: (files.is_there(run / "config.yaml"), written_at(run)))


def every(root: Path) -> list[Path]:
    """Returns the directories of the runs under a root. Raises UserError if there is none."""
    if runs := run_dirs(root):
        return runs
    raise UserError(
        f"{root.absolute()} holds no run yet; lengthgen train scheme=rope makes one, "
        "runtime.root=DIR looks elsewhere"
    )


def written_at(run_dir: Path) -> float:
    """Returns when a run was worked on last, 0 if that cannot be seen."""
    logs = [run_dir / "status.json", *run_dir.glob("*.jsonl")]
    return max((os.path.getmtime(log) for log in logs if os.path.exists(log)), default=0)
