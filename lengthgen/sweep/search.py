"""A search over a space of overrides by Optuna: the least loss at T on the tuning split."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lengthgen.config.overrides import Axis, search_axes
from lengthgen.config.sections import number
from lengthgen.errors import Say, UserError
from lengthgen.sweep import grid, tuning
from lengthgen.sweep.grid import Point
from lengthgen.sweep.states import SETTLED, PointState

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


REPEATS = 50  # draws in a row, for each point that was tried, which bring no other: there is none


class Trial(NamedTuple):
    """A point, how its run ended, and its loss at T in nats per token: infinite if it diverged."""

    point: Point
    state: PointState
    loss: float


def search(
    overrides: Sequence[str],
    n: int,
    *,
    jobs: int,
    run: Callable[[list[Point]], Mapping[str, PointState]],
    config_dir: Path | None,
    plugins: Sequence[Path],
    say: Say,
) -> list[Trial]:
    """Returns n trials, the best one first; fewer if a run fails, or if there are no more points.

    A training is tried once: where the sampler repeats itself, one of the others is drawn.

    `run` is given `jobs` points at a time. A trial is a function of the losses before it, and runs
    that are done are not repeated: rerun to resume, with a larger n to add trials.
    """
    try:
        import optuna
    except ImportError:
        raise UserError('--search needs optuna; pip install "lengthgen[search]"') from None
    fixed, given = search_axes(overrides, config_dir=config_dir)
    axes = [axis._replace(values=[*{number(x): x for x in axis.values}.values()]) for axis in given]
    if not axes:
        raise UserError("--search: no key has several values; give 'train.lr=interval(1e-3,1e-2)'")
    words = tuning.on_tuning_split(fixed, say=say)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=0)
    study = optuna.create_study(sampler=sampler)
    space, trials = {axis.key: _distribution(axis) for axis in axes}, list[Trial]()
    others, tried = optuna.samplers.RandomSampler(seed=0), list[dict[str, Any]]()
    known = set[str]()

    def point_of(values: Mapping[str, Any]) -> Point:
        chosen = [f"{key}={value}" for key, value in values.items()]
        [point] = grid.points([*words, *chosen], config_dir=config_dir, plugins=plugins)
        return replace(point, varied={key: str(value) for key, value in values.items()})

    ends: dict[str, Sequence[Any]] = {a.key: a.values or (a.low, a.high) for a in axes}
    first = {key: values[0] for key, values in ends.items()}
    point_of(first)  # what is refused is so before anything is run
    for key, values in ends.items():
        for value in values[1:]:
            point_of(first | {key: value})

    def ask() -> Iterator[tuple[optuna.Trial, Point]]:
        repeats = 0
        while repeats <= REPEATS * len(tried):
            trial = study.ask(space)
            repeats += 1
            if trial.params not in tried:
                tried.append(trial.params)
                repeats = 0
                point = point_of(trial.params)
                if (training := tuning.training_of(point)) not in known:
                    known.add(training)
                    study.sampler = sampler
                    yield trial, point
                    continue
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            study.sampler = others

    new = ask()
    while all(trial.state.state in SETTLED for trial in trials):
        if not (asked := [*islice(new, min(jobs, n - len(trials)))]):
            break
        states = run([point for _, point in asked])
        for trial, point in asked:
            state = states[point.run_id]
            loss = tuning.loss_at_t(point) if state.state == "done" else math.inf
            study.tell(trial, loss)
            trials.append(Trial(point, state, loss))
    return sorted(trials, key=lambda trial: trial.loss)


def _distribution(axis: Axis) -> "BaseDistribution":
    """Returns Optuna's distribution of an axis; that of whole numbers if its bounds are.

    Raises UserError for bounds that it cannot have.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if axis.values:
        return CategoricalDistribution(axis.values)
    bounds: dict[str, Any] = {"low": axis.low, "high": axis.high, "log": axis.log}
    is_whole = isinstance(axis.low, int) and isinstance(axis.high, int)
    try:
        return IntDistribution(**bounds) if is_whole else FloatDistribution(**bounds)
    except ValueError as error:
        remedy = "give interval(a,b) with a below b, and above 0 in tag(log,...)"
        raise UserError(f"{axis.key}: {str(error).rstrip('.')}; {remedy}") from None
