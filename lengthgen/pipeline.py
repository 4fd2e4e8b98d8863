"""A run from its configuration to its results, in one process of those that work on it."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lengthgen import schemes, tracking
from lengthgen.config import compose
from lengthgen.config import plugins as plugin_files
from lengthgen.config.schema import Config, InitFrom, changed, from_plain, to_plain
from lengthgen.data import sources
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.objective import objective_of
from lengthgen.errors import Refused, UserError
from lengthgen.evaluation import protocols
from lengthgen.evaluation.evaluator import Kept, Row, evaluate
from lengthgen.evaluation.plan import plan
from lengthgen.evaluation.validation import validator
from lengthgen.model.build import architecture, create
from lengthgen.model.transformer import build_scheme
from lengthgen.model.trial import try_out
from lengthgen.runs import checkpoints, devices, directory, signals, status
from lengthgen.runs.distributed import Ranks
from lengthgen.schemes import Scheme
from lengthgen.terminal import Progress
from lengthgen.training import init_from
from lengthgen.training import trainer as training


def validate(config: Config) -> Config:
    """Returns a configuration that was composed, if it can be built, with all arguments typed.

    With types and defaults, equal ones have equal run ids. Raises UserError as `check` does.
    """
    check(config)
    if not config.train.tokens:
        raise UserError("train.tokens=0: nothing would be trained; give a number above 0")
    parts = schemes.typed(config.scheme.parts, plugins=config.plugins)
    typed = {
        "scheme": config.scheme.model_copy(update={"parts": parts}),
        "corpus": sources.kind_of(config.corpus).typed(config.corpus),
    }
    return init_from.identified(config.model_copy(update=typed))


def check(config: Config) -> None:
    """Raises UserError, with the dotted key, of what cannot be built or measured.

    The scheme is built, and the plugins run.
    """
    objective = objective_of(config)
    objective.check()
    architecture(config).check(config)
    for name in config.eval.protocols:
        protocol = protocols.named(name)
        if protocol.objective is not type(objective):
            raise UserError(
                f"eval.protocols: {name} scores {protocol.objective.learns}, and this model learns "
                f"{objective.learns}; give {objective.protocol}"
            )
        protocol.check(config)
    sources.source_of(config.corpus)
    _check_variants(config, build_scheme(config, config.scheme.parts, where="scheme.parts"))


def _check_variants(config: Config, scheme: Scheme) -> None:
    """Builds the parts of the variants, which may add no parameter to those that are trained."""
    variants = {name: f"eval.variants.{name}" for name in config.eval.variants}
    if config.model.arch == "decoder":  # an encoder may lack what the scheme's variants change
        variants |= {name: f"scheme.variants.{name}" for name in config.scheme.variants}
    trained = {name: p.shape for name, p in scheme.named_parameters()}
    for name, where in variants.items():
        variant = build_scheme(config, config.variant(name), where=where)
        added = sorted(n for n, p in variant.named_parameters() if trained.get(n) != p.shape)
        if added:
            raise UserError(
                f"{where}: a variant is training-free, but this one adds the parameter {added[0]}; "
                "make it a scheme of its own"
            )


def config_of(
    run_dir: Path, changes: Mapping[str, Any], *, config_dir: Path | None = None
) -> Config:
    """Returns the configuration of a run with changes by dotted key; no code of the run is run."""
    plain = to_plain(directory.load_config(run_dir))
    cache = plain["runtime"]["cache"]
    if cache and not Path(cache).is_dir():  # the run was moved here
        plain["runtime"]["cache"] = None
    is_aside = run_dir.parent.name == "aside" != Path(plain["runtime"]["root"]).name  # by --force
    root = run_dir.parents[is_aside]
    for key, value in {"runtime.root": str(root), **changes}.items():
        section, _, name = key.partition(".")
        plain[section][name] = value
    return from_plain(plain, config_dir=config_dir)


def changed_run(
    base: str, overrides: Sequence[str], *, config_dir: Path | None, plugins: Sequence[Path]
) -> tuple[Path, Config]:
    """Returns a run, by its name in the overrides' runtime.root, and what they make of it."""
    roots = compose.values([word for word in overrides if word.startswith("runtime.root=")])
    run_dir = directory.find(base, compose.root_of(roots))
    config = config_of(run_dir, {})
    return run_dir, changed(config, overrides, config_dir=config_dir, plugins=plugins)


def configs_of(
    run_dirs: Sequence[Path],
    changes: Mapping[str, Any],
    *,
    config_dir: Path | None = None,
    plugins: Sequence[Path] = (),
) -> list[Config]:
    """Returns the checked configurations of runs. Raises UserError for a plugin not given."""
    plugin_files.give(plugins)
    configs = [config_of(run_dir, changes, config_dir=config_dir) for run_dir in run_dirs]
    for config, run_dir in zip(configs, run_dirs, strict=True):
        plugin_files.of_run(config.plugins, run_dir)
        try:
            check(config)
        except UserError as error:
            raise UserError(f"{run_dir}: {error}" if run_dirs[1:] else str(error)) from None
    return configs


def prepare(
    config: Config,
    loaded: dict[str, TokenizedCorpus],
    *,
    say: Callable[[str], None],
    is_new: bool = False,
) -> TokenizedCorpus:
    """Returns the corpus, whose token cache it builds, and checks that it has the lengths.

    `loaded` keeps corpora for the next configuration; `is_new` as of `load_corpus`. Raises
    UserError.
    """
    begun_on = directory.read_provenance(config.run_dir, run=config.run_id).get("fingerprint")
    key = f"{config.corpus.model_dump_json()} {config.plugins} {begun_on}"
    if key not in loaded:
        loaded[key] = directory.load_corpus(config, config.run_dir, say=say, is_new=is_new)
    plan(config, loaded[key])
    return loaded[key]


def train(config: Config) -> Path:
    """Trains and evaluates as the rank that the environment names; returns the run directory.

    Raises UserError for what the user can fix, and Stopped if a signal requested the end.
    """
    ranks = Ranks.from_env()
    device = devices.device_of(config.runtime, ranks)
    with ranks.connected(device.type), Progress(is_main=ranks.is_main) as show:
        return train_and_evaluate(config, ranks=ranks, show=show)


def evaluate_runs(
    run_dirs: Sequence[Path],
    changes: Mapping[str, Any],
    *,
    config_dir: Path | None = None,
    plugins: Sequence[Path] = (),
    kept: Kept = (),
    seconds: float = math.inf,
) -> list[tuple[Path, Config, list[Row]]]:
    """Adds what is missing of the curves of runs; returns them, as they are changed, and rows.

    The rows are those that the configuration asks for, whether they were there or not, also of the
    `kept` checkpoints. Of several runs, one that is refused is named in a line and left out. Each
    takes as many seconds at most, as in `evaluate`.
    """
    configs = configs_of(run_dirs, changes, config_dir=config_dir, plugins=plugins)
    ranks = Ranks.from_env()
    device = devices.device_of(configs[0].runtime, ranks)
    evaluated: list[tuple[Path, Config, list[Row]]] = []
    with ranks.connected(device.type), Progress(is_main=ranks.is_main) as show:
        for config, run_dir in zip(configs, run_dirs, strict=True):
            before = _n_bytes(run_dir)
            try:
                rows = evaluate(config, run_dir, ranks=ranks, show=show, kept=kept, seconds=seconds)
            except Refused as error:
                if len(run_dirs) == 1:
                    raise
                show.say(f"{run_dir} is not evaluated: {error}")
                continue
            evaluated.append((run_dir, config, rows))
            if ranks.is_main and _n_bytes(run_dir) > before:
                tracking.show_results(config, run_dir, say=show.say)
    return evaluated


def _n_bytes(run_dir: Path) -> int:
    """Returns the size of all rows of a run."""
    return sum(file.stat().st_size for file in run_dir.glob("*.jsonl"))


@signals.interruptible()
def train_and_evaluate(config: Config, *, ranks: Ranks, show: Progress) -> Path:
    """Trains to the budget, resuming what is there, evaluates, and shows all of it in W&B.

    Returns the run directory, which is made after the model has run once and has its first weights.
    """
    device = devices.device_of(config.runtime, ranks)
    devices.prepare(config.runtime, device)
    run_dir = config.run_dir
    corpus = prepare(config, {}, say=show.say)
    trained = ranks.gather(ranks.is_main and checkpoints.has_final(config))[0]
    model = None if trained else create(config, vocab_size=corpus.vocab_size)
    if model is not None:
        try_out(model, config)
        init = config.train.init_from
        if isinstance(init, InitFrom) and not status.checkpoint_folders(run_dir):
            init_from.load_weights(model, init, corpus, say=show.say)
    evaluated = trained and status.read_status(run_dir, run=config.run_id).evaluated
    with ExitStack() as stack:
        if ranks.is_main:
            stack.enter_context(status.run_lock(run_dir, "train"))
            ids = {"run": config.run_id, "evaluation_id": config.evaluation_id}
            stack.enter_context(status.record_status(run_dir, **ids))
            directory.write_config(config, run_dir)
            if model is not None:
                weights, code = dict(model.named_parameters()), model.scheme.code
                directory.write_provenance(
                    run_dir, corpus, run=config.run_id, weights=weights, code=code
                )
        stack.enter_context(ranks.together())
        ranks.barrier()
        # An agent of a W&B sweep waits for what is done too.
        is_done = evaluated == config.evaluation_id and "WANDB_SWEEP_ID" not in os.environ
        about: dict[str, Any] = {"say": show.say, "is_done": is_done}
        shown = tracking.views(config, run_dir, **about) if ranks.is_main else []
        views = [stack.enter_context(view) for view in shown]
        if model is not None:
            validate = validator(config, corpus, ranks=ranks)

            def log(row: Mapping[str, Any]) -> None:
                for view in views:
                    view.row(row)

            hooks: dict[str, Any] = {"log": log, "validate": validate}
            training.train(config, corpus, model, device, ranks=ranks, show=show, **hooks)
        evaluate(config, run_dir, ranks=ranks, show=show)
        for view in views:
            view.results()
    return run_dir
