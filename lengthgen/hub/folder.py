"""Writing an export: checked first, written aside, and put in place in one step."""

import json
import shutil
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from tokenizers import Tokenizer, processors

from lengthgen import __version__
from lengthgen.config.schema import Config, to_plain
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.sources import Say
from lengthgen.data.tokenizer import read_tokenizer
from lengthgen.errors import UserError
from lengthgen.files import new_folder, sha256_of
from lengthgen.hub.card import card
from lengthgen.hub.exported import CARD, CONFIG, PLUGINS, TOKENIZER, WEIGHTS, About, read
from lengthgen.runs import checkpoints, directory
from lengthgen.runs.checkpoints import Checkpoint

LEFT_OUT = ("plugins", "eval", "runtime")  # sections of a configuration that weights do not need


def export(config: Config, run_dir: Path, folder: Path, *, license: str | None, say: Say) -> Path:
    """Writes the newest checkpoint of a run into a folder that is new or empty, and returns it.

    No code of the run is executed. Raises UserError if the folder holds anything, or if the run has
    no checkpoint, has lost its last one, or has not the corpus that it was begun with.
    """
    config.refuse_arch("export")
    folder = folder.resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there already; give a new or empty folder, or remove it")
    corpus = directory.load_corpus(config, run_dir, say=say)
    checkpoint = checkpoints.final(config, run_dir)
    with new_folder(folder) as aside:
        _write(aside, config, run_dir, corpus, checkpoint)
        text = card(
            config, run_dir, read(aside), corpus, checkpoint, name=folder.name, license=license
        )
        (aside / CARD).write_text(text, encoding="utf-8")
    if checkpoint.step < config.train.steps:
        say(f"{run_dir.name} is unfinished: this is step {checkpoint.step} of {config.train.steps}")
    return folder


def _write(
    aside: Path,
    config: Config,
    run_dir: Path,
    corpus: TokenizedCorpus,
    checkpoint: Checkpoint,
) -> None:
    """Writes all files but the card, which stays empty."""
    (aside / CARD).touch()
    (aside / TOKENIZER).write_text(_tokenizer(corpus).to_str(pretty=True), encoding="utf-8")
    plugins = [f"{PLUGINS}/{digest}.py" for digest in config.plugins]
    for name in plugins:
        (aside / PLUGINS).mkdir(exist_ok=True)
        shutil.copy(run_dir / name, aside / name)
    try:
        save_file(checkpoint.weights, aside / WEIGHTS, metadata={"format": "pt"})
    except SafetensorError as error:  # of a full disk
        raise OSError(0, str(error)) from error
    (aside / WEIGHTS).chmod((aside / CARD).stat().st_mode)  # safetensors hides it from others
    about = About(
        lengthgen=__version__,
        run=config.run_id,
        step=checkpoint.step,
        steps=config.train.steps,
        tokens_seen=checkpoint.step * config.train.batch_tokens,
        fingerprint=corpus.fingerprint,
        weights=sha256_of(aside / WEIGHTS),
        vocab_size=corpus.vocab_size,
        plugins=plugins,
        config={key: value for key, value in to_plain(config).items() if key not in LEFT_OUT},
    )
    (aside / CONFIG).write_text(json.dumps(about.model_dump(), indent=1), encoding="utf-8")


def _tokenizer(corpus: TokenizedCorpus) -> Tokenizer:
    """Returns the tokenizer, whose encode() begins a text as windows of training begin."""
    tokenizer = read_tokenizer(corpus.tokenizer_path)
    if corpus.bos_id is None:
        tokenizer.post_processor = processors.TemplateProcessing(single="$A")
    else:
        name = tokenizer.id_to_token(corpus.bos_id)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{name} $A", special_tokens=[(name, corpus.bos_id)]
        )
    return tokenizer
