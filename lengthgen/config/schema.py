"""The frozen, validated configuration of a run: types, bounds, derived values and run_id."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    PlainSerializer,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from lengthgen.config import compose, precision, tuned_rates
from lengthgen.config.plugins import Plugin
from lengthgen.config.sections import Integer, Number, Section, Text, one_line
from lengthgen.config.tuned_rates import Tuned
from lengthgen.errors import UserError, suggestion


def _refuse_other_than_json(arguments: dict[str, Any]) -> dict[str, Any]:
    """Refuses what no run could be named by; the class itself checks types and bounds."""
    try:
        json.dumps(arguments)
    except (TypeError, ValueError, RecursionError):
        raise PydanticCustomError("unwritable", "cannot be written as JSON") from None
    return arguments


Positive = Annotated[Integer, Field(gt=0)]
MOST_IDS = 2**20  # of a vocabulary; the largest published ones have a quarter of that
NonNegative = Annotated[Integer, Field(ge=0)]
# Folders are named by these: none may lead elsewhere, or be hidden.
NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.]*$"
Name = Annotated[str, Field(pattern=NAME, max_length=64)]
RunId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=256)]
Sample = Annotated[Integer, Field(gt=0, le=10**6)]  # each takes a forward pass or more
Word = Annotated[Text, Field(min_length=1)]
Paths = Word | list[Word]
PartArguments = Annotated[dict[str, Any], AfterValidator(_refuse_other_than_json)]
Parts = dict[str, PartArguments]
HeldOut = Literal["validation", "tuning"]
Variants = dict[str, dict[str, PartArguments | None]]
_word, _integer = TypeAdapter[str](Word), TypeAdapter[int](Positive)


def _off_as_text(value: object) -> object:
    """YAML 1.1 reads a bare `off` as false; here it is the name of a mode."""
    return "off" if value is False else value


def _refuse_doubled(values: list[Any]) -> list[Any]:
    for value in values:
        if values.count(value) > 1:
            about = {"value": value}
            raise PydanticCustomError("doubled", "names {value} twice; name each once", about)
    return values


def _read_path(value: object) -> object:
    """Refuses what Path would take for the working directory, or cannot name."""
    return _word.validate_python(value) if isinstance(value, str) else value


def _read_plugin(value: object) -> object:
    return Plugin.read(Path(value)) if isinstance(value, str | Path) else value


def _unique(read: list[Plugin]) -> list[Plugin]:
    """Sorts by content: neither order nor file names of plugins could change a number."""
    return sorted(set(read), key=lambda plugin: plugin.digest)


# A path in YAML; the file is read when the configuration is built, and never again.
PluginFile = Annotated[
    Plugin,
    BeforeValidator(_read_plugin),
    PlainSerializer(lambda plugin: str(plugin.path), return_type=str),
]


Folder = Annotated[Path, BeforeValidator(_read_path)]
Distinct = AfterValidator(_refuse_doubled)


@dataclass(frozen=True, kw_only=True)
class ModelDims:
    """What a part may know of the model that it is built for."""

    d_model: int
    n_layers: int
    n_heads: int
    d_head: int
    train_length: int
    init_std: float
    causal: bool = True  # no query sees a later key; False in an encoder


class SchemeSpec(Section):
    """The positional scheme: parts by name, where they act, and its training-free variants."""

    name: Name
    parts: Parts
    layers: list[Annotated[list[str], Distinct]] | None = None
    lr_ratio: Annotated[Number, Field(gt=0)] = 1.0
    variants: Variants = Field(default={})


class Model(Section):
    """Architecture, width, depth and initialisation of the Transformer."""

    name: Name
    # Left out at its default: so runs of before this key keep their names.
    arch: Literal["decoder", "encoder", "encoder_decoder"] = Field(
        default="decoder", exclude_if=lambda arch: arch == "decoder"
    )
    d_model: Annotated[Integer, Field(gt=0, le=2**20)]
    n_layers: Annotated[Integer, Field(gt=0, le=1024)]
    n_heads: Positive
    d_ff: Annotated[Integer, Field(gt=0, le=2**24)]
    init_std: Annotated[Number, Field(gt=0)]

    @property
    def d_head(self) -> int:
        return self.d_model // self.n_heads

    @property
    def label(self) -> str:
        """The name in runs and tables, where two architectures are two models."""
        return self.name if self.arch == "decoder" else f"{self.name}_{self.arch}"


class CorpusBase(Section):
    """What all corpora share: tokenizer and window policy."""

    name: Name
    tokenizer: Word
    vocab_size: Annotated[Integer, Field(ge=257, le=MOST_IDS)]
    bos: bool
    packed: bool
    # Left out at its default: so runs and token caches of before this key keep their names.
    held_out: HeldOut = Field(default="validation", exclude_if=lambda split: split == "validation")

    _plugins: tuple[Plugin, ...] = PrivateAttr(default=())

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """The plugins of the configuration, which may define its task or its source."""
        return self._plugins

    def with_plugins(self, plugins: Sequence[Plugin]) -> Self:
        """Returns a copy that knows the plugins of the configuration."""
        copied = self.model_copy()
        copied._plugins = tuple(plugins)
        return copied


class StdlibCorpus(CorpusBase):
    source: Literal["stdlib"]


class PythonCorpus(CorpusBase):
    source: Literal["python"]


class FilesCorpus(CorpusBase):
    source: Literal["files"]
    path: Paths
    validation_path: Paths | None
    text_column: Word


class HubCorpus(CorpusBase):
    source: Literal["hub"]
    repo: Word
    subset: Word | None
    revision: Word | None
    train_split: Word
    validation_split: Word | None
    text_column: Word
    rows: Literal["documents", "wikitext_lines"]
    streaming: bool
    documents: Positive | None
    validation_documents: Positive | None


class SyntheticCorpus(CorpusBase):
    source: Literal["synthetic"]
    documents: Positive
    document_tokens: Positive
    alphabet: Annotated[Integer, Field(ge=2, le=4096)]
    copy_tokens: Positive
    copies: NonNegative
    seed: NonNegative


class CustomCorpus(CorpusBase):
    """A source by the name of its class, in data/sources/ or a plugin, and its arguments."""

    source: Literal["custom"]
    kind: Word
    arguments: PartArguments


class TaskSpec(Section):
    """A rule of tasks/ or a plugin, and how many examples of it are made; conf/task/*.yaml."""

    name: Name
    kind: Word
    arguments: PartArguments
    length: Annotated[Integer, Field(gt=0, le=2**17)]  # L, the longest in training
    longest: Annotated[Integer, Field(gt=0, le=2**17)]  # in the tests
    examples: Positive  # in training
    examples_per_length: Positive  # in the tests
    seed: NonNegative


class TaskCorpus(CorpusBase):
    """Examples of a task, each a document; a token per character."""

    source: Literal["task"]
    task: TaskSpec


Corpus = Annotated[
    StdlibCorpus
    | PythonCorpus
    | FilesCorpus
    | HubCorpus
    | SyntheticCorpus
    | CustomCorpus
    | TaskCorpus,
    Field(discriminator="source"),
]


class InitFrom(Section):
    """The trained run that a run takes its weights from."""

    run: RunId
    recipe: RunId  # that of its configuration: seeds of one recipe begin seeds of one series
    weights: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # sha256
    path: Word  # the run directory; a run that was trained does not read it any more


class Train(Section):
    """Budget, optimizer and schedule."""

    length: Positive
    tokens: Positive
    batch_tokens: Positive
    lr: Annotated[Number, Field(gt=0)]
    scheme_lr_ratio: Annotated[Number, Field(gt=0)] | None = None
    min_lr_ratio: Annotated[Number, Field(ge=0, le=1)]
    warmup_fraction: Annotated[Number, Field(ge=0, le=1)]
    schedule: Literal["cosine", "linear"]
    weight_decay: Annotated[Number, Field(ge=0)]
    beta1: Annotated[Number, Field(ge=0, lt=1)]
    beta2: Annotated[Number, Field(ge=0, lt=1)]
    clip: Annotated[Number, Field(gt=0)]
    precision: Literal["auto", "bf16", "fp32"]  # `from_plain` puts one of the others for auto
    checkpoint_every: Positive
    # Where the rates come from.
    tuned: Tuned | None = Field(default=None, exclude_if=lambda tuned: tuned is None)
    # A run; `pipeline.validate` puts what identifies its weights in place of the folder.
    init_from: InitFrom | Folder | None = Field(default=None, exclude_if=lambda init: init is None)

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

    lengths: Annotated[list[Positive], Field(min_length=1), Distinct]
    protocols: Annotated[list[Word], Field(min_length=1), Distinct]
    variants: Annotated[list[Word], Distinct]
    reference_variants: Annotated[list[Word], Distinct]
    targets: Positive
    endpoints: Sample
    endpoints_per_document: Positive
    deduplicate: bool
    sliding_documents: Sample
    exact_targets: Sample
    reach: Positive
    blocks: Sample
    seed: NonNegative
    precision: Literal["fp32", "bf16"]
    # Left out at its default: so evaluations of before this key keep their names.
    decode: Annotated[Integer, Field(ge=0, le=10**6)] = Field(
        default=0, exclude_if=lambda decode: decode == 0
    )


class Runtime(Section):
    """What must not change numbers beyond rounding: where and how the run is carried out."""

    root: Folder
    cache: Folder | None
    device: Literal["auto", "cpu", "cuda", "mps"]
    threads: Annotated[Integer, Field(gt=0, le=1024)] | None
    micro_batch: Positive | None
    compile: bool | None
    activation_checkpointing: bool
    log_every: Positive
    wandb: Annotated[Literal["auto", "online", "offline", "off"], BeforeValidator(_off_as_text)]
    wandb_project: Word
    wandb_entity: Word | None

    @property
    def cache_dir(self) -> Path:
        return self.cache if self.cache is not None else self.root / ".cache"


class Config(Section):
    """Everything that decides a run."""

    seed: Annotated[Integer, Field(ge=0, lt=2**32)]
    plugins: Annotated[list[PluginFile], AfterValidator(_unique)]
    runtime: Runtime
    scheme: SchemeSpec
    variants: Variants = Field(default={})
    model: Model
    corpus: Corpus
    train: Train
    eval: Eval

    @property
    def run_id(self) -> str:
        """The run's name: what was trained, as names and a hash; no clock in it.

        Evaluation and runtime do not enter, nor does what cannot change the weights
        (train.checkpoint_every, train.tuned, training-free variants). Plugins enter by their
        content. A scheme_lr_ratio of 1 is left out: runs older than this setting keep their names.
        """
        science = self._science()
        if isinstance(self.train.init_from, InitFrom):
            science["train"]["init_from"] = self.train.init_from.weights
        return f"{self._names}-s{self.seed}-{_digest(science)}"

    @property
    def recipe(self) -> str:
        """What seeds of one training share: run_id without the seed."""
        science = self._science()
        del science["seed"]
        if isinstance(self.train.init_from, InitFrom):
            science["train"]["init_from"] = self.train.init_from.recipe
        return f"{self._names}-{_digest(science)}"

    @property
    def _names(self) -> str:
        return f"{self.scheme.name}-{self.model.label}-{self.corpus.name}"

    def _science(self) -> dict[str, Any]:
        """Returns what decides the weights, as plain values."""
        science = self.model_dump(mode="json", exclude={"runtime", "eval", "plugins", "variants"})
        del science["train"]["checkpoint_every"], science["scheme"]["variants"]
        science["train"].pop("tuned", None)
        del science["train"]["scheme_lr_ratio"], science["scheme"]["lr_ratio"]
        if self.scheme_lr_ratio != 1:
            science["train"]["scheme_lr_ratio"] = self.scheme_lr_ratio
        if self.plugins:
            science["plugins"] = [plugin.digest for plugin in self.plugins]
        return science

    @property
    def evaluation_id(self) -> str:
        """8 hexadecimal digits that name what is measured of the trained run."""
        measured = [self.eval.model_dump(mode="json"), self.variants, self.scheme.variants]
        return _digest(measured)

    @property
    def scheme_lr_ratio(self) -> float:
        """The learning rate of the scheme's parameters over that of the network."""
        ratio = self.train.scheme_lr_ratio
        return self.scheme.lr_ratio if ratio is None else ratio

    @property
    def run_dir(self) -> Path:
        return self.runtime.root / self.run_id

    @property
    def shape(self) -> ModelDims:
        """What parts may know of the model."""
        return ModelDims(
            d_model=self.model.d_model,
            n_layers=self.model.n_layers,
            n_heads=self.model.n_heads,
            d_head=self.model.d_head,
            train_length=self.train.length,
            init_std=self.model.init_std,
            causal=self.model.arch != "encoder",
        )

    @property
    def encoder_shape(self) -> ModelDims | None:
        """What parts may know of an encoder next to a decoder; None if there is none."""
        has_both = self.model.arch == "encoder_decoder"
        return replace(self.shape, causal=False) if has_both else None

    def refuse_arch(self, command: str, *, taken: Sequence[str] = ("decoder",)) -> None:
        """Raises UserError, naming the command, for an architecture that it does not take."""
        if self.model.arch not in taken:
            raise UserError(
                f"{command}: {self.run_id} has model.arch={self.model.arch}, and {command} takes "
                f"{' and '.join(taken)} alone; lengthgen eval and report take all"
            )

    def variant(self, name: str) -> Parts:
        """Returns the scheme's parts with the variants of "a+b" merged over them in that order.

        A variant of the scheme's own comes before one of that name that any scheme may take.
        """
        merged, known = dict(self.scheme.parts), {**self.variants, **self.scheme.variants}
        names = name.split("+")
        if not all(names):
            raise UserError(f"eval.variants: {name!r} lacks a name; give NAME, or NAME+NAME")
        if len(set(names)) < len(names):
            raise UserError(f"eval.variants: {name} names one variant twice; name each once")
        for variant in names:
            if variant not in known:
                raise UserError(
                    f"eval.variants: scheme {self.scheme.name} has no variant {variant!r}; "
                    f"{suggestion(variant, known)}"
                )
            placed = {part for layer in self.scheme.layers or [] for part in layer}
            for part, arguments in known[variant].items():
                if variant not in self.scheme.variants and part in placed:
                    raise UserError(
                        f"eval.variants: {variant} sets {part}, which is in some layers of scheme "
                        f"{self.scheme.name} only; define a variant in its YAML with layers"
                    )
                if arguments is None:
                    merged.pop(part, None)
                else:
                    merged[part] = {**merged.get(part, {}), **arguments}
        return merged


def _digest(plain: object) -> str:
    """Returns 8 hexadecimal digits that name plain values."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:8]


def from_overrides(
    overrides: Sequence[str], *, config_dir: Path | None, plugins: Sequence[Path]
) -> Config:
    """Composes and builds the configuration of a command line.

    Its plugins may run, those that a YAML file names only if they are allowed already. Raises
    UserError as `from_plain` does.
    """
    plain = compose.compose(overrides, config_dir=config_dir)
    if plugins and isinstance(plain.get("plugins"), list):
        plain["plugins"] += [str(path.absolute()) for path in plugins]
    for path in (*plugins, *_given_plugins(overrides)):
        Plugin.read(path).allow()
    _make_paths_absolute(plain)
    _apply_tuned(plain, overrides)
    config = from_plain(plain)
    for plugin in config.plugins:
        plugin.refuse_unless_allowed()
    return config


def _make_paths_absolute(plain: Mapping[str, Any]) -> None:
    """Makes the argument `path` of a task or a source absolute: a run may be moved."""
    corpus: Any = plain.get("corpus")
    for spec in (corpus, corpus.get("task") if isinstance(corpus, dict) else None):
        arguments = spec.get("arguments") if isinstance(spec, dict) else None
        if isinstance(arguments, dict) and isinstance(arguments.get("path"), str):
            arguments["path"] = os.path.abspath(os.path.expanduser(arguments["path"]))


def _apply_tuned(plain: dict[str, Any], overrides: Sequence[str]) -> None:
    """Puts what train.tuned=FILE holds for the scheme in place of the path, and sets its rates."""
    train, scheme = plain.get("train"), plain.get("scheme")
    name = scheme.get("name") if isinstance(scheme, dict) else None
    path = train.get("tuned") if isinstance(train, dict) else None
    if not isinstance(train, dict) or not isinstance(path, str):
        return
    known = tuned_rates.read(Path(path))
    if name not in known:
        raise UserError(
            f"train.tuned: {path} has no rate for scheme {name}, only for {', '.join(known)}; "
            "run lengthgen tune for it too, or give train.lr instead of train.tuned"
        )
    for word in overrides:
        if word.partition("=")[0].lstrip("+") in tuned_rates.KEYS:
            raise UserError(f"{word}: train.tuned={path} sets it for each scheme; drop one of them")
    chosen = known[name]
    train |= {"tuned": chosen.model_dump(mode="json"), "lr": chosen.lr}
    if chosen.scheme_lr_ratio is not None:
        train["scheme_lr_ratio"] = chosen.scheme_lr_ratio


def _given_plugins(overrides: Sequence[str]) -> list[Path]:
    """Returns the files of plugins=[FILE,...]."""
    given = compose.values([word for word in overrides if word.startswith("plugins=")])
    files: object = given.get("plugins")
    return [Path(f) for f in files if isinstance(f, str)] if isinstance(files, list) else []


def from_plain(plain: Mapping[str, Any]) -> Config:
    """Builds the configuration from composed YAML.

    train.precision=auto becomes bf16 or fp32, by the device: two precisions are two runs, of two
    names. Whether a model, task or protocol can be built is not checked, and no plugin is run.
    Raises UserError with the dotted key of the first mistake: unknown key, wrong type, value out of
    bounds, or keys that contradict each other.
    """
    try:
        config = Config.model_validate(_with_protocols(_with_lengths(plain)))
    except ValidationError as error:
        line = one_line(error, plain, known=known_keys())
        raise UserError(line.replace("corpus.task.", "task.")) from None  # as it is typed
    _check(config)
    config = config.model_copy(update={"corpus": config.corpus.with_plugins(config.plugins)})
    if config.train.precision == "auto":
        native = precision.native(config.runtime.device)
        train = config.train.model_copy(update={"precision": native})
        return config.model_copy(update={"train": train})
    return config


def _with_lengths(plain: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the plain configuration with T/8, T/4 ... 32T, up to eval.reach, as default lengths.

    Without lengths below T a flat curve shows nothing: the model may have read a few tokens only.
    """
    train, wanted = plain.get("train"), plain.get("eval")
    if not isinstance(train, Mapping) or not isinstance(wanted, Mapping):
        return plain
    if wanted.get("lengths", ()) is not None:
        return plain
    try:
        sizes = [_integer.validate_python(n) for n in (train["length"], wanted["reach"])]
    except (KeyError, ValidationError):
        sizes = [1, 1]  # the schema names the key, and no lengths that are missing for its sake
    T, reach = sizes
    lengths = {max(1, T // 8), max(1, T // 4), max(1, T // 2), *(T << n for n in range(6))}
    kept = sorted(n for n in lengths if 0 < n <= max(T, reach))
    return {**plain, "eval": {**wanted, "lengths": kept}}


def _with_protocols(plain: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the plain configuration with the protocol of its architecture as the default."""
    model, wanted = plain.get("model"), plain.get("eval")
    if not isinstance(model, Mapping) or not isinstance(wanted, Mapping):
        return plain
    if wanted.get("protocols", ()) is not None:
        return plain
    default = "spans" if model.get("arch") == "encoder_decoder" else "tail"
    return {**plain, "eval": {**wanted, "protocols": [default]}}


def _check(config: Config) -> None:
    """Cross-field checks."""
    model, train, evaluation = config.model, config.train, config.eval
    if model.d_model % model.n_heads:
        even = 2 * model.n_heads  # heads of an odd width cannot be rotated
        raise UserError(
            f"model.d_model={model.d_model} is not divisible by model.n_heads={model.n_heads}; "
            f"try model.d_model={even * max(1, round(model.d_model / even))}"
        )
    if train.batch_tokens % train.length:
        near = train.length * max(1, round(train.batch_tokens / train.length))
        raise UserError(
            f"train.batch_tokens={train.batch_tokens} is not a multiple of "
            f"train.length={train.length}; try train.batch_tokens={near}"
        )
    for name in evaluation.reference_variants:
        known = {**config.variants, **config.scheme.variants}
        if name not in known:
            raise UserError(
                f"eval.reference_variants: no variant {name!r}; {suggestion(name, known)}"
            )


def check_changes(changes: Mapping[str, Any], sections: Sequence[str]) -> None:
    """Raises UserError for a changed key of a run outside the sections, or unknown within them."""
    known = [key for key in known_keys() if key.partition(".")[0] in sections]
    for key in changes:
        if key.partition(".")[0] not in sections or "." not in key:
            allowed = " and ".join(f"{section}.*" for section in sections)
            raise UserError(f"{key}: only {allowed} can be given here; the run fixes the rest")
        if key not in known:
            raise UserError(f"{key}: unknown key; {suggestion(key, known)}")


def known_keys(model: type[BaseModel] | None = None, prefix: str = "") -> list[str]:
    """Returns every dotted key of the schema that a user may set."""
    found: set[str] = set()
    for name, info in (model or Config).model_fields.items():
        kinds = (info.annotation, *get_args(info.annotation))
        nested = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)]
        found |= {prefix + name} if not nested else set()
        for kind in nested:
            found |= {*known_keys(kind, f"{prefix}{name}.")}
    return sorted(found)


def to_plain(config: Config) -> dict[str, Any]:
    """Returns the configuration as plain YAML values; from_plain gives it back unchanged."""
    return config.model_dump(mode="json")
