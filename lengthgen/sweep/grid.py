"""The points of a sweep: the grid that overrides span."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lengthgen.config import study
from lengthgen.config.schema import Config
from lengthgen.errors import UserError
from lengthgen.experiment import Experiment, resolve


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run of a sweep: the arguments of its `lengthgen train`, and the experiment of that.

    `varied` holds the keys in which the sweep's points differ, with this point's values: an empty
    one where only other blocks of a study set the key.
    """

    arguments: list[str]
    varied: dict[str, str]
    experiment: Experiment

    @property
    def config(self) -> Config:
        return self.experiment.config

    @property
    def run_id(self) -> str:
        return self.config.run_id

    @property
    def run_dir(self) -> Path:
        return self.config.run_dir

    @property
    def title(self) -> str:
        """The swept values; the run's name if there are none."""
        return " ".join(f"{k}={v}" for k, v in self.varied.items() if v) or self.run_id

    @property
    def submission(self) -> list[str]:
        """The arguments of a process that begins later, and trains this run or none."""
        return [*self.arguments, "--submitted", self.run_id]

    @property
    def command(self) -> str:
        """The line that repeats a point alone."""
        return shlex.join(["lengthgen", *self.arguments])


def train_arguments(
    overrides: Sequence[str], *, config_dir: Path | None, plugins: Sequence[Path]
) -> list[str]:
    """Returns the arguments of the lengthgen train of a configuration, from any folder."""
    options = [] if config_dir is None else ["--config-dir", str(config_dir.absolute())]
    options += [word for path in plugins for word in ("--plugin", str(path.absolute()))]
    return ["train", *overrides, *options]


def points(
    overrides: Sequence[str], *, config_dir: Path | None, plugins: Sequence[Path]
) -> list[Point]:
    """Returns the points of a grid, the last override varying fastest.

    Raises UserError, before any point is run, if one of them is no valid configuration, or if two
    would be the same run.
    """
    grid = study.expand_study(overrides, config_dir=config_dir)
    values = [{k: v for k, _, v in (word.partition("=") for word in words)} for words in grid]
    keys = dict.fromkeys(key for point in values for key in point)
    differs = [key for key in keys if len({point.get(key) for point in values}) > 1]
    runs: dict[str, Point] = {}
    for chosen, given in zip(grid, values, strict=True):
        swept = [f"{key}={given[key]}" for key in differs if key in given]
        try:
            experiment = resolve(chosen, config_dir=config_dir, plugins=plugins)
        except UserError as error:
            named = not swept or str(error).startswith(tuple(swept))
            raise UserError(str(error) if named else f"{' '.join(swept)}: {error}") from None
        words = train_arguments(chosen, config_dir=config_dir, plugins=plugins)
        varied = {key: given.get(key, "") for key in differs}
        point = Point(arguments=words, varied=varied, experiment=experiment)
        other = runs.setdefault(point.run_id, point)
        if other is not point:
            raise UserError(
                f"{other.title} and {point.title} are one run, {point.run_id}: give each value "
                "once, and sweep keys that change the training"
            )
    return list(runs.values())
