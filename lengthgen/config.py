"""The frozen, validated configuration of a run: types, bounds, derived values and run_id."""

import hashlib
import inspect
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from lengthgen import schemes
from lengthgen.errors import UserError, suggestion

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.]+$")]
PartArguments = dict[str, Any]
Parts = dict[str, PartArguments]
Variants = dict[str, dict[str, PartArguments | None]]


def _off_is_a_word(value: object) -> object:
    """YAML 1.1 reads a bare `off` as false; here it is the name of a mode."""
    return "off" if value is False else value


class Section(BaseModel):
    """A frozen group of keys that refuses unknown ones."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Scheme(Section):
    """The positional scheme: parts by name, where they act, and its training-free variants."""

    name: Name
    parts: Parts
    layers: list[list[str]] | None = None
    variants: Variants = {}


class Model(Section):
    """Width, depth and initialisation of the Transformer."""

    name: Name
    d_model: Positive
    n_layers: Positive
    n_heads: Positive
    d_ff: Positive
    init_std: Annotated[float, Field(gt=0)]

    @property
    def d_head(self) -> int:
        return self.d_model // self.n_heads


class CorpusBase(Section):
    """What all corpora share: tokenizer and window policy."""

    name: Name
    tokenizer: str
    vocab_size: Annotated[int, Field(ge=257)]
    bos: bool
    packed: bool


class StdlibCorpus(CorpusBase):
    source: Literal["stdlib"]


class FilesCorpus(CorpusBase):
    source: Literal["files"]
    path: str | list[str]
    validation_path: str | list[str] | None
    text_column: str


class HubCorpus(CorpusBase):
    source: Literal["hub"]
    repo: str
    subset: str | None
    revision: str | None
    train_split: str
    validation_split: str | None
    text_column: str
    rows: Literal["documents", "wikitext_lines"]
    streaming: bool
    documents: Positive | None
    validation_documents: Positive | None


class SyntheticCorpus(CorpusBase):
    source: Literal["synthetic"]
    documents: Positive
    document_tokens: Positive
    alphabet: Annotated[int, Field(ge=2, le=4096)]
    copy_tokens: Positive
    copies: NonNegative
    seed: NonNegative


Corpus = Annotated[
    StdlibCorpus | FilesCorpus | HubCorpus | SyntheticCorpus, Field(discriminator="source")
]


class Train(Section):
    """Budget, optimizer and schedule."""

    length: Positive
    tokens: Positive
    batch_tokens: Positive
    lr: Annotated[float, Field(gt=0)]
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)]
    warmup_fraction: Annotated[float, Field(ge=0, le=1)]
    schedule: Literal["cosine", "linear"]
    weight_decay: Annotated[float, Field(ge=0)]
    beta1: Annotated[float, Field(ge=0, lt=1)]
    beta2: Annotated[float, Field(ge=0, lt=1)]
    clip: Annotated[float, Field(gt=0)]
    precision: Literal["bf16", "fp32"]
    checkpoint_every: Positive

    @property
    def batch(self) -> int:
        """Windows in one optimizer step, over all processes."""
        return self.batch_tokens // self.length

    @property
    def steps(self) -> int:
        """Optimizer steps: the last one reaches the budget."""
        return -(-self.tokens // (self.batch * self.length))


class Eval(Section):
    """Lengths, protocols and scored targets of the curve."""

    lengths: Annotated[list[Positive], Field(min_length=1)]
    protocols: Annotated[list[Literal["tail", "nonoverlap"]], Field(min_length=1)]
    variants: list[str]
    targets: Positive
    endpoints: Positive
    endpoints_per_document: Positive
    reach: Positive
    seed: NonNegative
    precision: Literal["fp32", "bf16"]


class Runtime(Section):
    """What must not change numbers beyond rounding: where and how the run is carried out."""

    root: Path
    cache: Path | None
    device: Literal["auto", "cpu", "cuda", "mps"]
    threads: Positive | None
    micro_batch: Positive | None
    compile: bool
    log_every: Positive
    wandb: Annotated[Literal["auto", "online", "offline", "off"], BeforeValidator(_off_is_a_word)]
    wandb_project: str
    wandb_entity: str | None

    @property
    def cache_dir(self) -> Path:
        return self.cache if self.cache is not None else self.root / ".cache"


class Config(Section):
    """Everything that decides a run."""

    seed: Annotated[int, Field(ge=0, lt=2**32)]
    plugins: list[Path]
    runtime: Runtime
    scheme: Scheme
    variants: Variants = {}
    model: Model
    corpus: Corpus
    train: Train
    eval: Eval

    @property
    def run_id(self) -> str:
        """The run's name: what was trained, as words and a hash; no clock in it.

        Evaluation and runtime do not enter, nor does what cannot change the weights
        (train.checkpoint_every, training-free variants).
        """
        science = self.model_dump(mode="json", exclude={"runtime", "eval", "plugins", "variants"})
        del science["train"]["checkpoint_every"], science["scheme"]["variants"]
        digest = hashlib.sha256(json.dumps(science, sort_keys=True).encode()).hexdigest()[:8]
        scheme, model, corpus = self.scheme.name, self.model.name, self.corpus.name
        return f"{scheme}-{model}-{corpus}-s{self.seed}-{digest}"

    @property
    def run_dir(self) -> Path:
        return self.runtime.root / self.run_id

    @property
    def shape(self) -> schemes.Shape:
        """What parts may know of the model."""
        return schemes.Shape(
            d_model=self.model.d_model,
            n_layers=self.model.n_layers,
            n_heads=self.model.n_heads,
            d_head=self.model.d_head,
            train_length=self.train.length,
            init_std=self.model.init_std,
        )

    def variant(self, name: str) -> Parts:
        """Returns the scheme's parts with the variants of "a+b" merged over them in that order.

        A variant of the scheme's own comes before one of that name that any scheme may take.
        """
        merged, known = dict(self.scheme.parts), {**self.variants, **self.scheme.variants}
        for one in name.split("+"):
            if one not in known:
                raise UserError(
                    f"eval.variants: scheme {self.scheme.name} has no variant {one!r}; "
                    f"{suggestion(one, known)}"
                )
            for part, arguments in known[one].items():
                if arguments is None:
                    merged.pop(part, None)
                else:
                    merged[part] = {**merged.get(part, {}), **arguments}
        return merged


def from_plain(plain: Mapping[str, Any]) -> Config:
    """Builds the configuration from composed YAML.

    Raises UserError with the dotted key of the first mistake: unknown key, wrong type, value out
    of bounds, or keys that contradict each other.
    """
    try:
        config = Config.model_validate(plain)
    except ValidationError as error:
        raise UserError(_one_line(error)) from None
    schemes.load_plugins(config.plugins)
    _check(config)
    return config


def _check(config: Config) -> None:
    """Cross-field checks; parts are built without storage, so that their own checks run too."""
    model, train, evaluation = config.model, config.train, config.eval
    if model.d_model % model.n_heads:
        raise UserError(
            f"model.d_model={model.d_model} is not divisible by model.n_heads={model.n_heads}; "
            f"try model.d_model={model.n_heads * max(1, round(model.d_model / model.n_heads))}"
        )
    if train.batch_tokens % train.length:
        near = train.length * max(1, round(train.batch_tokens / train.length))
        raise UserError(
            f"train.batch_tokens={train.batch_tokens} is not a multiple of "
            f"train.length={train.length}; try train.batch_tokens={near}"
        )
    if "tail" in evaluation.protocols and min(evaluation.lengths) < evaluation.targets:
        raise UserError(
            f"eval.lengths: {min(evaluation.lengths)} is shorter than the "
            f"eval.targets={evaluation.targets} scored tokens of protocol tail; "
            f"drop it or set eval.targets={min(evaluation.lengths)}"
        )
    trained = _parameters(config, config.scheme.parts, "scheme.parts")
    asked = {name: f"eval.variants.{name}" for name in evaluation.variants}
    for name, where in {
        **{n: f"scheme.variants.{n}" for n in config.scheme.variants},
        **asked,
    }.items():
        added = _parameters(config, config.variant(name), where) - trained
        if added:
            raise UserError(
                f"{where}: a variant is training-free, but this one adds the parameter "
                f"{min(added)}; make it a scheme of its own"
            )


def _parameters(config: Config, parts: Parts, where: str) -> set[str]:
    """Returns the names and shapes of the parameters of `parts`, built on the meta device."""
    for name, arguments in parts.items():
        _check_arguments(schemes.part_class(name, where=where), arguments, f"{where}.{name}")
    built = schemes.build_meta(parts, layers=config.scheme.layers, shape=config.shape, where=where)
    return {f"{name} {tuple(p.shape)}" for name, p in built.named_parameters()}


def _check_arguments(part: type[schemes.Part], arguments: PartArguments, where: str) -> None:
    """Holds a part's arguments against its schema, the keyword-only signature of its class."""
    hints = get_type_hints(part.__init__)
    fields: dict[str, Any] = {
        name: (hints[name], ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in inspect.signature(part.__init__).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    schema = create_model("Arguments", __base__=Section, **fields)
    try:
        schema.model_validate(arguments)
    except ValidationError as error:
        raise UserError(_one_line(error, prefix=f"{where}.", known=fields)) from None


_WORDS = {
    "int_parsing": "is not an integer",
    "int_type": "is not an integer",
    "int_from_float": "is not an integer",
    "float_parsing": "is not a number",
    "float_type": "is not a number",
    "bool_parsing": "is not true or false",
    "bool_type": "is not true or false",
    "string_type": "is not text",
    "list_type": "is not a list",
    "dict_type": "is not a mapping",
}


def _one_line(
    error: ValidationError, *, prefix: str = "", known: Iterable[str] | None = None
) -> str:
    """Says the first error of pydantic's list with its dotted key and the offending value."""
    errors = error.errors(include_url=False, include_context=True)
    first = min(errors, key=lambda e: e["type"] != "extra_forbidden")
    tags = (
        {"stdlib", "files", "hub", "synthetic"} if first["loc"][:1] == ("corpus",) else set[str]()
    )
    key = ".".join(str(step) for step in first["loc"] if step not in tags)
    where = prefix + key
    kind, value, about = first["type"], first["input"], first.get("ctx", {})
    accepted = known_keys() if known is None else [prefix + name for name in known]
    if kind == "extra_forbidden":
        return f"{where}: unknown key; {suggestion(where, accepted)}"
    if kind == "missing":
        return f"{where}: a value is required; give {where}=VALUE"
    if kind == "union_tag_invalid":
        return f"{where}.source: {about['tag']!r} is not one of {about['expected_tags']}"
    if kind == "literal_error":
        return f"{where}: {value!r} is not one of {about['expected']}"
    if kind == "string_pattern_mismatch":
        return f"{where}: {value!r} may hold letters, digits, '_' and '.' only"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    said = _WORDS.get(kind) or re.sub(r"^Input should", "should", first["msg"])
    return f"{where}: {value!r} {said}{more}"


def known_keys() -> list[str]:
    """Returns every dotted key of the schema that a user may set."""
    return sorted({key for _, key in _walk(Config, "")})


def _walk(model: type[BaseModel], prefix: str) -> list[tuple[type[BaseModel], str]]:
    found: list[tuple[type[BaseModel], str]] = []
    for name, info in model.model_fields.items():
        annotation: Any = info.annotation
        nested = [
            kind
            for kind in (annotation, *get_args(annotation))
            if isinstance(kind, type) and issubclass(kind, Section)
        ]
        if not nested:
            found.append((model, prefix + name))
        for kind in nested:
            found += _walk(kind, f"{prefix}{name}.")
    return found


def to_plain(config: Config) -> dict[str, Any]:
    """Returns the configuration as plain YAML values; from_plain gives it back unchanged."""
    return config.model_dump(mode="json")
