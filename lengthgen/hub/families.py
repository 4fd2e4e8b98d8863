"""Configurations of pretrained models as ours, by the tables of families.yaml, and back.

One table reads a config.json and writes it. What of a config.json is neither read, nor as its class
of transformers has it, nor known to leave logits alone is refused by name. A family fits a model
here if what is written reads as it.
"""

import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn

from pydantic import BeforeValidator, Field

from lengthgen import schemes
from lengthgen.config import conf
from lengthgen.config.schema import Config, Model, Parts
from lengthgen.config.sections import Section, validate
from lengthgen.errors import UserError, first_line

EMPTY = "nope"  # the scheme without parts
INSTALL = "pip install 'lengthgen[transformers]'"
FULL, SLIDING = "full_attention", "sliding_attention"
ORIGINAL = "original_max_position_embeddings"
BIASES = ["norm", "qkv", "attention_out", "mlp"]
WRITTEN = ("llama", "qwen3", "qwen2", "smollm3", "gpt_neox", "mpt", "gpt2", "bloom")
OWN = "lengthgen"  # the model_type of what no family of transformers computes
NESTED = ("rope_scaling", "rope_parameters", "attn_config")
NULL_IS_A_VALUE = ("sliding_window", "num_key_value_heads", "head_dim")  # elsewhere: the default


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


Several = Annotated[list[Any], BeforeValidator(_several)]


class Family(Section):
    """What the keys of a config.json and the weights are called, by our options and modules."""

    keys: dict[str, str]  # alternatives, of which the first is written
    names: dict[str, str]  # of weights; several stand side by side in one matrix
    prefix: str  # of all names but that of the head
    block: str
    parts: Parts
    instead: dict[str, Parts] = Field(default={})  # parts where a key is true
    model: dict[str, Any] = Field(default={})  # options where config.json says nothing
    biases: list[str] = Field(default=[])
    switches: dict[str, list[str]] = Field(default={})  # of biases
    only: dict[str, Several] = Field(default={})  # keys of which others than these are refused
    ignored: list[str] = Field(default=[])  # keys that decide nothing here
    partial: bool = False  # a share of the channels may rotate
    rotary: list[str] = Field(default=["rope_theta", "partial_rotary_factor"])  # alternatives too
    scales: dict[str, tuple[str, float, float]] = Field(default={})  # key: modules, power, default
    slides: Literal["all", "typed", "asked"] | None = None  # which layers have a window
    window: int | None = None  # where config.json says nothing
    rotates: Literal["all", "sliding", "listed"] = "all"  # which layers have RoPE
    local_base: float | None = None  # of RoPE in layers with a window
    grouped: bool = False  # of each head of keys: its queries, keys and values side by side
    transposed: bool = False  # matrices are [in, out]
    first_row: int = 0  # of learned positions
    ends: bool = False  # transformers takes no text beyond T
    unit_offset: bool = False  # weights of norms are less by 1
    scales_embedding: bool = False  # by sqrt(d_model)


class FamilyTable(Section):
    """families.yaml: keys that change no logit of a trained model, and the families by name.

    A name is a model_type, and what tells it from others of that type.
    """

    ignored: list[str]  # regular expressions
    activations: dict[str, tuple[str | None, str | None]]  # of a network without gates, and with
    rope_types: dict[str, tuple[str, dict[str, str]]]  # our part, and its arguments by ours
    families: dict[str, Family]


@cache
def table() -> FamilyTable:
    """Returns families.yaml."""
    return validate(FamilyTable, conf.read_yaml(Path(__file__).with_suffix(".yaml")))


def families(kind: str) -> list[Family]:
    """Returns the families of a model_type, the usual one first."""
    return [family for name, family in table().families.items() if name.split()[0] == kind]


def is_ignored(key: str, family: Family | None = None) -> bool:
    """True for a key that changes no logit, unless a family takes it."""
    known = [*table().ignored, *(family.ignored if family else [])]
    return any(re.fullmatch(name, key) for name in known)


class Keys:
    """The keys of a config.json, and those of the mappings in it, that nothing has taken yet.

    `usual` are those of its class of transformers, which has read it; None: nothing has. A key that
    stands twice is then refused.
    """

    def __init__(self, plain: Mapping[str, Any], usual: Mapping[str, Any] | None) -> None:
        self.is_read = usual is not None
        self.left, self.usual = self._flat(plain), {} if usual is None else self._flat(usual)

    def _flat(self, plain: Mapping[str, Any]) -> dict[str, Any]:
        flat = {key: value for key, value in plain.items() if key not in NESTED}
        for inner in (plain.get(key) or {} for key in NESTED):
            for key in inner.keys() & flat.keys():
                self._same(f"{key} at the top and below", [flat[key], inner[key]])
            flat |= inner
        return flat

    def _same(self, names: str, values: list[Any]) -> None:
        if not self.is_read and any(value != values[0] for value in values):
            several = " and ".join(map(repr, values))
            raise UserError(
                f"config.json: {names}: {several}; transformers knows which counts; {INSTALL}"
            )

    def take(self, names: str, default: Any = None) -> Any:
        """Returns the value of the first of several names that is there and not null."""
        values = [self.left.pop(name) for name in names.split() if name in self.left]
        values = [x for x in values if x is not None or {*names.split()} & {*NULL_IS_A_VALUE}]
        self._same(names, values)
        return values[0] if values else default

    def of_class(self, name: str) -> Any:
        """Returns what an older file has not, and its class makes."""
        if (value := self.take(name)) is None:
            raise UserError(f"config.json: {name} is missing, which transformers makes; {INSTALL}")
        return value

    def require(self, name: str, *only: Any) -> None:
        """Refuses every value but these."""
        if (value := self.left.pop(name, only[0])) not in only:
            refuse(name, value)

    def refuse_left(self, family: Family) -> None:
        """Refuses what nothing has taken, unless it is as its class has it, or ignored."""
        for key, value in self.left.items():
            is_usual = key in self.usual and self.usual[key] == value
            if not is_usual and not is_ignored(key, family):
                refuse(key, value)


def refuse(key: str, value: Any) -> NoReturn:
    """Raises UserError for what no option here stands for."""
    raise UserError(
        f"config.json: {key}={value!r} has no counterpart here, and without it this would be "
        "another model; import one without it"
    )


class Read(NamedTuple):
    """A configuration as ours: model, parts, and the parts of each layer."""

    family: Family
    model: Model
    parts: Parts
    layers: list[list[str]] | None
    T: int
    scales: dict[str, float]  # factors of weights by module; q: of queries within qkv


def kind_of(plain: Mapping[str, Any], *, where: Path) -> str:
    """Returns the model_type of a config.json. Raises UserError for one that is not read here."""
    kind = plain.get("model_type")
    if not isinstance(kind, str) or not families(kind):
        known = ", ".join(dict.fromkeys(name.split()[0] for name in table().families))
        if kind == OWN:
            known += "; lengthgen.hub.exported.load_exported reads lengthgen's own layout"
        raise UserError(f"{where}/config.json: no model_type={kind!r} here; known: {known}")
    if isinstance(n := plain.get("num_hidden_layers"), int) and n > 1024:  # of which lists are made
        raise UserError(f"{where}/config.json: num_hidden_layers={n} is above 1024")
    return kind


def read_config(
    plain: Mapping[str, Any],
    length: int | None,
    *,
    where: Path,
    usual: Mapping[str, Any] | None = None,
) -> Read:
    """Returns a config.json as ours; T is the given length, or the trained one.

    `usual`: the values of its class of transformers, if that has read it. Raises UserError for what
    has no counterpart here.
    """
    kind = kind_of(plain, where=where)
    try:
        keys = Keys(plain, usual)
        several = families(kind)
        fitting = (
            f for f in several if all(keys.left.get(k, v[0]) in v for k, v in f.only.items())
        )
        return _read(keys, next(fitting, several[0]), length)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    except Exception as error:  # of values that no check foresees
        why = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"{where}/config.json does not fit model_type={kind} ({why})") from None


def _read(keys: Keys, family: Family, length: int | None) -> Read:
    for key, value in family.only.items():
        keys.require(key, *value)
    usual = {"norm_epsilon": 1e-5, "mlp": "gelu", "tied_head": True, **family.model}
    given = {option: keys.take(names, usual.get(option)) for option, names in family.keys.items()}
    model: dict[str, Any] = {**usual, **given}
    for name in ("d_model", "n_layers", "n_heads", "vocab_size"):
        if model[name] is None:
            raise UserError(f"config.json: {family.keys[name].split()[0]} is missing")
    keys.require("word_embed_proj_dim", model["d_model"])  # of OPT
    d_head = model.get("d_head") or model["d_model"] // model["n_heads"]
    keys.require("head_dim", d_head)  # where no key of the family is called so
    model["d_ff"] = model.get("d_ff") or 4 * model["d_model"]
    activation = model["mlp"]
    has_gates = "gate" in family.names["mlp_in"]
    model["mlp"] = table().activations.get(activation, (None, None))[has_gates]
    if model["mlp"] is None:
        refuse(family.keys.get("mlp", "hidden_act"), activation)
    biases = {*family.biases}
    for key, switched in family.switches.items():
        on = keys.take(key, {*switched} <= biases)
        if not isinstance(on, bool):
            refuse(key, on)
        biases = biases | {*switched} if on else biases - {*switched}
    model["biases"] = [name for name in BIASES if name in biases]
    if family.scales_embedding:
        model["embedding_scale"] = model["d_model"] ** 0.5
    scales: dict[str, float] = {}
    for key, (modules, power, default) in family.scales.items():
        factor = keys.take(key, default) ** power
        for name in modules.split():  # attention divides by sqrt(d_head)
            scales[name] = factor * d_head**0.5 if name in ("q", "q_norm") else factor
    longest = model.pop("length")
    if (T := length or longest) is None:
        raise UserError("config.json names no trained length; give --length")
    for n in (T, longest):
        if n is not None and (type(n) is not int or not 1 < n <= 2**24):
            raise UserError(
                f"config.json: {family.keys['length'].split()[0]}={n!r} is no trained length"
            )
    if "table" in family.names and longest != T:
        raise UserError(f"--length={T}: this model has {longest} learned positions; drop it")
    named = {"name": "imported", "arch": "decoder", "init_std": 0.02, **model}
    typed = validate(Model, named, where="config.json: ", strict=True)
    parts, layers = family.parts, None
    for key, others in family.instead.items():
        parts = others if keys.take(key) else parts
    if "rope" in parts:
        parts = _rope(keys, family, longest or T, T)
        parts, layers = _by_layer(keys, family, parts, n=typed.n_layers, T=T)
    keys.refuse_left(family)
    return Read(family, typed, parts, layers, T, scales)


def _rope(keys: Keys, family: Family, longest: int, T: int) -> Parts:
    """Returns RoPE and the part that scales it."""
    usual = family.parts["rope"]
    if family.local_base is not None:
        keys.left |= keys.take(FULL, {})
    kind = keys.take("rope_type type", "default")
    base_keys, share_keys = family.rotary
    base = float(keys.take(base_keys, usual["base"]))
    share = keys.take(share_keys, usual["rotary_percentage"])
    if share != 1 and (not family.partial or kind in ("yarn", "longrope")):
        refuse("partial_rotary_factor", share)  # yarn and longrope: only rotated channels grow
    parts: Parts = {}
    if share:
        parts["rope"] = {**usual, "base": base, "rotary_percentage": float(share)}
    original = keys.take(ORIGINAL, longest)
    if kind == "default":
        return parts
    if kind not in table().rope_types:
        refuse("rope_type", kind)
    s = keys.take("factor", longest / original if kind == "longrope" else None)
    if not s:
        refuse("factor", s)
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
    part, names = table().rope_types[kind]
    parts[part] = {ours: keys.take(name, usual.get(ours)) for ours, name in names.items()}
    return parts


def _by_layer(
    keys: Keys, family: Family, parts: Parts, *, n: int, T: int
) -> tuple[Parts, list[list[str]] | None]:
    """Returns the parts with the window of some layers, and the parts of each layer."""
    if family.slides is None:
        return parts, None
    asked = family.slides != "asked" or keys.take("use_sliding_window", False)
    window = keys.take("sliding_window", family.window)
    types = [FULL if asked and window is None else SLIDING] * n
    if family.slides != "all":
        types = keys.of_class("layer_types") if asked else keys.take("layer_types", [FULL] * n)
    if len(types) != n or {*types} - {FULL, SLIDING}:
        refuse("layer_types", types)
    sliding = [kind == SLIDING for kind in types]
    if any(sliding) and not (asked and window):
        refuse("sliding_window", window)
    rotates = sliding if family.rotates == "sliding" else [True] * n
    if family.rotates == "listed":
        rotates = keys.of_class("no_rope_layers")
    full_alone = set[str]()
    if family.local_base is not None:  # what scales angles does so in layers of full attention
        full_alone = parts.keys() - {"rope"}
        local = {"rope_theta": keys.take("rope_local_base_freq", family.local_base)}
        local |= keys.take(SLIDING, {})
        if local.pop("rope_type", "default") != "default" or len(local) > 1:
            refuse(f"rope_parameters.{SLIDING}", local)
        bases = [float(local["rope_theta"]) if s else parts["rope"]["base"] for s in sliding]
        parts = {**parts, "rope": {**parts["rope"], "base": bases}}
    layers = [
        [name for name in parts if rotates[i] and not (sliding[i] and name in full_alone)]
        + ["window"] * sliding[i]
        for i in range(n)
    ]
    if not any(layers):
        return {}, None
    if window and any(sliding):
        parts = {**parts, "window": {"width": window / T, "sinks": 0}}
    parts = {name: parts[name] for name in parts if any(name in layer for layer in layers)}
    return parts, None if all({*layer} == parts.keys() for layer in layers) else layers


def config_json_of(config: Config, *, vocab_size: int) -> tuple[dict[str, Any], Read] | None:
    """Returns the config.json of a family that computes what a model does, and how it reads.

    None if there is no such family here.
    """
    options = _options(config, config.model)
    parts = _comparable(config.scheme.parts, config)
    for kind in WRITTEN:
        plain = _written(kind, config, parts, vocab_size)
        try:
            read_as = read_config(plain, config.train.length, where=Path())
        except UserError:
            continue
        design = schemes.Design(shape=config.shape).with_parts(read_as.parts)
        layers, theirs = read_as.layers, _comparable(design.parts, config)
        given = _options(config, read_as.model)
        enough = {*options["biases"]} <= {*given["biases"]}  # the others are zeros
        wanted = options | ({"biases": given["biases"]} if enough else {})
        if (theirs, layers, given) == (parts, config.scheme.layers, wanted):
            return plain, read_as._replace(parts=theirs)
    return None


def _written(kind: str, config: Config, parts: Parts, vocab_size: int) -> dict[str, Any]:
    """Returns the config.json of a family, as near to a model as it comes."""
    family, shape, model = families(kind)[0], config.shape, config.model.model_dump()
    model |= {"length": config.train.length, "vocab_size": vocab_size}
    model |= {"n_kv_heads": shape.n_kv_heads, "d_head": shape.d_head}
    model["mlp"] = next(k for k, ours in table().activations.items() if config.model.mlp in ours)
    plain = {names.split()[0]: model[option] for option, names in family.keys.items()}
    plain |= {key: switched[0] in model["biases"] for key, switched in family.switches.items()}
    if "rope" in family.parts:
        usual = family.parts["rope"]
        rotary = parts.get("rope", {**usual, "rotary_percentage": 0.0})
        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": rotary["base"]}
        if usual["rotary_percentage"] != 1:
            rope["partial_rotary_factor"] = rotary["rotary_percentage"]
        for rope_type, (part, names) in table().rope_types.items():
            if part in parts:
                if rope_type in ("dynamic", "linear"):  # others are T, or follow from it
                    names = {"factor": "factor"}
                arguments = {name: parts[part][ours] for ours, name in names.items()}
                if None not in arguments.values():
                    rope |= {"rope_type": rope_type, **arguments}
        plain["rope_parameters"] = rope
    if kind == "smollm3":
        plain["no_rope_layers"] = [int("rope" in parts)] * shape.n_layers
    if kind == "mpt":  # whose code makes a bias of this length, at which the model does not end
        plain["max_seq_len"] = 32 * config.train.length
    return {"model_type": kind, **plain}


def _comparable(parts: Parts, config: Config) -> Parts:
    """Returns parts whose factors refer to T if no length is given."""
    typed = {name: {**arguments} for name, arguments in parts.items()}
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
