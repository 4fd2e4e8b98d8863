"""Exported models: a folder with weights, configuration, tokenizer and model card, loaded here."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from lengthgen.config import conf
from lengthgen.config import plugins as plugin_files
from lengthgen.config.drafts import from_plain
from lengthgen.config.plugins import Plugin
from lengthgen.config.sections import Section, validate
from lengthgen.data.tokenizer import read_tokenizer
from lengthgen.errors import UserError
from lengthgen.experiment import resolved
from lengthgen.hub.families import OWN, families
from lengthgen.hub.weights import Tensors, ours, read_json
from lengthgen.model.build import generator_of
from lengthgen.model.transformer import Transformer
from lengthgen.runs.checkpoints import WEIGHTS

CONFIG, TOKENIZER, CARD = "config.json", "tokenizer.json", "README.md"


class About(Section):
    """The configuration of a run's training, and which checkpoint this is: config.json's lengthgen.

    The other keys of config.json are those of transformers.
    """

    format: Literal[1] = 1
    lengthgen: str  # the version that wrote it
    run: str
    step: int
    seed: int  # of the evaluation
    fingerprint: str  # of the corpus
    vocab_size: int
    plugins: list[str]  # paths in the folder
    config: dict[str, Any]  # without plugins, eval and runtime


def load_exported(
    folder: str | Path, *, plugins: Sequence[str | Path] = ()
) -> tuple[Transformer, Tokenizer]:
    """Returns the model of an exported folder, in fp32 on the CPU, and its tokenizer.

    model.logits(model(tokens_BT)) are logits; parts that sample positions draw those of lengthgen
    eval, unless a generator is given.

    Reads data alone, unless the model was trained with a plugin: its code runs if the caller has
    read it and gives its path in `plugins`. Raises UserError for such code that is not given, and
    for a folder that is no export or damaged.
    """
    folder = Path(folder)
    for name in (CONFIG, WEIGHTS, TOKENIZER):
        if not (folder / name).is_file():
            raise UserError(
                f"{folder} is no exported model: it has no {name}; lengthgen export RUN DIR "
                "makes one"
            )
    plain = read_json(folder / CONFIG)
    if OWN not in plain:
        raise UserError(f"{folder} is no export of lengthgen; give lengthgen import {folder}")
    about = validate(About, plain[OWN], where=f"{folder / CONFIG}: {OWN}.")
    model = build(about, folder, plugin_files.read_plugins([Path(path) for path in plugins]))
    if plain["model_type"] == OWN:
        state = load_file(folder / WEIGHTS)
    else:
        state = ours(model, Tensors(folder, families(plain["model_type"])[0]))
    model.load_state_dict(state)
    return model.eval().requires_grad_(False), read_tokenizer(folder / TOKENIZER)


def build(about: About, folder: Path, plugins: Sequence[Plugin] = ()) -> Transformer:
    """Returns the model of an export without its weights, whose calls draw as an evaluation."""
    nothing = {"lengths": [1], "targets": 1, "reference_variants": []}  # is scored
    plain: dict[str, Any] = {
        **about.config,
        "plugins": [Path(name).stem for name in about.plugins],
        "eval": conf.load_choice("eval", "default") | nothing,
        "runtime": conf.defaults()["runtime"],
    }
    needed = plugin_files.required(plain["plugins"], plugins, kept=folder / "plugins")
    with torch.random.fork_rng(devices=[]):  # parts draw initial values
        model = resolved(from_plain(plain), needed).build(vocab_size=about.vocab_size)

    def draw(_: Any, args: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {"generator": generator_of("evaluation", about.seed), **options}

    model.register_forward_pre_hook(draw, with_kwargs=True)
    return model
