"""lengthgen import: a model in Hugging Face layout as a run directory; no code of it is run."""

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from tokenizers import Tokenizer

from lengthgen.config import conf
from lengthgen.config.drafts import drafted, from_plain
from lengthgen.config.overrides import plain_values
from lengthgen.config.schema import Config, InitFrom, to_plain
from lengthgen.data.sources.hub import hub_or_cache
from lengthgen.data.tokenizer import prepended, read_tokenizer
from lengthgen.errors import Say, UserError
from lengthgen.evaluation.protocols import HEADLINE, PROTOCOLS
from lengthgen.evaluation.validation import mean_loss
from lengthgen.experiment import Experiment, config_of, resolved
from lengthgen.files import new_folder, read_bytes, replace_file, sha256_of
from lengthgen.hub.families import EMPTY, INSTALL, OWN, Read, kind_of, read_config
from lengthgen.hub.reference import compare_logits, reference
from lengthgen.hub.weights import CONVERT, Tensors, Weights, ours, read_json
from lengthgen.runs import checkpoints, devices, directory, signals, status
from lengthgen.runs.distributed import ALONE
from lengthgen.terminal import Progress

NEEDED = ["config.json", "tokenizer.json", "*.safetensors", "*.safetensors.index.json"]
FINE_TUNING = 1.0e-4  # train.lr of what goes on with the weights
PADDING = 4096  # rows of an embedding beyond the tokenizer's ids are fewer
ROUNDED = 2048  # tokens at most, of windows that show what bf16 changes


@signals.interruptible()
def import_model(
    source: str,
    *,
    name: str | None,
    length: int | None,
    overrides: Sequence[str],
    say: Say,
) -> Path:
    """Returns the run directory of a folder or of a repository of the Hub.

    Raises UserError for what is missing, damaged, or has no counterpart here.
    """
    folder = _folder(source, say)
    plain = read_json(folder / "config.json")
    kind_of(plain, where=folder)
    trained: Any = plain
    for key in (OWN, "config", "train", "length"):  # of an export: MPT's own key is longer than T
        trained = trained.get(key) if isinstance(trained, dict) else None
    theirs = reference(plain, where=folder)
    if theirs is None:
        say(f"no transformers 5 here: its reading and logits are not compared; {INSTALL}")
    keys, usual = (plain, None) if theirs is None else (theirs.keys, theirs.usual)
    read_as = read_config(keys, length or trained, where=folder, usual=usual)
    tensors = Tensors(folder, read_as.family)
    shape, learned = read_as.model, read_as.T * ("table" in read_as.family.names)
    numbers = shape.d_model * ((shape.vocab_size or 0) + shape.n_layers * shape.d_ff + learned)
    if numbers > tensors.n_bytes:
        raise UserError(
            f"{folder}: config.json asks for {numbers:,} numbers or more, and the weights have "
            f"{tensors.n_bytes:,} bytes"
        )
    tokenizer = _tokenizer(folder, rows=shape.vocab_size or 0)
    bos = prepended(tokenizer)
    here = Path(source).expanduser().is_dir()
    name = name or Path(os.path.abspath(source if here else source.partition("@")[0])).name
    if lost := "".join(c for c in name if c.isalnum() and not c.isascii()):
        raise UserError(f"{name}: {lost} cannot stand in the name of a run; give --name in ASCII")
    name = re.sub(r"^(\.|$)|[^A-Za-z0-9_.]", "_", name)[:63]
    if not isinstance(plain_values([f"study={name}"])["study"], str):
        name = f"_{name}"  # 1e5 and true are no words
    experiment = _experiment(name, read_as, tensors, overrides, has_bos=bos is not None)
    config = experiment.config
    if (config.run_dir / "DONE").exists():
        there, kept_sections = config_of(config.run_dir, {}), ("eval", "runtime")
        same = all(getattr(there, section) == getattr(config, section) for section in kept_sections)
        stays = "" if same else "; its eval.* and runtime.* stay, give others to lengthgen eval"
        say(f"{config.run_id} is there already{stays}")
        return config.run_dir
    experiment.source.check()
    with torch.device("meta"):
        model = experiment.build(vocab_size=0)
    weights = ours(model, tensors, scales=read_as.scales)
    tensors.refuse_left(weights["embedding.weight"])
    if theirs is not None:
        model.load_state_dict(weights, assign=True)
        ends = read_as.family.ends
        compare_logits(model.eval(), theirs, folder, T=read_as.T, ends=ends, say=say)
    n = sum(weight.numel() for weight in weights.values())
    before = "nothing" if bos is None else tokenizer.id_to_token(bos)
    T = f"{read_as.T:,}"
    say(f"{n / 1e6:,.1f}M parameters, {config.scheme.name}, T = {T}, {before} before a text")
    _write(config, weights)
    if config.eval.precision == "bf16":
        del model, weights
        say(_rounding(experiment, say))
    return config.run_dir


def _rounding(experiment: Experiment, say: Say) -> str:
    """Returns how much a loss and its time change in bf16, on a few windows of the corpus."""
    try:
        opened = experiment.opened(say=say)
    except UserError as error:
        return f"eval.precision=bf16: not compared with fp32: {error}"
    model = opened.trained(ranks=ALONE, show=Progress(is_main=False)).model
    T, lengths = experiment.config.train.length, experiment.config.eval.lengths
    length = max([n for n in lengths if n <= min(T, ROUNDED)], default=min(lengths))
    spans = PROTOCOLS[HEADLINE].windows(length, opened.plan)[:4]
    loss, seconds = list[float](), list[float]()
    how: dict[str, Any] = {"seed": experiment.config.seed, "ranks": ALONE}
    for precision in ("bf16", "fp32"):
        begun = time.monotonic()
        loss.append(mean_loss(model, spans, opened.corpus, precision=precision, **how))
        seconds.append(time.monotonic() - begun)
    return (
        f"eval.precision=bf16: the loss of {sum(span.scored for span in spans)} targets at "
        f"{length:,} tokens is {loss[0] - loss[1]:+.4f} nats off fp32, in "
        f"{seconds[0] / seconds[1]:.0%} of the time; eval.precision=fp32 changes it"
    )


def _folder(source: str, say: Say) -> Path:
    """Returns the folder of a path, or that of a download."""
    folder = Path(source).expanduser()
    repo, _, revision = source.partition("@")
    if not folder.is_dir() and re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        import huggingface_hub

        say(f"downloading {source} from the Hugging Face Hub")
        about: dict[str, Any] = {"revision": revision or None, "allow_patterns": NEEDED}
        about["ignore_patterns"] = ["consolidated*", "*/*"]  # the weights once more
        with hub_or_cache(f"{repo} is no folder; it", remedy="give one in Hugging Face layout"):
            folder = Path(huggingface_hub.snapshot_download(repo, **about))
    if not (folder / "config.json").is_file():
        raise UserError(
            f"{source} is no folder with a config.json; give one in Hugging Face layout, or a name "
            "of the Hub as in: lengthgen import HuggingFaceTB/SmolLM2-135M"
        )
    return folder


def _tokenizer(folder: Path, rows: int) -> Tokenizer:
    """Returns the model's own. Raises UserError if the embedding is that of another."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UserError(f"{folder} has no tokenizer.json; {CONVERT}")
    tokenizer = read_tokenizer(path)
    n = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    if not 0 <= rows - n < PADDING:
        more = "; or remove from its added_tokens those that have no row" if n > rows else ""
        raise UserError(
            f"{path} has {n} ids and the embedding {rows} rows; give the tokenizer of this "
            f"model{more}"
        )
    return tokenizer


def _experiment(
    name: str, read: Read, tensors: Tensors, overrides: Sequence[str], *, has_bos: bool
) -> Experiment:
    """Returns the experiment of a run that begins with these weights and takes no step."""
    T, usual = read.T, conf.load_choice("train", "default")["batch_tokens"]
    words = [*overrides, f"train.length={T}", f"train.batch_tokens={max(T, usual // T * T)}"]
    words += [f"train.lr={FINE_TUNING}", "train.precision=fp32"]
    if not any(word.startswith("eval.deduplicate=") for word in words):
        words.append("eval.deduplicate=false")  # it has not read the corpus's training text
    base = drafted(words)
    plain, scheme = to_plain(base), "_".join(read.parts) or EMPTY
    if not any(word.startswith("eval.precision=") for word in words):
        plain["eval"]["precision"] = devices.native_precision(base.runtime.device)
    if not any(word.startswith("eval.reference_variants=") for word in words):
        others = [name for name in base.eval.reference_variants if name not in read.parts]
        plain["eval"]["reference_variants"] = others  # a part of its own would be replaced
    shipped: dict[str, Any] = {}
    if scheme in conf.choices("scheme", config_dir=None):
        shipped = conf.load_choice("scheme", scheme)
    tokenizer = sha256_of(tensors.folder / "tokenizer.json")[:12]
    plain["corpus"]["tokenizer"] = str(base.runtime.root / f".tokenizers/{tokenizer}.json")
    plain["corpus"]["bos"] = has_bos
    plain["model"] = {**read.model.model_dump(), "name": name}
    plain["scheme"] = {"variants": {}, **shipped, "name": scheme, "parts": read.parts}
    plain["scheme"] |= {"layers": read.layers, "lr_ratio": 1.0}
    sha256, path = tensors.sha256(), str(tensors.folder)
    plain["train"]["tokens"] = 0
    plain["train"]["init_from"] = {
        "run": name,
        "recipe": sha256[:12],
        "weights": sha256,
        "path": path,
    }
    return resolved(from_plain(plain))


def _study(config: Config) -> bytes:
    """Returns the YAML of a study that trains the model further: --config-dir RUN/conf."""
    plain = to_plain(config)
    chosen: dict[str, Any] = {key: plain[key] for key in ("model", "scheme")}
    chosen["corpus"] = {key: plain["corpus"][key] for key in ("tokenizer", "bos")}
    chosen["train"] = {key: plain["train"][key] for key in ("length", "batch_tokens", "lr")}
    chosen["train"]["init_from"] = config.run_id
    chosen["eval"] = {"reference_variants": plain["eval"]["reference_variants"]}
    defaults = {"defaults": [{"override /scheme": EMPTY}, "_self_"]}
    text = yaml.safe_dump(defaults | chosen, sort_keys=False)
    return f"# @package _global_\n# Trains {config.model.name} further.\n{text}".encode()


def _write(config: Config, weights: Weights) -> None:
    """Writes the run directory aside, and puts it in place in one step."""
    run, run_dir = config.run_id, config.run_dir
    kept = Path(config.corpus.tokenizer)
    assert isinstance(config.train.init_from, InitFrom)
    with new_folder(run_dir) as aside:
        checkpoints.save(aside, run=run, step=0, weights=weights, trainer={})
        directory.write_config(config, aside)
        directory.write_provenance(aside, None, run=run, weights=weights, code={})
        checkpoints.mark_trained(aside, run=run)
        status.write_status(aside, status.Status("done"), run=run)
        if not kept.exists():
            path = Path(config.train.init_from.path) / "tokenizer.json"
            replace_file(kept, read_bytes(path))
        (aside / "conf").mkdir()
        replace_file(aside / f"conf/study/{config.model.name}.yaml", _study(config))
