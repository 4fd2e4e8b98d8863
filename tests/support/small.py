"""Small configurations, models and attention inputs for tests."""

import importlib
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lengthgen.config import conf
from lengthgen.config import plugins as plugin_files
from lengthgen.config.conf import choices, load_choice
from lengthgen.config.drafts import from_plain
from lengthgen.config.overrides import plain_values
from lengthgen.config.plugins import Plugin
from lengthgen.config.schema import Config, ModelDims, to_plain
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.errors import UserError
from lengthgen.evaluation.plan import plan
from lengthgen.evaluation.scored_text import Plan
from lengthgen.experiment import Experiment, resolve, resolved
from lengthgen.model.build import generator_of, redesigned
from lengthgen.model.transformer import Transformer
from lengthgen.schemes import AttentionContext, LayerHooks, Part, Scheme
from lengthgen.schemes.content.layer_state import LayerState, StateContext

SMALL = [
    *("model.d_model=32", "model.n_layers=2", "model.n_heads=4", "model.d_ff=64"),
    *("model.init_std=0.2", "corpus=synthetic", "corpus.documents=20"),
    *("corpus.document_words=300", "corpus.alphabet=16", "corpus.copy_words=8"),
    *("corpus.copies=4", "train.length=16", "train.batch_tokens=128", "train.tokens=1024"),
    *("train.checkpoint_every=3", "train.precision=fp32", "train.warmup_fraction=0.05"),
    *("train.val_every=0", "train.optimizer=adamw", "train.schedule=cosine"),
    "train.keep_optimizer=true",  # tests remove the last checkpoint, and resume
    *("eval.lengths=[16,32,64]", "eval.targets=8", "eval.endpoints=4", "eval.max_context=64"),
    *("eval.reference_variants=[]", "runtime.wandb=off", "runtime.device=cpu"),
    # As many threads as cores, in several tests at once, would wait for each other.
    *("runtime.threads=1", "runtime.log_every=1"),
]
SMALL_TASK = [
    *(word for word in SMALL if not word.startswith(("corpus", "eval"))),
    *("task=copy", "task.length=3", "task.longest=6", "task.examples=300"),
    *("task.examples_per_length=5", "train.length=8", "eval.lengths=[1,2,3,4,6]"),
]
# What a search and the tuning of rates take: they measure at T alone.
MEASURED_AT_T = [w for w in SMALL if not w.startswith(("eval.len", "eval.max_context", "eval.ref"))]
FRESH = "train.init_from=null"  # the runs that a study begins with are not here
CHOICES = ("scheme=", "model=", "corpus=", "task=", "train=", "study=")
VOCAB = 50
GIVEN: dict[str, Plugin] = {}  # to small_config, by digest


def smaller(*overrides: str, usual: Sequence[str] = SMALL) -> list[str]:
    """Returns the overrides, and those of SMALL whose keys they leave open, each key once."""
    given = {word.partition("=")[0] for word in overrides}
    return [*(word for word in usual if word.partition("=")[0] not in given), *overrides]


def small_config(*overrides: str, plugins: Sequence[Path] = ()) -> Config:
    """Returns a configuration of a model that trains in a second.

    Hydra composes what is chosen, once; other keys are set without it, quickly.
    """
    if any(word.startswith("train.tuned=") for word in overrides):  # a file of overrides
        return valid([*SMALL, *overrides])
    chosen = tuple(word for word in overrides if word.startswith(CHOICES))
    base = _composed(*chosen)
    words = [word.removeprefix("+") for word in overrides if word not in chosen]
    if not words and not plugins:
        return base
    files = plugin_files.read_plugins(plugins)
    GIVEN.update({plugin.digest: plugin for plugin in files})
    plain = to_plain(base) | {"plugins": [plugin.digest for plugin in files]}
    for key, value in plain_values(words).items():
        *sections, name = key.split(".")
        inner: Any = plain
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    return resolved(from_plain(plain), files).config


@cache
def _composed(*chosen: str) -> Config:
    name = chosen[0].removeprefix("scheme=") if len(chosen) == 1 else ""
    if name not in choices("scheme", config_dir=None):
        return valid([*SMALL, *chosen])
    scheme = conf.defaults()["scheme"] | load_choice("scheme", name)
    return resolved(from_plain(to_plain(_composed()) | {"scheme": scheme})).config


def config_of(*words: str, config_dir: Path | None = None) -> Config:
    """Returns the configuration of a command line without plugins."""
    return resolve(words, config_dir=config_dir).config


def valid(words: Sequence[str]) -> Config:
    return config_of(*words)


def experiment_of(config: Config) -> Experiment:
    """Returns the experiment of a configuration, whose plugins small_config was given."""
    return resolved(config, tuple(GIVEN[digest] for digest in config.plugins))


def create(config: Config, *, vocab_size: int) -> Transformer:
    """Returns the model of a configuration with its first weights."""
    return experiment_of(config).create(vocab_size=vocab_size)


def varied(model: Transformer, config: Config, variant: str) -> Scheme:
    """Returns the scheme under a variant, with the model's parameters."""
    of_eval = config.eval.model_copy(update={"variants": [variant]})
    (design,) = experiment_of(config.model_copy(update={"eval": of_eval})).evaluated_variants
    return redesigned(model, design)


def plan_of(config: Config, corpus: TokenizedCorpus) -> Plan:
    """Returns what a configuration scores of a corpus."""
    experiment = experiment_of(config)
    return plan(config, experiment.protocols, experiment.objective, corpus)


def every_scheme() -> list[tuple[str, str | None]]:
    """Returns (scheme, variant) of all shipped schemes, the plain scheme as variant None."""
    pairs: list[tuple[str, str | None]] = []
    for name in choices("scheme", config_dir=None):
        variants = load_choice("scheme", name).get("variants") or {}
        pairs += [(name, None), *((name, variant) for variant in variants)]
    return pairs + [("rope", variant) for variant in choices("variant", config_dir=None)]


def small_model(
    name: str,
    variant: str | None = None,
    *,
    dtype: torch.dtype = torch.float64,
    words: Sequence[str] = (),
    plugins: Sequence[Path] = (),
) -> Transformer:
    """Returns a model under the scheme, its parts moved off their initial values."""
    config = small_config(f"scheme={name}", *words, plugins=plugins)
    model = create(config, vocab_size=VOCAB)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.scheme.parameters():
            parameter += 0.3 * torch.rand(parameter.shape, generator=generator)
        model.scheme.clamp_parameters()
    if variant is not None:
        model.scheme = varied(model, config, variant)
    return model.to(dtype).eval()


def some_tokens(length: int, *, batch: int = 2, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def some_qkv(
    length: int, *, dtype: torch.dtype, batch: int = 2, heads: int = 4, width: int = 8
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    q, k, v = torch.randn(3, batch, heads, length, width, generator=generator, dtype=dtype)
    return q, k, v


def hidden(model: Transformer, tokens: Tensor, *, n_last: int | None = None) -> Tensor:
    """Returns the model's final states; a part that samples draws the same every time."""
    return model(tokens, n_last=n_last, generator=torch.Generator().manual_seed(0))


def last_logits(model: Transformer, tokens_BS: Tensor) -> Tensor:
    """Returns the logits after the last token as in evaluation, from a call with the whole text."""
    draws = generator_of("evaluation", 0)
    with torch.no_grad():
        return model.logits(model(tokens_BS, n_last=1, generator=draws)[:, 0])


def context(
    model: Transformer, length: int, *, dtype: torch.dtype, shift: int = 0
) -> AttentionContext:
    """Returns the context of layer 0 for a call of the given length."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(2, length, model.shape.d_model, generator=generator)
    x = x.bfloat16().to(dtype)  # the same numbers in every precision
    draws = torch.Generator().manual_seed(0)
    table = model.embedding.weight
    c = AttentionContext.of_call(
        model.shape, some_tokens(length), x, training=False, generator=draws, embedding_VD=table
    )
    pos = c.pos + shift
    c = replace(c, pos=pos, q_pos=pos, k_pos=pos)
    moved = model.scheme.positions(c.tokens_BT, c)
    c = c if moved is c.pos else replace(c, pos=moved, q_pos=moved, k_pos=moved)
    for part in model.scheme.all:
        if isinstance(part, LayerState):
            c = StateContext.of(c, part.initial_state(c))
    return c


def dims(d_head: int = 8, **changes: int) -> ModelDims:
    """Returns the dimensions of one layer with one head at T = 512, but for what is given."""
    H, T = changes.get("n_heads", 1), 512
    sizes = {"d_model": H * d_head, "n_layers": 1, "n_heads": H, "n_kv_heads": H, "train_length": T}
    return ModelDims(d_head=d_head, init_std=0.02, causal=True, **sizes | changes)


def bare_call(
    shape: ModelDims, length: int, *, dtype: torch.dtype = torch.float64
) -> AttentionContext:
    """Returns the context of a call of that length that holds no more than its coordinates."""
    tokens, x = torch.zeros(1, length, dtype=torch.int64), torch.empty(1, length, 0, dtype=dtype)
    return AttentionContext.of_call(shape, tokens, x, training=False, generator=None)


def is_shift_invariant(scheme: Scheme) -> bool:
    """Returns what the flags of parts say: adding a constant to all coordinates changes nothing."""
    turned = (
        part.reads_qk and any(other.rotary for other in layer.parts if other is not part)
        for layer in scheme.layers
        for part in layer.parts
    )
    return all(part.shift_invariant for part in scheme.all) and not any(turned)


def layer_of(*parts: Part, **named: Part) -> LayerHooks:
    """Returns the hooks of a layer with these parts."""
    every = {f"part{i}": part for i, part in enumerate(parts)} | named
    return Scheme(every, layers=None, n_layers=1).layers[0]


def det(*size: int, a: float = 0.7, b: float = 0.0) -> Tensor:
    """Returns sin(a (i + 1)) + b for i = 0, 1 ... in row-major order, in float64."""
    return torch.sin(a * (torch.arange(math.prod(size), dtype=torch.float64) + 1)).view(size) + b


def rotated(layer: LayerHooks, q: Tensor, k: Tensor, c: AttentionContext) -> tuple[Tensor, Tensor]:
    """Returns q and k after every part's `qk`, as attend() makes them."""
    c = replace(c, hooks=layer)
    for part in layer.qk:
        q, k = part.qk(q, k, c)
    return q, k


def refusal(refused: Callable[..., object], *arguments: Any, **named: Any) -> str:
    """Returns the one line with which a call is refused."""
    with pytest.raises(UserError) as caught:
        refused(*arguments, **named)
    line = str(caught.value)
    assert "\n" not in line
    return line


def close(got: Tensor, want: Tensor, *, atol: float) -> None:
    """Asserts that no entry differs by more than atol."""
    torch.testing.assert_close(got, want, rtol=0, atol=atol)


def imported(name: str) -> Any:
    """Returns a module without type stubs."""
    with warnings.catch_warnings():  # x-transformers imports a user of torch.jit.script
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module(name)
