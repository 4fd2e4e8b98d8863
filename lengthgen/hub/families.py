"""Families of models in Hugging Face layout: their keys as ours, tables of weights' names.

Whatever of a config.json is neither read nor known to leave logits alone is refused by name. Keys
that are written are read back: a family fits a model if its reader returns that model.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lengthgen import schemes
from lengthgen.config.schema import Config, Model
from lengthgen.errors import UserError, first_line

Parts = dict[str, dict[str, Any]]
ALL = ["norm", "qkv", "attention_out", "mlp"]
EMPTY = "nope"  # the scheme without parts
IGNORED = re.compile(  # keys that change no logit of a trained model
    r".*(dropout|pdrop|token_id)|summary_.*|_?attn_impl(ementation)?|initializer_range|init_std"
    r"|(torch_)?dtype|transformers[_.].*|architectures|model_type|_(model_)?name_or_path"
    r"|_commit_hash|auto_map|id2label|label2id|return_dict|use_return_dict|problem_type|use_cache"
    r"|prefix|pretraining_tp|layerdrop|task_specific_params|init_device|n_ctx|embedding_fraction"
    r"|norm_type|reorder_and_upcast_attn|attention_softmax_in_fp32|masked_softmax_fusion"
    r"|bias_dropout_fusion|skip_bias_add(_qkv)?|is_llama_config|lengthgen"
)


class Keys:
    """The keys of a config.json; `refuse_left` names the first that nothing has taken."""

    def __init__(self, plain: Mapping[str, Any]) -> None:
        self.kind = plain.get("model_type")
        self.left = {key: value for key, value in plain.items() if not IGNORED.fullmatch(key)}
        names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
        self.longest: int | None = self.take(*names)

    def take(self, *names: str, default: Any = None) -> Any:
        """Returns the value of the first of several names that has one."""
        values = [self.left.pop(name, None) for name in names]
        return next((value for value in values if value is not None), default)

    def need(self, *names: str) -> Any:
        if (value := self.take(*names)) is None:
            raise UserError(f"config.json: {names[0]} is missing")
        return value

    def require(self, **only: Any) -> None:
        """Refuses every value but these, which the models here have."""
        for key, value in only.items():
            if (given := self.take(key, default=value)) != value:
                refuse(key, given)

    def refuse_left(self) -> None:
        for key, value in self.left.items():
            if value:  # an option that is off is no other model
                refuse(key, value)


def refuse(key: str, value: Any) -> None:
    """Raises UserError for what no option here stands for."""
    raise UserError(
        f"config.json: {key}={value!r} has no counterpart here, and without it this would be "
        "another model; import one without it"
    )


class Read(NamedTuple):
    """A configuration as ours: the options of `model`, parts, and the parts of each layer."""

    model: dict[str, Any]
    parts: Parts
    layers: list[list[str]] | None = None
    logit_scale: float = 1.0


def network(keys: Keys, *, epsilon: str | None, activation: str, tied: bool) -> dict[str, Any]:
    """Returns the options of `model` that all families have; None: LayerNorm at 1e-5."""
    D, gated = keys.need("hidden_size", "n_embd", "n_embed", "d_model"), activation == "silu"
    kind = keys.take("hidden_act", "activation_function", default=activation)
    known = {"silu": "swiglu", "swish": "swiglu"}
    if not gated:
        known = {"gelu": "gelu", "relu": "relu", "gelu_new": "gelu_tanh"}
        known["gelu_pytorch_tanh"] = "gelu_tanh"
    if kind not in known:
        refuse("hidden_act", kind)
    default = 1e-6 if epsilon == "rms_norm_eps" else 1e-5
    return {
        "d_model": D,
        "n_layers": keys.need("num_hidden_layers", "n_layer", "n_layers"),
        "n_heads": keys.need("num_attention_heads", "n_head", "n_heads"),
        "d_ff": keys.take("intermediate_size", "n_inner", "ffn_dim", default=4 * D),
        "norm_epsilon": keys.take(epsilon, default=default) if epsilon else default,
        "mlp": known[kind],
        "tied_head": keys.take("tie_word_embeddings", default=tied),
    }


def rotary(keys: Keys, *, share: float = 1.0, base: float = 10_000.0) -> Parts:
    """Returns the parts of rope_parameters or, as written before, of rope_scaling."""
    scaling = dict(keys.take("rope_parameters", "rope_scaling", default={}))
    kind = scaling.pop("rope_type", scaling.pop("type", None)) or "default"
    scaling.pop("type", None)
    base = scaling.pop("rope_theta", None) or keys.take("rope_theta", "rotary_emb_base") or base
    given = keys.take("partial_rotary_factor", "rotary_pct", default=share)
    share = scaling.pop("partial_rotary_factor", given)
    T = keys.longest
    original = scaling.pop("original_max_position_embeddings", None) or T
    original = keys.take("original_max_position_embeddings", default=original)
    rope = {"base": float(base), "rotary_percentage": float(share), "layout": "half"}
    parts: Parts = {"rope": rope} if share else {}
    s = scaling.pop("factor", None)
    if kind != "default" and s is None:
        s = T / original
    scaled: dict[str, Any] = {"factor": s, "original_max_position_embeddings": original}
    if kind in ("yarn", "longrope") and share != 1:  # which scales the rotated channels alone
        refuse("partial_rotary_factor", share)
    mscale = scaling.pop("attention_factor", None)
    match kind:
        case "default":
            pass
        case "linear":
            parts["pi"] = {"factor": s}
        case "dynamic":
            parts["dynamic_ntk"] = {**scaled, "original_max_position_embeddings": T}
        case "llama3":
            low, high = scaling.pop("low_freq_factor"), scaling.pop("high_freq_factor")
            parts["llama3"] = {**scaled, "low_freq_factor": low, "high_freq_factor": high}
        case "yarn":
            if not scaling.pop("truncate", True):
                refuse("truncate", False)
            fast, slow = scaling.pop("beta_fast", None) or 32, scaling.pop("beta_slow", None) or 1
            parts["yarn"] = {**scaled, "beta_fast": fast, "beta_slow": slow}
            _expect(mscale, 0.1 * math.log(s) + 1)
        case "longrope":
            long, short = scaling.pop("long_factor"), scaling.pop("short_factor")
            parts["longrope"] = {**scaled, "lambdas": long, "short_lambdas": short}
            _expect(mscale, math.sqrt(1 + math.log(s) / math.log(original)))
        case _:
            refuse("rope_type", kind)
    for key, value in scaling.items():
        if value:
            refuse(f"rope_parameters.{key}", value)
    return parts


def _expect(attention_factor: float | None, ours: float) -> None:
    if attention_factor is not None and not math.isclose(attention_factor, ours, rel_tol=1e-6):
        refuse("attention_factor", attention_factor)


def placed(
    parts: Parts, rotates: Sequence[bool], *, window: int | None, sliding: Sequence[bool], T: int
) -> tuple[Parts, list[list[str]] | None]:
    """Returns the parts with the window of some layers, and the parts of each layer."""
    names, n = list(parts), len(rotates)
    layers = [[*(names if rotates[i] else []), *(["window"] * sliding[i])] for i in range(n)]
    if any(sliding):
        assert window is not None
        parts = {**parts, "window": {"width": window / T, "sinks": 0}}
    return parts, None if all(set(layer) == set(parts) for layer in layers) else layers


def llama(keys: Keys, T: int) -> Read:
    """Returns Llama, or what has its block: Qwen2, Qwen3, Mistral, SmolLM3."""
    kind, smol = keys.kind, keys.kind == "smollm3"
    model = network(keys, epsilon="rms_norm_eps", activation="silu", tied=smol)
    biased, n = keys.take("attention_bias", default=False), model["n_layers"]
    biases = ["qkv", "attention_out"] if biased else ["qkv"] * (kind == "qwen2")
    model |= {
        "n_kv_heads": keys.take("num_key_value_heads", default=8 if kind == "mistral" else None),
        "d_head": keys.take("head_dim", default=128 if kind == "qwen3" else None),
        "norm": "rms",
        "qk_norm": kind == "qwen3",
        "biases": [*biases, *["mlp"] * keys.take("mlp_bias", default=False)],
    }
    parts = rotary(keys, base=2e6 if smol else 1e4)
    every = keys.take("no_rope_layer_interval", default=4 if smol else n + 1)
    rotates = keys.take("no_rope_layers", default=[(i + 1) % every for i in range(n)])
    window = keys.take("sliding_window", default=4096)
    first, types = keys.take("max_window_layers", default=28), keys.take("layer_types")
    if kind == "mistral":
        sliding = [window is not None] * n
    elif not keys.take("use_sliding_window", default=False):
        sliding = [False] * n
    elif types is None:
        sliding = [not rotates[i] if smol else i >= first for i in range(n)]
    else:
        sliding = [name == "sliding_attention" for name in types]
    return Read(model, *placed(parts, rotates[:n], window=window, sliding=sliding, T=T))


def cohere2(keys: Keys, T: int) -> Read:
    """Returns Cohere2: one norm per block, here twice; layers of full attention do not rotate."""
    model = network(keys, epsilon="layer_norm_eps", activation="silu", tied=True)
    biased, n = keys.take("attention_bias", default=False), model["n_layers"]
    model |= {
        "n_kv_heads": keys.take("num_key_value_heads"),
        "biases": ["qkv", "attention_out"] if biased else [],
        "parallel_residual": True,
    }
    keys.take("head_dim")  # which its code computes
    parts = rotary(keys)
    parts["rope"]["layout"] = "interleaved"
    every = keys.take("sliding_window_pattern", default=4)
    of_every = ["full_attention" if (i + 1) % every == 0 else "" for i in range(n)]
    sliding = [kind != "full_attention" for kind in keys.take("layer_types", default=of_every)]
    window, scale = keys.take("sliding_window"), keys.take("logit_scale", default=0.0625)
    read = placed(parts, sliding, window=window or 4096, sliding=sliding, T=T)
    return Read(model, *read, logit_scale=scale)


def neox(keys: Keys, T: int) -> Read:
    """Returns GPT-NeoX, Pythia."""
    model = network(keys, epsilon="layer_norm_eps", activation="gelu", tied=False)
    biased = keys.take("attention_bias", default=True)
    model["biases"] = ALL if biased else ["norm", "mlp"]
    model["parallel_residual"] = keys.take("use_parallel_residual", default=True)
    return Read(model, rotary(keys, share=0.25))


def gpt2(keys: Keys, T: int) -> Read:
    """Returns GPT-2."""
    keys.require(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
    model = network(keys, epsilon="layer_norm_epsilon", activation="gelu_new", tied=True)
    return Read(model | {"biases": ALL}, {"learned_absolute": {"beyond": "na"}})


def opt(keys: Keys, T: int) -> Read:
    """Returns OPT."""
    keys.require(do_layer_norm_before=True, _remove_final_layer_norm=False)
    keys.require(layer_norm_elementwise_affine=True)
    model = network(keys, epsilon=None, activation="relu", tied=True)
    keys.require(word_embed_proj_dim=model["d_model"])
    model["biases"] = ALL if keys.take("enable_bias", default=True) else ["norm"]
    return Read(model, {"learned_absolute": {"beyond": "na"}})


def bloom(keys: Keys, T: int) -> Read:
    """Returns BLOOM."""
    keys.require(apply_residual_connection_post_layernorm=False)
    model = network(keys, epsilon="layer_norm_epsilon", activation="gelu_new", tied=True)
    return Read(model | {"biases": ALL, "embedding_norm": True}, {"alibi": {"beyond": "extend"}})


def mpt(keys: Keys, T: int) -> Read:
    """Returns MPT with ALiBi."""
    attention = Keys(keys.take("attn_config", default={}))
    attention.require(attn_type="multihead_attention", alibi=True, alibi_bias_max=8)
    attention.refuse_left()
    keys.require(no_bias=True, expansion_ratio=4, logit_scale=None)
    keys.take("learned_pos_emb")  # of a model without ALiBi
    model = network(keys, epsilon="layer_norm_epsilon", activation="gelu", tied=True)
    return Read(model, {"alibi": {"beyond": "extend"}})


class Family(NamedTuple):
    """How a configuration is read, and what the weights of each of our modules are called.

    Names in one entry stand side by side in one matrix.
    """

    read: Callable[[Keys, int], Read]
    prefix: str  # of all names but that of the head
    block: str
    names: Mapping[str, str]
    per_head: bool = False  # queries, keys and values of a head side by side
    transposed: bool = False  # matrices are [in, out]
    first_row: int = 0  # of learned positions


def table(text: str) -> dict[str, str]:
    """Returns names by module, of entries "OURS THEIRS [THEIRS ...]" between bars."""
    pairs = (entry.split(maxsplit=1) for entry in text.replace("\n", "|").split("|") if entry)
    return {ours: theirs.strip() for ours, theirs in pairs}


_LLAMA = table("""
embedding embed_tokens | norm norm | head lm_head | attention_norm input_layernorm
qkv self_attn.q_proj self_attn.k_proj self_attn.v_proj | q_norm self_attn.q_norm
k_norm self_attn.k_norm | attention_out self_attn.o_proj | mlp_norm post_attention_layernorm
mlp_in mlp.gate_proj mlp.up_proj | mlp_out mlp.down_proj""")
_COHERE = _LLAMA | table("mlp_norm input_layernorm")
_OPT = _LLAMA | table("""
table embed_positions | norm final_layer_norm | attention_norm self_attn_layer_norm
attention_out self_attn.out_proj | mlp_norm final_layer_norm | mlp_in fc1 | mlp_out fc2""")
_NEOX = table("""
embedding embed_in | norm final_layer_norm | head embed_out | attention_norm input_layernorm
qkv attention.query_key_value | attention_out attention.dense
mlp_norm post_attention_layernorm | mlp_in mlp.dense_h_to_4h | mlp_out mlp.dense_4h_to_h""")
_BLOOM = _NEOX | table("""
embedding word_embeddings | embedding_norm word_embeddings_layernorm | norm ln_f | head lm_head
qkv self_attention.query_key_value | attention_out self_attention.dense""")
_GPT2 = table("""
embedding wte | table wpe | norm ln_f | head lm_head | attention_norm ln_1 | qkv attn.c_attn
attention_out attn.c_proj | mlp_norm ln_2 | mlp_in mlp.c_fc | mlp_out mlp.c_proj""")
_MPT = table("""
embedding wte | norm norm_f | head lm_head | attention_norm norm_1 | qkv attn.Wqkv
attention_out attn.out_proj | mlp_norm norm_2 | mlp_in ffn.up_proj | mlp_out ffn.down_proj""")

_OF_LLAMA = Family(llama, "model.", "layers", _LLAMA)
FAMILIES = {
    **dict.fromkeys(("llama", "qwen2", "qwen3", "mistral", "smollm3"), _OF_LLAMA),
    "cohere2": Family(cohere2, "model.", "layers", _COHERE),
    "gpt_neox": Family(neox, "gpt_neox.", "layers", _NEOX, per_head=True),
    "gpt2": Family(gpt2, "transformer.", "h", _GPT2, transposed=True),
    "opt": Family(opt, "model.decoder.", "layers", _OPT, first_row=2),
    "bloom": Family(bloom, "transformer.", "h", _BLOOM, per_head=True),
    "mpt": Family(mpt, "transformer.", "blocks", _MPT),
}


def read(plain: Mapping[str, Any], length: int | None, *, where: Path) -> tuple[Read, int]:
    """Returns a config.json as ours, and T: the given length, or the trained one.

    Raises UserError for what has no counterpart here.
    """
    kind = plain.get("model_type")
    if kind not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise UserError(f"{where}/config.json: no model_type={kind!r} here; known: {known}")
    try:
        keys = Keys(plain)
        longest = keys.longest
        if (T := length or longest) is None:
            raise UserError("config.json names no trained length; give --length")
        keys.need("vocab_size")
        read_as = FAMILIES[kind].read(keys, T)
        keys.refuse_left()
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    except (TypeError, KeyError, ValueError, IndexError, AttributeError) as error:
        why = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"{where}/config.json does not fit model_type={kind} ({why})") from None
    if "table" in FAMILIES[kind].names and longest != T:
        raise UserError(f"--length={T}: this model has {longest} learned positions; drop it")
    return read_as, T


def written(config: Config, *, vocab_size: int) -> tuple[dict[str, Any], Read] | None:
    """Returns the config.json of a family that computes what a model does, and how it reads.

    None if there is no such family here. Of absolute positions it has those up to T.
    """
    own = _options(config, config.model)
    parts = _typed(config.scheme.parts, config)
    if len(parts) == 1 and parts.keys() <= {"sinusoidal", "learned_absolute"}:
        parts = {"learned_absolute": {"beyond": "na"}}  # whose rows are computed
    for plain in _candidates(config):
        plain |= {"vocab_size": vocab_size, "tie_word_embeddings": config.model.tied_head}
        try:
            read_as, _ = read(plain, config.train.length, where=Path())
        except UserError:
            continue
        layers, theirs = read_as.layers, _typed(read_as.parts, config)
        if layers is not None and not any(layers):
            layers, theirs = None, {}
        given = _options(config, config.model.model_copy(update=read_as.model))
        if (theirs, layers, given) == (parts, config.scheme.layers, own | _biases(own, given)):
            return plain, Read(read_as.model, theirs, layers, read_as.logit_scale)
    return None


def _typed(parts: Parts, config: Config) -> Parts:
    """Returns parts with all arguments; the length that factors refer to is T if none is given."""
    original = "original_max_position_embeddings"
    typed = schemes.typed(parts, plugins=config.plugins)
    for arguments in typed.values():
        if original in arguments and arguments[original] is None:
            arguments[original] = config.train.length
    return typed


def _options(config: Config, model: Model) -> dict[str, Any]:
    """Returns all that decides what a block computes."""
    shape = config.model_copy(update={"model": model}).shape
    left_out = {"name", "init_std", "vocab_size", "d_head", "n_kv_heads"}
    return {**model.model_dump(exclude=left_out), "widths": shape.qkv_widths}


def _biases(own: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Returns the biases of a family that has all those of a model: the others are zeros."""
    enough = {*own["biases"]} <= {*given["biases"]}
    return {"biases": given["biases"] if enough else own["biases"]}


def _candidates(config: Config) -> Iterator[dict[str, Any]]:
    """Yields configurations of families that may fit."""
    model, shape, parts = config.model, config.shape, _typed(config.scheme.parts, config)
    D, H, T = model.d_model, model.n_heads, config.train.length
    act = {"swiglu": "silu", "gelu_tanh": "gelu_new"}.get(model.mlp, model.mlp)
    size = {"hidden_size": D, "num_hidden_layers": model.n_layers, "num_attention_heads": H}
    size |= {"intermediate_size": model.d_ff, "max_position_embeddings": T, "hidden_act": act}
    rope, biased = _rope_parameters(parts), {"attention_bias": "qkv" in model.biases}
    rms: dict[str, Any] = {**size, "num_key_value_heads": shape.n_kv_heads}
    rms |= {"rms_norm_eps": model.norm_epsilon, "head_dim": shape.d_head}
    if "rope" not in parts:
        yield {"model_type": "smollm3", **rms, **biased, "no_rope_layers": [0] * model.n_layers}
    elif rope["partial_rotary_factor"] == 1:
        rms["rope_parameters"] = {k: v for k, v in rope.items() if k != "partial_rotary_factor"}
        yield {"model_type": "llama", **rms, **biased, "mlp_bias": "mlp" in model.biases}
        yield {"model_type": "qwen3", **rms, **biased}
        yield {"model_type": "qwen2", **rms}
    layer = {**size, "layer_norm_eps": model.norm_epsilon, "rope_parameters": rope, **biased}
    yield {"model_type": "gpt_neox", **layer, "use_parallel_residual": model.parallel_residual}
    # Its code makes a bias of this length, at which the model does not end.
    names = {"d_model": D, "n_layers": model.n_layers, "n_heads": H, "max_seq_len": 32 * T}
    yield {"model_type": "mpt", **names, "layer_norm_epsilon": model.norm_epsilon}
    names = {"n_embd": D, "n_layer": model.n_layers, "n_head": H, "n_positions": T}
    names |= {"n_inner": model.d_ff, "activation_function": act}
    yield {"model_type": "gpt2", **names, "layer_norm_epsilon": model.norm_epsilon}
    names = {"hidden_size": D, "n_layer": model.n_layers, "n_head": H, "seq_length": T}
    yield {"model_type": "bloom", **names, "layer_norm_epsilon": model.norm_epsilon}


def _rope_parameters(parts: Parts) -> dict[str, Any]:
    """Returns the parts of RoPE as `rotary` reads them; without RoPE no channel turns."""
    rope = parts.get("rope", {"base": 10_000.0, "rotary_percentage": 0.0})
    plain = {"rope_theta": rope["base"], "partial_rotary_factor": rope["rotary_percentage"]}
    plain["rope_type"] = "default"
    kinds = {"pi": "linear", "dynamic_ntk": "dynamic", "yarn": "yarn", "llama3": "llama3"}
    for name in kinds.keys() & parts.keys():
        plain |= {"rope_type": kinds[name], **parts[name]}
    return plain
