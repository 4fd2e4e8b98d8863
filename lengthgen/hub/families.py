"""Configurations of pretrained models as ours, by the tables of families.yaml, and back.

One table reads a config.json and writes it. What of a config.json is neither read nor known to
leave logits alone is refused by name. A family fits a model here if what is written reads as it.
"""

import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from lengthgen import schemes
from lengthgen.config import compose
from lengthgen.config.schema import Config, Model
from lengthgen.config.sections import Section, validate
from lengthgen.errors import UserError, first_line

Parts = dict[str, dict[str, Any]]
EMPTY = "nope"  # the scheme without parts
ORIGINAL = "original_max_position_embeddings"
BIASES = ["norm", "qkv", "attention_out", "mlp"]
ACTIVATIONS = {  # of several names the first is written
    **{"silu": "swiglu", "swish": "swiglu", "gelu": "gelu", "relu": "relu"},
    **{"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh"},
}
ROPE_TYPES = {  # our part, and its arguments
    "linear": ("pi", ["factor", ORIGINAL, "trained_factor"]),
    "dynamic": ("dynamic_ntk", ["factor", ORIGINAL]),
    "llama3": ("llama3", ["factor", ORIGINAL, "low_freq_factor", "high_freq_factor"]),
    "yarn": ("yarn", ["factor", ORIGINAL, "beta_fast", "beta_slow"]),
    "longrope": ("longrope", ["factor", ORIGINAL, "lambdas", "short_lambdas"]),
}
LAMBDAS = {"lambdas": "long_factor", "short_lambdas": "short_factor"}  # as transformers has them
WRITTEN = ("llama", "qwen3", "qwen2", "smollm3", "gpt_neox", "mpt", "gpt2", "bloom")
OWN = "lengthgen"  # the model_type of what no family of transformers computes
NESTED = ("rope_scaling", "rope_parameters", "attn_config")
NULL_IS_A_VALUE = ("sliding_window", "num_key_value_heads", "head_dim")  # elsewhere: the default
IGNORED = re.compile(  # keys that change no logit of a trained model, unless a family takes them
    r".*(dropout|pdrop|token_id)|summary_.*|_?attn_impl(ementation(_autoset)?)?|init_std"
    r"|initializer_range|predict_special_tokens|_num_labels|output_past|unsloth_.*|finetuned"
    r"|(torch_)?dtype|transformers[_.].*|architectures|model_type|_(model_)?name_or_path"
    r"|_commit_hash|auto_map|id2label|label2id|return_dict|use_return_dict|problem_type|use_cache"
    r"|prefix|pretraining_tp|layerdrop|task_specific_params|init_device|n_ctx|embedding_fraction"
    r"|norm_type|reorder_and_upcast_attn|attention_softmax_in_fp32|masked_softmax_fusion"
    r"|bias_dropout_fusion|skip_bias_add(_qkv)?|is_llama_config|lengthgen|learned_pos_emb"
    r"|max_window_layers|head_dim|offset_alibi|init_config|tokenizer_name|cache_implementation"
    r"|use_parallel_embedding|tokenizer_class|(min|max)_length|gradient_checkpointing|is_decoder"
    r"|finetuning_task|output_(hidden_states|attentions)|do_sample|temperature|torchscript"
    r"|(top|typical)_[kp]|num_(beams|beam_groups|return_sequences)|(repetition|length)_penalty"
    r"|_flash_attn_2_enabled"
)


class Family(Section):
    """What the keys of a config.json and the weights are called, by our options and modules."""

    keys: dict[str, str]  # alternatives, of which the first is written
    names: dict[str, str]  # of weights; several stand side by side in one matrix
    prefix: str  # of all names but that of the head
    block: str
    parts: Parts
    model: dict[str, Any] = Field(default={})  # options where config.json says nothing
    biases: list[str] = Field(default=[])
    switches: dict[str, list[str]] = Field(default={})  # of biases
    only: dict[str, Any] = Field(default={})  # other values are refused
    every: int | None = None  # such a layer is another: without RoPE, or of full attention
    slides: bool = False  # layers have a window unless config.json says otherwise
    full_rotates: bool = True  # layers of full attention have RoPE
    per_head: bool = False  # queries, keys and values of a head side by side
    transposed: bool = False  # matrices are [in, out]
    first_row: int = 0  # of learned positions


@cache
def families() -> dict[str, Family]:
    """Returns the families of families.yaml, by model_type."""
    return validate(dict[str, Family], compose.read(Path(__file__).with_suffix(".yaml")))


class Keys:
    """The keys of a config.json, and those of the mappings in it, that nothing has taken yet."""

    def __init__(self, plain: Mapping[str, Any]) -> None:
        flat = {key: value for key, value in plain.items() if key not in NESTED}
        for key in NESTED:
            flat |= plain.get(key) or {}
        self.left = {k: x for k, x in flat.items() if x is not None or k in NULL_IS_A_VALUE}

    def take(self, names: str, default: Any = None) -> Any:
        """Returns the value of the first of several names that is there."""
        values = [self.left.pop(name) for name in names.split() if name in self.left]
        return values[0] if values else default

    def require(self, names: str, only: Any) -> None:
        """Refuses every value but this one."""
        if (value := self.take(names, only)) != only:
            refuse(names, value)


def refuse(key: str, value: Any) -> None:
    """Raises UserError for what no option here stands for."""
    raise UserError(
        f"config.json: {key}={value!r} has no counterpart here, and without it this would be "
        "another model; import one without it"
    )


class Read(NamedTuple):
    """A configuration as ours: model, parts, and the parts of each layer."""

    model: Model
    parts: Parts
    layers: list[list[str]] | None
    T: int
    logit_scale: float


def read(plain: Mapping[str, Any], length: int | None, *, where: Path) -> Read:
    """Returns a config.json as ours; T is the given length, or the trained one.

    Raises UserError for what has no counterpart here.
    """
    kind = plain.get("model_type")
    if kind not in families():
        known = ", ".join(families())
        if kind == OWN:
            known += "; lengthgen.hub.exported.load reads lengthgen's own layout"
        raise UserError(f"{where}/config.json: no model_type={kind!r} here; known: {known}")
    try:
        return _read(Keys(plain), families()[kind], length)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    except (TypeError, KeyError, ValueError, IndexError, AttributeError) as error:
        why = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"{where}/config.json does not fit model_type={kind} ({why})") from None


def _read(keys: Keys, family: Family, length: int | None) -> Read:
    for key, value in family.only.items():
        keys.require(key, value)
    usual = {"norm_epsilon": 1e-5, "mlp": "gelu", "tied_head": True, **family.model}
    given = {option: keys.take(names, usual.get(option)) for option, names in family.keys.items()}
    model: dict[str, Any] = {**usual, **given}
    for name in ("d_model", "n_layers", "n_heads", "vocab_size"):
        if model[name] is None:
            raise UserError(f"config.json: {family.keys[name].split()[0]} is missing")
    keys.require("word_embed_proj_dim", model["d_model"])  # of OPT
    model["d_ff"] = model.get("d_ff") or 4 * model["d_model"]
    activation, is_gated = model["mlp"], " " in family.names["mlp_in"]
    model["mlp"] = ACTIVATIONS.get(activation)
    if model["mlp"] is None or is_gated != (model["mlp"] == "swiglu"):
        refuse("hidden_act", activation)
    biases = {*family.biases}
    for key, switched in family.switches.items():
        on = keys.take(key, {*switched} <= biases)
        biases = biases | {*switched} if on else biases - {*switched}
    model["biases"] = [name for name in BIASES if name in biases]
    longest, logit_scale = model.pop("length"), model.pop("logit_scale", 1.0)
    if (T := length or longest) is None:
        raise UserError("config.json names no trained length; give --length")
    if "table" in family.names and longest != T:
        raise UserError(f"--length={T}: this model has {longest} learned positions; drop it")
    parts, layers = family.parts, None
    if "rope" in parts:
        parts = _rope(keys, parts["rope"], longest or T, T)
        parts, layers = _by_layer(keys, family, parts, n=model["n_layers"], T=T)
    for key, value in keys.left.items():
        if value and not IGNORED.fullmatch(key):  # an option that is off is no other model
            refuse(key, value)
    named = {"name": "imported", "arch": "decoder", "init_std": 0.02, **model}
    return Read(validate(Model, named, where="model."), parts, layers, T, logit_scale)


def _rope(keys: Keys, usual: dict[str, Any], longest: int, T: int) -> Parts:
    """Returns RoPE and the part that scales it."""
    kind = keys.take("rope_type type", "default")
    base = float(keys.take("rope_theta rotary_emb_base", usual["base"]))
    share = keys.take("partial_rotary_factor rotary_pct", usual["rotary_percentage"])
    if share != 1 and (usual["rotary_percentage"] == 1 or kind in ("yarn", "longrope")):
        refuse("partial_rotary_factor", share)  # yarn and longrope: only rotated channels grow
    parts: Parts = {}
    if share:
        parts["rope"] = {**usual, "base": base, "rotary_percentage": float(share)}
    original = keys.take(ORIGINAL, longest)
    if kind == "default":
        return parts
    if kind not in ROPE_TYPES:
        refuse("rope_type", kind)
    s = keys.take("factor") or longest / original
    mscale = 1.0
    if kind == "yarn":
        mscale = 0.1 * math.log(s) + 1
    elif kind == "longrope":
        mscale = math.sqrt(1 + math.log(s) / math.log(original))
    if not math.isclose(given := keys.take("attention_factor", mscale), mscale, rel_tol=1e-6):
        refuse("attention_factor", given)
    keys.require("truncate", True)
    usual = {"factor": s, "trained_factor": s, "beta_fast": 32, "beta_slow": 1}
    # linear names no length: that of which T is s times, so that the variant `pi` scales once more.
    usual[ORIGINAL] = {"dynamic": longest, "linear": round(T / s)}.get(kind, original)
    part, names = ROPE_TYPES[kind]
    parts[part] = {name: keys.take(LAMBDAS.get(name, name), usual.get(name)) for name in names}
    return parts


def _by_layer(
    keys: Keys, family: Family, parts: Parts, *, n: int, T: int
) -> tuple[Parts, list[list[str]] | None]:
    """Returns the parts with the window of some layers, and the parts of each layer."""
    every = keys.take("no_rope_layer_interval sliding_window_pattern", family.every) or n + 1
    sliding = rotates = [(i + 1) % every > 0 for i in range(n)]
    window, types = keys.take("sliding_window", 4096), keys.take("layer_types")
    slides = keys.take("use_sliding_window", family.slides) and window is not None
    if not slides:
        sliding = [False] * n
    elif types is not None:
        sliding = [kind == "sliding_attention" for kind in types]
    elif not family.slides:  # an older file, where max_window_layers counts
        refuse("use_sliding_window", slides)
    rotates = keys.take("no_rope_layers", rotates if family.full_rotates else sliding)
    layers = [[*(parts if rotates[i] else []), *(["window"] * sliding[i])] for i in range(n)]
    if not any(layers):
        return {}, None
    if window is not None and any(sliding):
        parts = {**parts, "window": {"width": window / T, "sinks": 0}}
    return parts, None if all({*layer} == parts.keys() for layer in layers) else layers


def written(config: Config, *, vocab_size: int) -> tuple[dict[str, Any], Read] | None:
    """Returns the config.json of a family that computes what a model does, and how it reads.

    None if there is no such family here.
    """
    own = _options(config, config.model)
    parts = _typed(config.scheme.parts, config)
    for kind in WRITTEN:
        plain = _written(kind, config, parts, vocab_size)
        try:
            read_as = read(plain, config.train.length, where=Path())
        except UserError:
            continue
        layers, theirs = read_as.layers, _typed(read_as.parts, config)
        given = _options(config, read_as.model)
        enough = {*own["biases"]} <= {*given["biases"]}  # the others are zeros
        wanted = own | ({"biases": given["biases"]} if enough else {})
        if (theirs, layers, given) == (parts, config.scheme.layers, wanted):
            return plain, read_as._replace(parts=theirs)
    return None


def _written(kind: str, config: Config, parts: Parts, vocab_size: int) -> dict[str, Any]:
    """Returns the config.json of a family, as near to a model as it comes."""
    family, shape, model = families()[kind], config.shape, config.model.model_dump()
    model |= {"length": config.train.length, "vocab_size": vocab_size}
    model |= {"n_kv_heads": shape.n_kv_heads, "d_head": shape.d_head}
    model["mlp"] = next(name for name, ours in ACTIVATIONS.items() if ours == config.model.mlp)
    plain = {names.split()[0]: model[option] for option, names in family.keys.items()}
    plain |= {key: switched[0] in model["biases"] for key, switched in family.switches.items()}
    if "rope" in family.parts:
        usual = family.parts["rope"]
        own = parts.get("rope", {**usual, "rotary_percentage": 0.0})
        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": own["base"]}
        if usual["rotary_percentage"] != 1:
            rope["partial_rotary_factor"] = own["rotary_percentage"]
        for rope_type, (part, names) in ROPE_TYPES.items():
            if part in parts:
                if rope_type in ("dynamic", "linear"):  # others are T, or follow from it
                    names = names[:1]
                arguments = {LAMBDAS.get(name, name): parts[part][name] for name in names}
                if None not in arguments.values():
                    rope |= {"rope_type": rope_type, **arguments}
        plain["rope_parameters"] = rope
    if kind == "smollm3":
        plain["no_rope_layers"] = [int("rope" in parts)] * shape.n_layers
    if kind == "mpt":  # whose code makes a bias of this length, at which the model does not end
        plain["max_seq_len"] = 32 * config.train.length
    return {"model_type": kind, **plain}


def _typed(parts: Parts, config: Config) -> Parts:
    """Returns parts with all arguments; the length that factors refer to is T if none is given."""
    typed = schemes.typed(parts, plugins=config.plugins)
    for name, arguments in typed.items():
        if ORIGINAL in arguments and arguments[ORIGINAL] is None:
            arguments[ORIGINAL] = config.train.length
        if name == "pi" and arguments["factor"] is not None:  # which reads no other
            arguments |= {ORIGINAL: None, "trained_factor": 1.0}
    return typed


def _options(config: Config, model: Model) -> dict[str, Any]:
    """Returns all that decides what a block computes."""
    shape = config.model_copy(update={"model": model}).shape
    left_out = {"name", "init_std", "dropout", "vocab_size", "d_head", "n_kv_heads"}
    return {**model.model_dump(exclude=left_out), "widths": shape.qkv_widths}
