"""A run from its experiment to its results, in one process of those that work on it."""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lengthgen import tracking
from lengthgen.config.schema import InitFrom
from lengthgen.errors import Refused
from lengthgen.evaluation import evaluator
from lengthgen.evaluation.evaluator import EvalRow, Kept
from lengthgen.evaluation.protocols import Evaluation, TimeLimit
from lengthgen.evaluation.validation import validator
from lengthgen.experiment import Experiment, Opened
from lengthgen.model.trial import try_out
from lengthgen.runs import checkpoints, devices, directory, signals, status
from lengthgen.runs.distributed import Ranks
from lengthgen.terminal import Progress
from lengthgen.training import init_from
from lengthgen.training import trainer as training
from lengthgen.training.step import fresh_state


def train(experiment: Experiment) -> list[EvalRow]:
    """Trains and evaluates as the rank that the environment names; returns what it measures.

    Raises UserError for what the user can fix, and Stopped if a signal requested the end.
    """
    ranks = Ranks.from_env()
    device = devices.device_of(experiment.config.runtime, ranks)
    with ranks.connected(device.type), Progress(is_main=ranks.is_main) as show:
        return train_and_evaluate(experiment, ranks=ranks, show=show)


def evaluate(
    experiment: Experiment,
    run_dir: Path,
    *,
    ranks: Ranks,
    show: Progress,
    opened: Opened | None = None,
    kept: Kept = (),
    limit: TimeLimit | None = None,
) -> list[EvalRow]:
    """Computes the cells of the experiment that a run lacks, and returns the rows of all.

    Under a time limit, those that fit. Raises Refused if the run has no checkpoint or a length that
    no document has.
    """

    def opening() -> Evaluation:
        read = opened or experiment.opened(run_dir, say=show.say)
        return read.trained(ranks=ranks, show=show)

    return evaluator.evaluate(opening, ranks, kept=kept, limit=limit)


def evaluate_runs(
    run_dirs: Sequence[Path],
    experiments: Sequence[Experiment],
    *,
    kept: Kept = (),
    limit: TimeLimit | None = None,
) -> list[tuple[Path, Experiment, list[EvalRow]]]:
    """Adds what is missing of the curves of runs; returns those that are evaluated, and rows.

    The rows are those that an experiment asks for, whether they were there or not, also of the
    `kept` checkpoints. Of several runs, one that is refused is named in a line and left out.
    """
    ranks = Ranks.from_env()
    device = devices.device_of(experiments[0].config.runtime, ranks)
    evaluated: list[tuple[Path, Experiment, list[EvalRow]]] = []
    with ranks.connected(device.type), Progress(is_main=ranks.is_main) as show:
        for experiment, run_dir in zip(experiments, run_dirs, strict=True):
            before = _n_bytes(run_dir)
            try:
                rows = evaluate(experiment, run_dir, ranks=ranks, show=show, kept=kept, limit=limit)
            except Refused as error:
                if len(run_dirs) == 1:
                    raise
                show.say(f"{run_dir} is not evaluated: {error}")
                continue
            evaluated.append((run_dir, experiment, rows))
            if ranks.is_main and _n_bytes(run_dir) > before:
                tracking.show_results(experiment.config, run_dir, say=show.say)
    return evaluated


def _n_bytes(run_dir: Path) -> int:
    """Returns the size of all rows of a run."""
    return sum(file.stat().st_size for file in run_dir.glob("*.jsonl"))


@signals.interruptible()
def train_and_evaluate(experiment: Experiment, *, ranks: Ranks, show: Progress) -> list[EvalRow]:
    """Trains to the budget, resuming what is there, evaluates, and shows all of it in W&B.

    Returns the rows that are asked for. The run directory is made after the model has run once and
    has its first weights.
    """
    config, objective, run_dir = experiment.config, experiment.objective, experiment.run_dir
    code = experiment.scheme.code
    device = devices.device_of(config.runtime, ranks)
    devices.prepare(config.runtime, device)
    for line in filter(None, (experiment.begun_elsewhere, experiment.ends_within_T)):
        show.say(line)
    opened = experiment.opened(say=show.say)
    corpus = opened.corpus
    trained = ranks.gather(ranks.is_main and checkpoints.has_final(config))[0]
    model = None if trained else experiment.create(vocab_size=corpus.vocab_size)
    if model is not None:
        try_out(model, config, experiment.evaluated_variants)
        init = config.train.init_from
        if isinstance(init, InitFrom) and not status.checkpoint_folders(run_dir):
            init_from.load_weights(model, init, corpus, say=show.say)
    evaluated = trained and status.read_status(run_dir, run=config.run_id).evaluated
    with ExitStack() as stack:
        if ranks.is_main:
            stack.enter_context(status.run_lock(run_dir, "train"))
            ids = {"run": config.run_id, "evaluation_id": config.evaluation_id}
            stack.enter_context(status.record_status(run_dir, **ids))
            directory.write_config(config, run_dir, experiment.plugins)
            if model is not None:
                weights = dict(model.named_parameters())
                directory.write_provenance(
                    run_dir, corpus, run=config.run_id, weights=weights, code=code
                )
            directory.say_edited(run_dir, code, run=config.run_id, say=show.say)
        stack.enter_context(ranks.together())
        ranks.barrier()
        # An agent of a W&B sweep waits for what is done too.
        is_done = evaluated == config.evaluation_id and "WANDB_SWEEP_ID" not in os.environ
        shown = tracking.views(config, run_dir, say=show.say, is_done=is_done)
        views = [stack.enter_context(view) for view in shown if ranks.is_main]
        if model is not None:

            def log(row: Mapping[str, Any]) -> None:
                for view in views:
                    view.row(row)

            state = fresh_state(config, objective, model, device=device)
            validate = validator(config, objective, opened.plan, ranks=ranks)
            training.train(state, corpus, ranks=ranks, show=show, log=log, validate=validate)
        rows = evaluate(experiment, run_dir, ranks=ranks, show=show, opened=opened)
        for view in views:
            view.results()
    return rows
