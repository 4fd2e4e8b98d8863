"""Writing an export: checked first, written aside, and put in place in one step."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import save_file
from tokenizers import Tokenizer, processors

from lengthgen import __version__
from lengthgen.config.schema import Config, to_plain
from lengthgen.data import corpora
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.sources import Say
from lengthgen.data.tokenizer import find_bos, read_tokenizer
from lengthgen.errors import UserError
from lengthgen.evaluation.rows import stored
from lengthgen.export import CARD, CONFIG, PLUGINS, TOKENIZER, WEIGHTS, About, read
from lengthgen.export.card import card
from lengthgen.runs import checkpoints, directory
from lengthgen.runs.checkpoints import Checkpoint

LEFT_OUT = ("plugins", "eval", "runtime")  # sections of a configuration that weights do not need


class Written(NamedTuple):
    """A folder that was exported, and how far its run had come."""

    folder: Path
    step: int
    steps: int


def export(
    config: Config, run_dir: Path, folder: Path, *, license: str | None, say: Say
) -> Written:
    """Writes the newest checkpoint of a run into a folder that is new, empty or an older export.

    No code of the run is executed. Raises UserError if the folder holds anything else, or if the
    run has no checkpoint, has lost its last one, or has not the corpus that it was begun with.
    """
    config.refuse_arch("export")
    folder = folder.resolve()
    refuse_occupied(folder)
    corpus = corpora.load(
        config.corpus,
        cache_dir=config.runtime.cache_dir,
        say=say,
        fingerprint=directory.corpus_fingerprint(run_dir, run=config.run_id),
    )
    directory.check_corpus(run_dir, corpus, run=config.run_id)
    checkpoint = checkpoints.final(config, run_dir, say=say)
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        aside.mkdir(parents=True)
        _write(aside, config, run_dir, corpus, checkpoint, name=folder.name, license=license)
        _put(aside, folder)
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise UserError(
            f"{folder}: cannot be written ({reason or error}); free disk space or fix its "
            "permissions, then run the same command again"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return Written(folder, checkpoint.step, config.train.steps)


def refuse_occupied(folder: Path) -> None:
    """Raises UserError unless a folder is new, empty, or an unchanged export."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    try:
        about = read(folder)
    except UserError:
        raise UserError(
            f"{folder} is there and no earlier export; give a new or empty folder"
        ) from None
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    added = sorted(found - {CONFIG, WEIGHTS, TOKENIZER, CARD, PLUGINS, *about.plugins})
    if added:
        raise UserError(
            f"{folder} holds {added[0]} besides an earlier export; move it, or export elsewhere"
        )
    if hashlib.sha256((folder / CARD).read_bytes()).hexdigest() != about.card:
        raise UserError(
            f"{folder / CARD} was edited since it was exported; move it, or export elsewhere"
        )


def _write(
    aside: Path,
    config: Config,
    run_dir: Path,
    corpus: TokenizedCorpus,
    checkpoint: Checkpoint,
    *,
    name: str,
    license: str | None,
) -> None:
    tokens_seen = checkpoint.step * config.train.batch_tokens
    facts: dict[str, Any] = {
        "model_type": "lengthgen",
        "format": 1,
        "lengthgen": __version__,
        "run": config.run_id,
        "step": checkpoint.step,
        "steps": config.train.steps,
        "tokens_seen": tokens_seen,
        "fingerprint": corpus.fingerprint,
        "card": "",
        "plugins": [f"{PLUGINS}/{digest}.py" for digest in config.plugins],
        "config": {k: v for k, v in to_plain(config).items() if k not in LEFT_OUT},
    }
    rows = [
        {**row, "run": run_dir.name}
        for row in stored(run_dir, run=config.run_id)
        if row.get("tokens_seen") == tokens_seen and row.get("fingerprint") == corpus.fingerprint
    ]
    text = card(
        config,
        run_dir,
        About.model_validate(facts),
        corpus,
        name=name,
        n_parameters=sum(tensor.numel() for tensor in checkpoint.weights.values()),
        rows=rows,
        license=license,
    )
    about = About.model_validate({**facts, "card": hashlib.sha256(text.encode()).hexdigest()})
    # Not by save(), whose error on a full disk is a plain Exception.
    (aside / TOKENIZER).write_text(_tokenizer(config, corpus).to_str(pretty=True), encoding="utf-8")
    for digest in config.plugins:
        (aside / PLUGINS).mkdir(exist_ok=True)
        shutil.copy(run_dir / PLUGINS / f"{digest}.py", aside / PLUGINS)
    (aside / CARD).write_bytes(text.encode())
    save_file(checkpoint.weights, aside / WEIGHTS, metadata={"format": "pt"})
    (aside / WEIGHTS).chmod((aside / CARD).stat().st_mode)  # safetensors hides it from others
    (aside / CONFIG).write_text(json.dumps(about.model_dump(), indent=1), encoding="utf-8")


def _tokenizer(config: Config, corpus: TokenizedCorpus) -> Tokenizer:
    """Returns the tokenizer, whose encode() begins a text as windows of training begin."""
    tokenizer = read_tokenizer(corpus.tokenizer_path)
    bos = find_bos(tokenizer) if config.corpus.bos else None
    if bos is None:
        tokenizer.post_processor = processors.TemplateProcessing(single="$A")
    else:
        name = tokenizer.id_to_token(bos)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{name} $A", special_tokens=[(name, bos)]
        )
    return tokenizer


def _put(aside: Path, folder: Path) -> None:
    """Puts a folder in the place of another, which is removed only when that is done."""
    if not folder.exists():
        aside.rename(folder)
        return
    before = folder.with_name(f"{aside.name}.before")
    folder.rename(before)
    aside.rename(folder)
    shutil.rmtree(before)
