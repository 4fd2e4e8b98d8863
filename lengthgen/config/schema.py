"""The frozen, validated configuration of a run: types, bounds, derived values and run_id."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from lengthgen.config import conf
from lengthgen.config.sections import Section, in_tokens, number
from lengthgen.config.user import user_cache
from lengthgen.errors import UserError, suggestion
from lengthgen.files import hash_of, utf8


def _distinct(values: list[Any]) -> list[Any]:
    if len(set(values)) < len(values):
        raise PydanticCustomError("doubled", "names a value twice; name each once")
    return values


def expanded(path: str | Path) -> Path:
    return Path(os.path.expanduser(path))


def _absolute(path: str | Path) -> Path:
    absolute = os.path.abspath(expanded(path))
    if absolute != utf8(absolute):  # which config.yaml cannot hold
        raise PydanticCustomError("encoding", "has a name on its path that is no UTF-8; rename it")
    return Path(absolute)


def _with_absolute_paths(arguments: Any) -> Any:
    """Makes `path`, `..._path` and what is a folder or file of that name absolute.

    A run may be moved, and equal places are to have equal names: a list of one path is that path.
    """
    placed = dict(arguments) if isinstance(arguments, dict) else {}
    for key, value in placed.items():
        if key == "path" or key.endswith("_path"):
            paths = value if isinstance(value, list) else [value]
            paths = [str(_absolute(p)) if p and isinstance(p, str) else p for p in paths]
            placed[key] = paths[0] if len(paths) == 1 else paths
        elif key in ("repo", "tokenizer") and isinstance(value, str) and value not in TOKENIZERS:
            placed[key] = str(_absolute(value)) if os.path.exists(value) else value
    return placed or arguments


LARGEST = 10**12  # of numbers that count something: more is a typo
TOKENIZERS = ("bpe", "bytes", "characters")  # any other is a tokenizer.json, or a name of the Hub
HUB_NAME = r"(?!.*\.json$)\w[\w.-]*(/[\w.-]+)?(@[\w./-]+)?"  # OWNER/NAME@REVISION
FOLDER_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.]*$"  # folders are named by it
Integer = Annotated[int, BeforeValidator(number)]
Length = Annotated[int, BeforeValidator(in_tokens)]
Number = Annotated[float, BeforeValidator(number)]
Positive = Annotated[Integer, Field(gt=0, le=LARGEST)]
NonNegative = Annotated[Integer, Field(ge=0, le=LARGEST)]
PositiveFloat = Annotated[Number, Field(gt=0)]
Share = Annotated[Number, Field(ge=0, le=1)]
SampleSize = Annotated[Integer, Field(gt=0, le=10**6)]  # each takes a forward pass or more
Name = Annotated[str, Field(pattern=FOLDER_NAME, max_length=64)]
Word = Annotated[str, Field(min_length=1)]
# "" is no folder.
Folder = Annotated[Path, BeforeValidator(lambda path: path or None), AfterValidator(_absolute)]
Distinct = AfterValidator(_distinct)
Arguments = dict[str, Any]  # the class that takes them checks types and bounds
Parts = dict[str, Arguments]
Variants = dict[str, dict[str, Arguments | None]]


AlignmentIds = Callable[[Sequence[int]], list[int]]  # of a text's tokens; -1 before the text


@dataclass(frozen=True, kw_only=True)
class ModelDims:
    """What a part may know of the model that it is built for."""

    d_model: int
    n_layers: int
    n_heads: int
    d_head: int
    train_length: int
    init_std: float
    n_kv_heads: int
    causal: bool = True  # no query sees a later key; False in an encoder

    @property
    def qkv_widths(self) -> tuple[int, int, int]:
        """Channels of queries, keys and values: several heads may share keys and values."""
        kv = self.n_kv_heads * self.d_head
        return self.n_heads * self.d_head, kv, kv


class SchemeSpec(Section):
    """The positional scheme: parts by name, where they act, and its training-free variants."""

    name: Name
    parts: Parts
    layers: list[Annotated[list[str], Distinct]] | None
    lr_ratio: PositiveFloat
    variants: Variants = Field(default={})


class Model(Section):
    """Architecture, width, depth and initialisation of the Transformer; conf/config.yaml."""

    name: Name
    arch: Literal["decoder", "encoder", "encoder_decoder"]
    d_model: Annotated[Integer, Field(gt=0, le=2**16)]
    n_layers: Annotated[Integer, Field(gt=0, le=1024)]
    n_heads: Annotated[Integer, Field(gt=0, le=2**16)]
    d_ff: Annotated[Integer, Field(gt=0, le=2**18)]
    init_std: PositiveFloat
    n_kv_heads: Positive | None = None
    d_head: Annotated[Integer, Field(gt=0, le=2**16)] | None = None
    vocab_size: Annotated[Integer, Field(gt=0, le=2**20)] | None = None
    norm: Literal["layer", "rms"] = "layer"
    norm_epsilon: PositiveFloat = 1e-5
    embedding_norm: bool = False
    norm_placement: Literal["pre", "post", "both"] = "pre"
    embedding_scale: PositiveFloat = 1.0
    qk_norm: bool | Literal["all_heads"] = False
    mlp: Literal["gelu", "gelu_tanh", "relu", "swiglu", "geglu", "geglu_tanh"] = "gelu"
    biases: Annotated[list[Literal["norm", "qkv", "attention_out", "mlp"]], Distinct] = Field(
        default=[]
    )
    parallel_residual: bool = False
    dropout: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    tied_head: bool = True

    @property
    def is_gated(self) -> bool:
        """True if one half of the network's input matrix multiplies the other."""
        return "glu" in self.mlp

    @property
    def label(self) -> str:
        """The name in runs and tables, where two architectures are two models."""
        return self.name if self.arch == "decoder" else f"{self.name}_{self.arch}"


class Corpus(Section):
    """A source of documents, a class of data/sources/ or a plugin, and how its text is read.

    Other keys are the arguments of that class.
    """

    model_config = ConfigDict(extra="allow")

    name: Name
    source: Word
    tokenizer: Annotated[
        Word,
        AfterValidator(lambda n: n if re.fullmatch(HUB_NAME, n) else str(_absolute(n))),
    ]
    # The largest published vocabularies have a quarter of that.
    vocab_size: Annotated[Integer, Field(ge=257, le=2**20)]
    bos: bool
    packed: bool
    held_out: Literal["validation", "tuning"]

    @model_validator(mode="before")
    @classmethod
    def _settle(cls, given: Any) -> Any:
        """Makes paths absolute, and names a dataset of the Hub as it is there."""
        placed = _with_absolute_paths(given)
        if isinstance(placed, dict) and placed.get("name", "") is None and placed.get("repo"):
            name = re.sub(r"[^A-Za-z0-9_.]", "_", Path(str(placed["repo"])).name)[:64]
            return {**placed, "name": name}
        return placed

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword-only arguments of the source."""
        return dict(self.model_extra or {})


class TaskSpec(Section):
    """A rule of tasks/ or a plugin, and how many examples of it are made; conf/task/*.yaml."""

    name: Name
    kind: Word
    arguments: Annotated[Arguments, BeforeValidator(_with_absolute_paths)]
    length: Annotated[Integer, Field(gt=0, le=2**17)]  # L, the longest in training
    longest: Annotated[Integer, Field(gt=0, le=2**17)]  # in the tests
    examples: Positive  # in training
    examples_per_length: Positive  # in the tests
    seed: NonNegative


class TaskCorpus(Corpus):
    """Examples of a task, each a document; a token per character."""

    model_config = ConfigDict(extra="forbid")

    task: TaskSpec


def _is_of_task(corpus: Any) -> str:
    source = corpus.get("source") if isinstance(corpus, dict) else getattr(corpus, "source", "")
    return "task" if source == "task" else "text"


AnyCorpus = Annotated[
    Annotated[TaskCorpus, Tag("task")] | Annotated[Corpus, Tag("text")], Discriminator(_is_of_task)
]


class InitFrom(Section):
    """The trained run that a run takes its weights from."""

    run: Word
    recipe: Word  # that of its configuration: seeds of one recipe begin seeds of one series
    weights: Word  # sha256
    path: Word  # the run directory; a run that was trained does not read it any more


class Train(Section):
    """Budget, optimizer and schedule."""

    length: Annotated[Length, Field(gt=1, le=2**24)]
    batch_tokens: Annotated[Integer, Field(gt=0, le=2**30)]
    budget_steps: Positive | None = Field(default=None, alias="steps", exclude=True)
    tokens: NonNegative  # 0: an imported model, which is not trained here
    optimizer: Literal["adamw", "muon"] = "adamw"
    lr: PositiveFloat
    scheme_lr_ratio: PositiveFloat | None
    min_lr_ratio: Share
    warmup_fraction: Share
    schedule: Literal["cosine", "linear"]
    weight_decay: Annotated[Number, Field(ge=0)]
    beta1: Annotated[Number, Field(ge=0, lt=1)]
    beta2: Annotated[Number, Field(ge=0, lt=1)]
    clip: PositiveFloat
    precision: Literal["auto", "bf16", "fp32"]  # `experiment.resolved` replaces auto
    checkpoint_every: Positive
    keep_checkpoints: Annotated[Integer, Field(ge=0, le=1000)] = 0
    keep_optimizer: bool = False
    val_every: NonNegative | None = None
    tuned: Folder | None  # tuned.yaml, where the rates come from
    # A run; `init_from.identified` puts what identifies its weights in place of the folder.
    init_from: InitFrom | Annotated[Path, AfterValidator(expanded)] | None

    @field_validator("tokens")
    @classmethod
    def _of_steps(cls, tokens: int, info: ValidationInfo) -> int:
        """Returns the budget of train.steps, if that is given."""
        steps, batch_tokens = info.data.get("budget_steps"), info.data.get("batch_tokens")
        return steps * batch_tokens if steps and batch_tokens else tokens

    @property
    def batch(self) -> int:
        """Windows in one optimizer step, over all processes."""
        return self.batch_tokens // self.length

    @property
    def steps(self) -> int:
        """Optimizer steps: the last one reaches the budget."""
        return -(-self.tokens // (self.batch * self.length))

    @property
    def kept_steps(self) -> set[int]:
        """Steps whose weights are kept: even in log tokens, from 1/16 of the budget to below it."""
        n = self.keep_checkpoints
        return {max(1, round(self.steps * 16 ** (-k / n))) for k in range(1, n + 1)} - {self.steps}

    @property
    def validates_every(self) -> int:
        """Optimizer steps between validations; 0: none."""
        return max(1, self.steps // 10) if self.val_every is None else self.val_every


class Eval(Section):
    """Lengths, protocols and scored targets of the curve."""

    lengths: Annotated[
        list[Annotated[Length, Field(gt=0, le=LARGEST)]], Distinct
    ]  # `from_plain` chooses them for an empty list
    protocols: Annotated[list[Word], Distinct]  # these as well
    variants: Annotated[list[Word], Distinct]
    reference_variants: Annotated[list[Word], Distinct]
    targets: Positive
    endpoints: SampleSize
    endpoints_per_document: Positive
    deduplicate: bool
    sliding_documents: SampleSize
    exact_targets: SampleSize
    max_context: Annotated[Length, Field(gt=0, le=LARGEST)]
    blocks: SampleSize
    seed: NonNegative
    precision: Literal["fp32", "bf16"]
    decode: Annotated[Integer, Field(ge=0, le=10**6)]
    evaluator: str | None = None
    effective: Annotated[float, Field(gt=0, le=1)] = 0.85


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
    wandb: Annotated[
        Literal["auto", "online", "offline", "off"],
        # YAML makes false of off, and W&B calls it disabled.
        BeforeValidator(lambda mode: "off" if mode is False or mode == "disabled" else mode),
    ]
    wandb_project: Word | None
    wandb_entity: Word | None
    wandb_group: Word | None = None
    wandb_name: Word | None = None
    wandb_tags: list[Word] | None = None
    wandb_checkpoint: bool = False
    tensorboard: bool = False

    @property
    def cache_dir(self) -> Path:
        return self.cache if self.cache is not None else user_cache() / "corpora"


LATER = {"norm_placement": "pre", "embedding_scale": 1.0}  # names are older than these options
NO_WEIGHTS: Any = {  # decides no weights, or _named adds it in another form
    **dict.fromkeys(("seed", "runtime", "eval", "variants"), True),
    "train": {
        *("checkpoint_every", "keep_checkpoints", "keep_optimizer"),
        *("val_every", "tuned", "init_from"),
    },
    "scheme": {"variants", "lr_ratio"},
}


class Draft(Section):
    """What words say of a run, before classes give their arguments types and defaults.

    It has no name yet: of two drafts that mean one run, one may leave out a default.
    """

    seed: Annotated[Integer, Field(ge=0, lt=2**32)]
    plugins: list[str] = Field(default=[])  # digests of the files that --plugin gave
    runtime: Runtime
    scheme: SchemeSpec
    variants: Variants
    model: Model
    corpus: AnyCorpus
    train: Train
    eval: Eval

    @field_validator("eval", mode="before")
    @classmethod
    def _lengths_in_tokens(cls, given: Any, info: ValidationInfo) -> Any:
        """Writes a length such as 2T or T/4 in tokens: T is train.length."""
        lengths = given.get("lengths") if isinstance(given, dict) else None
        if not isinstance(lengths, list):
            return given
        form = r"(\d+(?:\.\d+)?)?T(?:/([1-9]\d*))?"
        times = [re.fullmatch(form, str(length)) for length in lengths]
        T = getattr(info.data.get("train"), "length", 1024)  # any, if train itself is refused
        tokens = [m and float(m[1] or 1) * T / int(m[2] or 1) for m in times]
        named = [
            f"{x} = {n:g} tokens" if n and n % 1 else n or x
            for n, x in zip(tokens, lengths, strict=True)
        ]
        return {**given, "lengths": named}

    @property
    def is_imported(self) -> bool:
        """True of a pretrained model, which is not trained here."""
        return not self.train.tokens

    @property
    def effective_model(self) -> dict[str, Any]:
        """What keys of the model mean that may be given in several ways."""
        shape = {"n_kv_heads": self.shape.n_kv_heads, "d_head": self.shape.d_head}
        return {"biases": sorted(self.model.biases), **shape}

    @property
    def scheme_lr_ratio(self) -> float:
        """The learning rate of the scheme's parameters over that of the network."""
        ratio = self.train.scheme_lr_ratio
        return self.scheme.lr_ratio if ratio is None else ratio

    @property
    def shape(self) -> ModelDims:
        """What parts may know of the model."""
        of_model = {"d_model", "n_layers", "n_heads", "init_std"}
        return ModelDims(
            **self.model.model_dump(include=of_model),
            n_kv_heads=self.model.n_kv_heads or self.model.n_heads,
            d_head=self.model.d_head or self.model.d_model // self.model.n_heads,
            train_length=self.train.length,
            causal=self.model.arch != "encoder",
        )

    @property
    def encoder_shape(self) -> ModelDims | None:
        """What parts may know of an encoder next to a decoder; None if there is none."""
        has_both = self.model.arch == "encoder_decoder"
        return replace(self.shape, causal=False) if has_both else None

    def variant(self, name: str) -> Parts:
        """Returns the scheme's parts with the variants of "a+b" merged over them in that order.

        A variant of the scheme's own comes before one of that name that any scheme may take.
        """
        merged = dict(self.scheme.parts)
        placed = {part for layer in self.scheme.layers or [] for part in layer}
        for variant in name.split("+"):
            for part, arguments in self.changes_of(variant).items():
                if variant not in self.scheme.variants and part in placed:
                    raise UserError(
                        f"eval.variants: {variant} sets {part}, which is in some layers of scheme "
                        f"{self.scheme.name} only; drop {variant}, or define it in its YAML"
                    )
                merged[part] = {**merged.get(part, {}), **(arguments or {})}
                if arguments is None:
                    del merged[part]
        return merged

    def changes_of(
        self, variant: str, *, config_dir: Path | None = None
    ) -> dict[str, Arguments | None]:
        """Returns the arguments of parts that a variant sets; None removes a part."""
        files = conf.choices(conf.VARIANT, config_dir=config_dir)
        defined = {**self.variants, **self.scheme.variants}
        if variant not in defined and variant not in files:
            remedy = suggestion(variant, {*defined, *files})
            raise UserError(
                f"eval.variants: scheme {self.scheme.name} has no variant {variant!r}; {remedy}"
            )
        return defined[variant] if variant in defined else conf.read_yaml(files[variant])


class Config(Draft):
    """Everything that decides a run, with all arguments in their types: what a run folder holds."""

    @property
    def run_id(self) -> str:
        """The run's name: what was trained, as names, seed and a digest of what decides weights."""
        return self._named(f"s{self.seed}-", init="weights")

    @property
    def recipe(self) -> str:
        """What seeds of one training share: run_id without the seed."""
        return self._named("", init="recipe")

    def _named(self, seed: str, *, init: str) -> str:
        """Returns a name with the digest of all that decides the weights but for the seed."""
        science = self.model_dump(mode="json", exclude=NO_WEIGHTS)
        science["train"]["scheme_lr_ratio"] = self.scheme_lr_ratio
        science["model"] |= self.effective_model
        for key, usual in LATER.items():
            if science["model"][key] == usual:
                del science["model"][key]
        science["scheme"]["parts"] = [*science["scheme"]["parts"].items()]  # in the order they act
        digest = hash_of([science, getattr(self.train.init_from, init, None)], 8)
        scheme = "" if self.is_imported else f"{self.scheme.name}-"  # whose name is its own
        return f"{scheme}{self.model.label}-{self.corpus.name}-{seed}{digest}"

    @property
    def evaluation_id(self) -> str:
        """8 hexadecimal digits that name what is measured of the trained run."""
        return hash_of([self.eval.model_dump(), self.variants, self.scheme.variants], 8)

    @property
    def run_dir(self) -> Path:
        return self.runtime.root / self.run_id

    def refuse_arch(self, command: str, *, taken: Sequence[str] = ("decoder",)) -> None:
        """Raises UserError, naming the command, for an architecture that it does not take."""
        if self.model.arch not in taken:
            raise UserError(
                f"{command}: {self.run_id} has model.arch={self.model.arch}, and {command} takes "
                f"{' and '.join(taken)} alone; lengthgen eval and report take all"
            )


def to_plain(config: Draft) -> dict[str, Any]:
    """Returns the configuration as plain YAML values; from_plain gives it back unchanged."""
    return config.model_dump(mode="json")
