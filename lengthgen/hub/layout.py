"""The layout of an export: that of a family of transformers which computes the model, or its own.

Its own comes with modeling_lengthgen.py, which imports lengthgen.
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lengthgen.config.schema import Config
from lengthgen.hub import families, weights
from lengthgen.hub.exported import OWN, THEIRS, About, build
from lengthgen.hub.families import FAMILIES, Read
from lengthgen.model.build import build_model, on_meta
from lengthgen.model.transformer import Transformer

CODE = Path(__file__).with_name("modeling_lengthgen.py")
Weights = dict[str, Tensor]


class Layout(NamedTuple):
    """The keys of a config.json, and weights by the names that go with it."""

    keys: dict[str, Any]
    weights: Weights


def layout(config: Config, run_dir: Path, about: About, trained: Weights) -> Layout:
    """Returns the layout that a model was imported in, or the first that fits, or its own."""
    rows, T = len(trained["embedding.weight"]), config.train.length
    if config.train.tokens:
        fitting = families.written(config, vocab_size=rows)
    else:  # it was imported
        keys = weights.read_json(run_dir / THEIRS)
        fitting = keys, families.read(keys, T, where=run_dir)[0]
    if fitting is None:
        return Layout(_own(config, rows), trained)
    keys, read_as = fitting
    model = _as_read(config, read_as, rows)
    positions = {
        name: _positions(about, run_dir, trained)
        for name in model.state_dict().keys() - trained.keys()
        if name.endswith(".table")
    }
    family = FAMILIES[keys["model_type"]]
    named = weights.theirs(model, family, trained | positions, scale=read_as.logit_scale)
    return Layout(keys, named)


def _as_read(config: Config, read_as: Read, rows: int) -> Transformer:
    """Returns the model that a family's configuration stands for, without storage."""
    model = config.model.model_copy(update=read_as.model)
    scheme = {"parts": read_as.parts, "layers": read_as.layers}
    changed = {"model": model, "scheme": config.scheme.model_copy(update=scheme)}
    with on_meta():
        return build_model(config.model_copy(update=changed), vocab_size=rows)


@torch.inference_mode()
def _positions(about: About, run_dir: Path, trained: Weights) -> Tensor:
    """Returns what the scheme adds to the embedding at each position up to T, [T, D]."""
    model = build(about, run_dir)
    model.load_state_dict(trained)
    tokens_BT = torch.zeros(1, model.shape.train_length, dtype=torch.int64)
    x_BTD, c = model.embedded(tokens_BT, generator=None)
    return model.scheme.embed(torch.zeros_like(x_BTD), c)[0].clone()


def _own(config: Config, rows: int) -> dict[str, Any]:
    return {
        "model_type": OWN,
        "architectures": ["LengthgenForCausalLM"],
        "auto_map": {
            "AutoConfig": f"{CODE.stem}.LengthgenConfig",
            "AutoModelForCausalLM": f"{CODE.stem}.LengthgenForCausalLM",
        },
        "vocab_size": rows,
        "hidden_size": config.model.d_model,
        "num_hidden_layers": config.model.n_layers,
        "num_attention_heads": config.model.n_heads,
        "max_position_embeddings": config.train.length,
    }
