"""Writing an export: checked first, written aside, and put in place in one step.

The layout is that of a family of transformers which computes the model, or lengthgen's own, with
modeling_lengthgen.py, which imports lengthgen.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, processors

from lengthgen import __version__, schemes
from lengthgen.config.schema import Config, to_plain
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.tokenizer import read_tokenizer
from lengthgen.errors import Say, UserError
from lengthgen.experiment import Experiment
from lengthgen.files import new_folder, replace_file
from lengthgen.hub.card import card, to_share
from lengthgen.hub.exported import CARD, CONFIG, TOKENIZER, About
from lengthgen.hub.families import OWN, config_json_of
from lengthgen.hub.weights import Weights, theirs
from lengthgen.model.transformer import Transformer
from lengthgen.runs import checkpoints, directory, signals

CODE = Path(__file__).with_name("modeling_lengthgen.py")
UNSHARED = ("plugins", "eval", "runtime")  # sections of a configuration that weights do not need


@signals.interruptible()
def export(
    experiment: Experiment,
    run_dir: Path,
    folder: Path,
    *,
    license: str | None,
    repository: str | None = None,
    say: Say,
) -> Path:
    """Writes the newest checkpoint of a run into a folder that is new or empty, and returns it.

    The card names the repository that the folder goes to, if any.
    Raises UserError if the folder holds anything, or if the run has no checkpoint, has lost its
    last one, or has not the corpus that it was begun with.
    """
    config = experiment.config
    config.refuse_arch("export")
    folder = folder.resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there already; give a new or empty folder, or remove it")
    corpus = directory.load_corpus(config, experiment.source, run_dir, say=say)
    checkpoint = checkpoints.final(config, run_dir)
    keys, weights = layout(experiment, checkpoint.weights)
    with new_folder(folder) as aside:
        checkpoints.write_weights(aside / checkpoints.WEIGHTS, weights, {"format": "pt"})
        about = About(
            lengthgen=__version__,
            run=config.run_id,
            step=checkpoint.step,
            seed=config.eval.seed,
            fingerprint=corpus.fingerprint,
            vocab_size=corpus.vocab_size,
            plugins=[f"plugins/{digest}.py" for digest in config.plugins],
            config=to_share({k: v for k, v in to_plain(config).items() if k not in UNSHARED}),
        )
        for name, plugin in zip(about.plugins, experiment.plugins, strict=True):
            replace_file(aside / name, plugin.content)  # as it was given, wherever a link points
        if keys["model_type"] == OWN:
            shutil.copy(CODE, aside)
        _write_keys(aside, keys, about, corpus)
        text = card(
            experiment,
            run_dir,
            about,
            corpus,
            checkpoint,
            name=folder.name,
            repository=repository or folder.name,
            license=license,
            keys=keys,
        )
        (aside / CARD).write_text(text, encoding="utf-8")
    say(f"{folder.name}: model_type {keys['model_type']} of config.json")
    if checkpoint.step < config.train.steps:
        say(f"{run_dir.name} is unfinished: this is step {checkpoint.step} of {config.train.steps}")
    return folder


def layout(experiment: Experiment, trained: Weights) -> tuple[dict[str, Any], Weights]:
    """Returns the keys of a config.json, and weights by the names that go with it.

    They are those of the first family that fits, or our own.
    """
    config, rows = experiment.config, len(trained["embedding.weight"])
    fitting = config_json_of(config, vocab_size=rows)
    if fitting is None:
        return _own_keys(config, rows), trained
    keys, read_as = fitting
    theirs_of = config.model_copy(update={"model": read_as.model})
    design = schemes.Design(shape=theirs_of.shape, layers=read_as.layers)
    design = design.with_parts(read_as.parts)
    with torch.device("meta"):
        model = Transformer(theirs_of, design, vocab_size=rows)
    return keys, theirs(model, read_as.family, trained)


def _own_keys(config: Config, rows: int) -> dict[str, Any]:
    classes = {"AutoConfig": "LengthgenConfig", "AutoModelForCausalLM": "LengthgenForCausalLM"}
    return {
        "model_type": OWN,
        "architectures": ["LengthgenForCausalLM"],
        "auto_map": {name: f"{CODE.stem}.{kind}" for name, kind in classes.items()},
        "vocab_size": rows,
        "hidden_size": config.model.d_model,
        "num_hidden_layers": config.model.n_layers,
        "num_attention_heads": config.model.n_heads,
        "max_position_embeddings": config.train.length,
    }


def _write_keys(aside: Path, keys: dict[str, Any], about: About, corpus: TokenizedCorpus) -> None:
    """Writes configuration and tokenizer, with the tokens that part documents."""
    bos, tokenizer = corpus.bos_id, _tokenizer(corpus)
    ids = {"bos_token_id": bos, "eos_token_id": bos, "pad_token_id": None}
    keys = {**ids, **keys, "dtype": "float32", OWN: about.model_dump()}
    tokens = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if bos is not None:
        tokens |= dict.fromkeys(("bos_token", "eos_token"), tokenizer.id_to_token(bos))
    (aside / TOKENIZER).write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    for name, plain in ((CONFIG, keys), ("tokenizer_config.json", tokens)):
        (aside / name).write_text(json.dumps(plain, indent=1), encoding="utf-8")


def _tokenizer(corpus: TokenizedCorpus) -> Tokenizer:
    """Returns the tokenizer, whose encode() begins a text as windows of training begin."""
    tokenizer = read_tokenizer(corpus.tokenizer_path)
    before: list[tuple[str, int]] = []
    if corpus.bos_id is not None:
        before = [(str(tokenizer.id_to_token(corpus.bos_id)), corpus.bos_id)]
    single = " ".join([*(name for name, _ in before), "$A"])
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=before)
    return tokenizer
