"""The points of a sweep: the grid that overrides span, every point composed and checked."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lengthgen import pipeline
from lengthgen.config import compose
from lengthgen.config.schema import Config, from_overrides
from lengthgen.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run of a sweep: what `lengthgen train` is given for it, and the configuration of that.

    `varied` holds the keys in which the sweep's points differ, with this point's values.
    """

    overrides: tuple[str, ...]
    config_dir: Path | None
    plugins: tuple[Path, ...]
    varied: dict[str, str]
    config: Config

    @property
    def run_id(self) -> str:
        return self.config.run_id

    @property
    def run_dir(self) -> Path:
        return self.config.run_dir

    @property
    def title(self) -> str:
        """The swept values; the run's name if there are none."""
        return " ".join(f"{k}={v}" for k, v in self.varied.items()) or self.run_id

    @property
    def arguments(self) -> list[str]:
        """The arguments of its command; paths in overrides may be relative to this directory."""
        return train_arguments(self.overrides, config_dir=self.config_dir, plugins=self.plugins)

    @property
    def command(self) -> str:
        """The line that a user types to repeat this point alone."""
        return shlex.join(["lengthgen", *self.arguments])


def train_arguments(
    overrides: Sequence[str], *, config_dir: Path | None, plugins: Sequence[Path]
) -> list[str]:
    """Returns the arguments of the lengthgen train of a configuration."""
    options = ["--config-dir", str(config_dir)] if config_dir is not None else []
    options += [word for path in plugins for word in ("--plugin", str(path))]
    return ["train", *overrides, *options]


def points(
    overrides: Sequence[str], *, config_dir: Path | None, plugins: Sequence[Path]
) -> list[Point]:
    """Returns the points of a grid, the last override varying fastest.

    Raises UserError, before any point is run, if one of them is no valid configuration, or if two
    would be the same run.
    """
    config_dir = config_dir.absolute() if config_dir is not None else None
    files = tuple(path.absolute() for path in plugins)
    grid = compose.expand(overrides, config_dir=config_dir)
    differs = [len(set(values)) > 1 for values in zip(*grid, strict=True)]
    runs: dict[Path, Point] = {}
    for chosen in grid:
        swept = [override for override, varies in zip(chosen, differs, strict=True) if varies]
        try:
            config = pipeline.validate(from_overrides(chosen, config_dir=config_dir, plugins=files))
        except UserError as error:
            named = not swept or str(error).startswith(tuple(swept))
            raise UserError(str(error) if named else f"{' '.join(swept)}: {error}") from None
        point = Point(
            overrides=tuple(chosen),
            config_dir=config_dir,
            plugins=files,
            varied=dict(word.split("=", 1) for word in swept),
            config=config,
        )
        other = runs.setdefault(point.run_dir, point)
        if other.title == point.title and other is not point:
            raise UserError(f"{point.title} is there twice; give each value once")
        if other is not point:
            raise UserError(
                f"{other.title} and {point.title} are one run, {point.run_id}: what is measured, "
                "and how, makes no other run; sweep keys that change the training"
            )
    return list(runs.values())
