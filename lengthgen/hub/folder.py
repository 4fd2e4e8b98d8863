"""Writing an export: checked first, written aside, and put in place in one step."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from tokenizers import Tokenizer, processors

from lengthgen import __version__
from lengthgen.config.schema import Config, to_plain
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.sources import Say
from lengthgen.data.tokenizer import read_tokenizer
from lengthgen.errors import UserError, first_line
from lengthgen.files import new_folder, sha256_of
from lengthgen.hub.card import card
from lengthgen.hub.exported import CARD, CONFIG, OWN, PLUGINS, TOKENIZER, WEIGHTS, About
from lengthgen.hub.layout import CODE, Layout, layout
from lengthgen.runs import checkpoints, directory

LEFT_OUT = ("plugins", "eval", "runtime")  # sections of a configuration that weights do not need


def export(config: Config, run_dir: Path, folder: Path, *, license: str | None, say: Say) -> Path:
    """Writes the newest checkpoint of a run into a folder that is new or empty, and returns it.

    Raises UserError if the folder holds anything, or if the run has no checkpoint, has lost its
    last one, or has not the corpus that it was begun with.
    """
    config.refuse_arch("export")
    folder = folder.resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there already; give a new or empty folder, or remove it")
    corpus = directory.load_corpus(config, run_dir, say=say)
    checkpoint = checkpoints.final(config, run_dir)
    about = About(
        lengthgen=__version__,
        run=config.run_id,
        step=checkpoint.step,
        steps=config.train.steps,
        tokens_seen=checkpoint.step * config.train.batch_tokens,
        fingerprint=corpus.fingerprint,
        weights="",
        vocab_size=corpus.vocab_size,
        plugins=[f"{PLUGINS}/{digest}.py" for digest in config.plugins],
        config={key: value for key, value in to_plain(config).items() if key not in LEFT_OUT},
    )
    written = layout(config, run_dir, about, checkpoint.weights)
    is_own = written.keys["model_type"] == OWN
    with new_folder(folder) as aside:
        for name in about.plugins:
            (aside / PLUGINS).mkdir(exist_ok=True)
            shutil.copy(run_dir / name, aside / name)
        if is_own:
            shutil.copy(CODE, aside)
        text = card(
            config,
            run_dir,
            about,
            corpus,
            checkpoint,
            name=folder.name,
            license=license,
            own=is_own,
        )
        (aside / CARD).write_text(text, encoding="utf-8")
        _write(aside, written, about, corpus)
    say(f"{folder.name}: model_type {written.keys['model_type']} of config.json")
    if checkpoint.step < config.train.steps:
        say(f"{run_dir.name} is unfinished: this is step {checkpoint.step} of {config.train.steps}")
    return folder


def _write(aside: Path, written: Layout, about: About, corpus: TokenizedCorpus) -> None:
    """Writes weights, configuration and tokenizer, with the tokens that part documents."""
    try:
        save_file(written.weights, aside / WEIGHTS, metadata={"format": "pt"})
    except SafetensorError as error:  # of a full disk
        raise OSError(0, str(error)) from error
    (aside / WEIGHTS).chmod((aside / CARD).stat().st_mode)  # safetensors hides it from others
    about = about.model_copy(update={"weights": sha256_of(aside / WEIGHTS)})
    eos = written.keys.get("eos_token_id", corpus.bos_id)  # of an imported model, its own
    ends = {"bos_token": corpus.bos_id, "eos_token": eos[0] if isinstance(eos, list) else eos}
    ids = {f"{name}_id": i for name, i in ends.items()}
    keys = {**written.keys, **ids, "pad_token_id": None, "dtype": "float32"}
    _write_json(aside / CONFIG, {**keys, "lengthgen": about.model_dump()})
    tokenizer = _tokenizer(corpus)
    (aside / TOKENIZER).write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    tokens = {name: tokenizer.id_to_token(i) for name, i in ends.items() if i is not None}
    tokens["tokenizer_class"] = "PreTrainedTokenizerFast"
    _write_json(aside / "tokenizer_config.json", tokens)


def _write_json(path: Path, plain: Mapping[str, object]) -> None:
    path.write_text(json.dumps(plain, indent=1), encoding="utf-8")


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


def push(folder: Path, repository: str, *, say: Say) -> str:
    """Uploads an export to a repository of the Hub, and returns its address.

    A new one is private. Raises UserError if it cannot be written.
    """
    import huggingface_hub

    say(f"uploading {folder} to {repository}")
    api = huggingface_hub.HfApi()
    try:
        address = str(api.create_repo(repository, private=True, exist_ok=True))
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message="lengthgen export")
    except Exception as error:  # of the library and of what it sends with
        raise UserError(
            f"--push: {repository} cannot be written ({first_line(error)}); log in with hf auth "
            f"login, then: hf upload {repository} {folder}"
        ) from None
    return address
