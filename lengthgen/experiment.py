"""An experiment: names are resolved into objects here, and in no other place.

torch and what needs it are imported where the objects are made: a typo is answered before.
"""

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lengthgen.config import compose, drafts, schema
from lengthgen.config import plugins as plugin_files
from lengthgen.config.overrides import plain_values
from lengthgen.config.plugins import Plugin
from lengthgen.config.schema import Config, Draft
from lengthgen.config.user import root_of, sent_defaults
from lengthgen.errors import Say, UserError
from lengthgen.files import reading
from lengthgen.runs import directory

if TYPE_CHECKING:
    from lengthgen.data.corpora import TokenizedCorpus
    from lengthgen.data.objective import Objective
    from lengthgen.data.sources import Source
    from lengthgen.evaluation.protocols import Evaluation, Protocol
    from lengthgen.evaluation.scored_text import Plan
    from lengthgen.model.transformer import Transformer
    from lengthgen.runs.distributed import Ranks
    from lengthgen.schemes import Design
    from lengthgen.terminal import Progress


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """All of a run that needs neither text nor weights; equal ones are of one configuration."""

    config: Config
    is_auto: bool = field(compare=False)  # train.precision=auto chose this precision
    plugins: tuple[Plugin, ...]
    source: "Source" = field(compare=False)
    objective: "Objective" = field(compare=False)
    protocols: "tuple[Protocol, ...]" = field(compare=False)
    architecture: "type[Transformer]" = field(compare=False)
    scheme: "Design" = field(compare=False)
    # Those that eval names; why the scheme cannot take a reference variant.
    variants: "Mapping[str, Design | UserError]" = field(compare=False)

    @property
    def run_id(self) -> str:
        return self.config.run_id

    @property
    def run_dir(self) -> Path:
        return self.config.run_dir

    @property
    def ends_within_T(self) -> str | None:
        """Says that no length of eval.lengths is beyond T. None if one is, or for a task."""
        wanted, T = self.config.eval, self.config.train.length
        is_beyond = max(wanted.lengths, default=0) > T
        if is_beyond or not wanted.protocols or self.config.corpus.source == "task":
            return None
        return f"eval.lengths has none beyond T = {T}: no verdict on longer contexts"

    @property
    def begun_elsewhere(self) -> str | None:
        """Says which run a machine with another native precision began with the same words.

        Two precisions are two runs, of two names. None if this one is there.
        """
        chosen = self.config.train.precision
        other = "fp32" if chosen == "bf16" else "bf16"
        train = self.config.train.model_copy(update={"precision": other})
        run_dir = self.config.model_copy(update={"train": train}).run_dir
        if not self.is_auto or self.run_dir.exists() or not run_dir.exists():
            return None
        return (
            f"train.precision=auto means {chosen} on this machine, and this is a run of its own: "
            f"{run_dir} is in {other}; train.precision={other} continues it"
        )

    @property
    def evaluated_variants(self) -> "list[Design]":
        """Those of eval.variants, which the scheme can take."""
        chosen = [self.variants[name] for name in self.config.eval.variants]
        return [design for design in chosen if not isinstance(design, UserError)]

    def create(self, *, vocab_size: int) -> "Transformer":
        """Returns the model with its first weights, on the CPU; vocab_size is the corpus's."""
        from lengthgen.model.build import create

        return create(self.architecture, self.config, self.scheme, vocab_size=vocab_size)

    def build(self, *, vocab_size: int) -> "Transformer":
        """Returns the model before its weights are drawn or loaded."""
        return self.architecture(self.config, self.scheme, vocab_size=vocab_size)

    def with_eval(self, **changed: Any) -> "Experiment":
        """Returns the experiment with other values of eval that name no object."""
        of_eval = self.config.eval.model_copy(update=changed)
        config = self.config.model_copy(update={"eval": of_eval})
        return dataclasses.replace(self, config=config)

    def opened(
        self,
        run_dir: Path | None = None,
        *,
        say: "Say",
        loaded: "dict[str, TokenizedCorpus] | None" = None,
    ) -> "Opened":
        """Returns the experiment with its text, whose token cache it builds, and what is scored.

        Of a run that is given, parts whose code has changed are named. `loaded` keeps corpora for
        other experiments. Raises UserError, as `plan` does, for a corpus that lacks the lengths.
        """
        if run_dir is not None:
            directory.say_edited(run_dir, self.scheme.code, run=self.run_id, say=say)
        run_dir, loaded = run_dir or self.run_dir, {} if loaded is None else loaded
        begun_on = directory.read_provenance(run_dir, run=self.run_id).get("fingerprint")
        key = f"{self.config.corpus.model_dump_json()} {self.config.plugins} {begun_on}"
        if key not in loaded:
            loaded[key] = directory.load_corpus(self.config, self.source, run_dir, say=say)
        return self.opened_on(loaded[key], run_dir=run_dir)

    def opened_on(self, corpus: "TokenizedCorpus", *, run_dir: Path = Path()) -> "Opened":
        """Returns the experiment with this text."""
        from lengthgen.evaluation.plan import plan

        planned = plan(self.config, self.protocols, self.objective, corpus)
        return Opened(experiment=self, run_dir=run_dir, corpus=corpus, plan=planned)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """An experiment with its text, and what is scored of it."""

    experiment: Experiment
    run_dir: Path
    corpus: "TokenizedCorpus"
    plan: "Plan"

    def trained(self, *, ranks: "Ranks", show: "Progress") -> "Evaluation":
        """Returns the run's newest checkpoint as a model, and what to score; prepares the process.

        Raises UserError if there is none, or if the last one of a trained run is damaged.
        """
        from lengthgen.runs import checkpoints, devices

        experiment, config, run_dir = self.experiment, self.experiment.config, self.run_dir
        device = devices.device_of(config.runtime, ranks)
        devices.prepare(config.runtime, device)
        model = experiment.build(vocab_size=self.corpus.vocab_size)
        with reading(run_dir):
            checkpoint = checkpoints.final(config, run_dir)
            model.load_state_dict(checkpoint.weights)
        seen, budget = checkpoint.step * config.train.batch_tokens, config.train.tokens
        if checkpoint.step < config.train.steps:
            show.say(f"{run_dir}: not trained to its end, {seen:,} of {budget:,} tokens are seen")
        return self.scored(
            model.to(device).eval(),
            weights=checkpoint.sha256,
            tokens_seen=seen,
            ranks=ranks,
            show=show,
        )

    def scored(
        self,
        model: "Transformer",
        *,
        weights: str = "",
        tokens_seen: int = 0,
        ranks: "Ranks",
        show: "Progress",
    ) -> "Evaluation":
        """Returns a model as it is scored on the text; `weights` is the sha256 of their file."""
        from lengthgen.evaluation.protocols import Evaluation, cells_of

        experiment = self.experiment
        return Evaluation(
            config=experiment.config,
            objective=experiment.objective,
            cells=cells_of(experiment.config, experiment.protocols),
            designs={None: experiment.scheme, **experiment.variants},
            plan=self.plan,
            run_dir=self.run_dir,
            model=model,
            scheme=model.scheme,
            weights=weights,
            tokens_seen=tokens_seen,
            ranks=ranks,
            show=show,
        )


def resolve(
    words: Sequence[str], *, config_dir: Path | None = None, plugins: Sequence[Path] = ()
) -> Experiment:
    """Returns the experiment of a command line: the only door from words to objects.

    Raises UserError, with the dotted key, for all that is wrong and needs no text and no weights.
    The plugins run.
    """
    files = plugin_files.read_plugins(plugins)
    digests = [plugin.digest for plugin in files]
    draft = drafts.drafted(words, config_dir=config_dir, plugins=digests)
    if draft.is_imported:
        raise UserError("train.tokens=0: nothing would be trained; give a number above 0")
    begin = draft.train.init_from
    if isinstance(begin, Path) and re.match(r"[\w.+~]+=", str(begin)):  # words, no folder
        base = _run_of(str(begin), draft.runtime.root, config_dir=config_dir, plugins=plugins)
        train = draft.train.model_copy(update={"init_from": base})
        draft = draft.model_copy(update={"train": train})
    return resolved(draft, files)


def _run_of(command: str, root: Path, **options: Any) -> Path:
    """Returns the run that `lengthgen train COMMAND` has made under a root.

    Raises UserError if there is none, and as `resolve`, which takes the options.
    """
    try:
        run_dir = root / resolve(shlex.split(command), **options).run_id
    except (UserError, ValueError) as error:  # of shlex: an open quotation mark
        raise UserError(f"train.init_from: {command}: {error}") from None
    if not run_dir.exists():
        remedy = f"first lengthgen train {command}"
        raise UserError(f"train.init_from: {root} has no {run_dir.name}; {remedy}")
    return run_dir


def of_run(
    run_dir: Path,
    changes: Mapping[str, Any] | None = None,
    *,
    config_dir: Path | None = None,
    plugins: Sequence[Path] = (),
) -> Experiment:
    """Returns the experiment of a run, with changes by dotted key. Raises as `resolve`.

    Raises UserError too for a plugin of the run that is not given.
    """
    config = config_of(run_dir, changes or {}, config_dir=config_dir)
    given, kept = plugin_files.read_plugins(plugins), run_dir / "plugins"
    return resolved(config, plugin_files.required(config.plugins, given, kept=kept))


def of_runs(
    run_dirs: Sequence[Path],
    changes: Mapping[str, Any],
    *,
    say: "Say",
    config_dir: Path | None = None,
    plugins: Sequence[Path] = (),
) -> dict[Path, Experiment]:
    """Returns the experiments of runs, as `of_run`; of several, one that is refused is named.

    Raises UserError if all are.
    """
    experiments, refused = dict[Path, Experiment](), list[str]()
    for run_dir in run_dirs:
        with directory.or_said(run_dir, "read", refused.append if run_dirs[1:] else None):
            asked = of_run(run_dir, changes, config_dir=config_dir, plugins=plugins)
            experiments[run_dir] = asked
    if not experiments:
        raise UserError(refused[0])
    for line in refused:
        say(line)
    return experiments


def config_of(
    run_dir: Path, changes: Mapping[str, Any], *, config_dir: Path | None = None
) -> Config:
    """Returns the configuration of a run with changes by dotted key; no code of the run is run.

    What is sent, and where to, is decided by the changes, the environment and the user's own
    defaults: the file of a run, which may be somebody else's, can only keep it off the net.
    """
    plain = schema.to_plain(directory.load_config(run_dir))
    sent = sent_defaults()
    if plain["runtime"]["wandb"] in ("off", "offline"):
        del sent["runtime.wandb"]
    cache = plain["runtime"]["cache"]
    if cache and not Path(cache).is_dir():  # the run was moved here
        plain["runtime"]["cache"] = None
    for key, value in {"runtime.root": str(run_dir.parent), **sent, **changes}.items():
        section, _, name = key.partition(".")
        plain[section][name] = value
    return drafts.from_stored(plain, config_dir=config_dir)


def changed(
    base: str, words: Sequence[str], *, config_dir: Path | None, plugins: Sequence[Path]
) -> tuple[Path, Experiment]:
    """Returns a run, by its name in the overrides' runtime.root, and what they make of it."""
    roots = plain_values([word for word in words if word.startswith("runtime.root=")])
    run_dir = directory.find(base, root_of(roots))
    config = config_of(run_dir, {})
    if not plugins:
        plugin_files.required(config.plugins, (), kept=run_dir / "plugins")
    below = compose.beneath(drafts.overrides_giving(config), words, config_dir=config_dir)
    if config.is_imported:  # it trains, and is scored beside its training text, now
        below = [w for w in below if w not in ("train.precision=fp32", "eval.deduplicate=false")]
    return run_dir, resolve([*below, *words], config_dir=config_dir, plugins=plugins)


def resolved(draft: Draft, plugins: tuple[Plugin, ...] = ()) -> Experiment:
    """Returns the experiment of a draft and its plugins, which run. Raises as `resolve`."""
    from lengthgen.data.objective import objective_of
    from lengthgen.data.sources import source_of
    from lengthgen.evaluation.protocols import protocols_of
    from lengthgen.model.build import architecture
    from lengthgen.runs import devices
    from lengthgen.schemes import Design
    from lengthgen.training import init_from

    source, corpus = source_of(draft.corpus, plugins)
    scheme = Design(
        shape=draft.shape,
        encoder_shape=draft.encoder_shape,
        layers=draft.scheme.layers,
        alignment_ids=source.alignment_ids,
        plugins=plugins,
    ).with_parts(draft.scheme.parts)
    of_scheme = draft.scheme.model_copy(update={"parts": scheme.parts})
    train = init_from.identified(draft)
    if is_auto := train.precision == "auto":
        precision = devices.native_precision(draft.runtime.device)
        train = train.model_copy(update={"precision": precision})
    typed = {"corpus": corpus, "scheme": of_scheme, "train": train}
    config = Config.model_validate(dict(draft) | typed)
    objective = objective_of(config, source)
    objective.check()
    kind = architecture(config, scheme)
    kind.check(config)
    protocols = protocols_of(config, objective)
    trained = {name: p.shape for name, p in scheme.build().named_parameters()}
    variants: dict[str, Design | UserError] = {}
    for name in config.eval.reference_variants:
        try:
            variants[name] = scheme.with_parts(config.variant(name), where="scheme.variants")
        except UserError as error:
            variants[name] = error
    named = {name: f"eval.variants.{name}" for name in config.eval.variants}
    if config.model.arch == "decoder":  # an encoder may lack what the scheme's variants change
        named |= {name: f"scheme.variants.{name}" for name in config.scheme.variants}
    for name, where in named.items():
        design = scheme.with_parts(config.variant(name), where=where)
        variant = design.build()
        added = sorted(n for n, p in variant.named_parameters() if trained.get(n) != p.shape)
        if added:
            raise UserError(
                f"{where}: a variant is training-free, but this one adds the parameter {added[0]}; "
                "make it a scheme of its own"
            )
        if name in config.eval.variants:
            variants[name] = design
    return Experiment(
        config=config,
        is_auto=is_auto,
        plugins=plugins,
        source=source,
        objective=objective,
        protocols=protocols,
        architecture=kind,
        scheme=scheme,
        variants=variants,
    )
