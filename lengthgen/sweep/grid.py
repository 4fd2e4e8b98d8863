"""The points of a sweep: the grid that overrides span, and how each of its runs stands."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from lengthgen import pipeline
from lengthgen.config import compose
from lengthgen.config.schema import Config, from_overrides
from lengthgen.errors import UserError
from lengthgen.runs import status
from lengthgen.sweep import slurm

State = Literal["done", "diverged", "failed", "killed", "stopped", "running", "queued", "new"]
SETTLED = ("done", "diverged")  # running such a point again would end in the same way
BUSY = ("queued", "running")  # in another process
FAILED = ("failed", "diverged", "killed", "stopped")  # was tried and did not end well


class PointState(NamedTuple):
    """new: nothing is there; queued: its Slurm job waits; the others are those of the run."""

    state: State
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run of a sweep: the arguments of its `lengthgen train`, and the configuration of that.

    `varied` holds the keys in which the sweep's points differ, with this point's values.
    """

    arguments: list[str]
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
    grid = compose.expand(overrides, config_dir=config_dir)
    differs = [len(set(values)) > 1 for values in zip(*grid, strict=True)]
    runs: dict[Path, Point] = {}
    for chosen in grid:
        swept = [override for override, varies in zip(chosen, differs, strict=True) if varies]
        try:
            config = from_overrides(chosen, config_dir=config_dir, plugins=plugins)
            config = pipeline.validate(config)
        except UserError as error:
            named = not swept or str(error).startswith(tuple(swept))
            raise UserError(str(error) if named else f"{' '.join(swept)}: {error}") from None
        words = train_arguments(chosen, config_dir=config_dir, plugins=plugins)
        varied = dict(word.split("=", 1) for word in swept)
        point = Point(arguments=words, varied=varied, config=config)
        other = runs.setdefault(point.run_dir, point)
        if other is not point:
            raise UserError(
                f"{other.title} and {point.title} are one run, {point.run_id}: give each value "
                "once, and sweep keys that change the training"
            )
    return list(runs.values())


def states_of(points: Sequence[Point]) -> dict[str, PointState]:
    """Returns the state of each point, by run id.

    A point whose job waits or runs is queued or running whatever its run directory shows, since
    locks do not reach across the nodes of every cluster.
    """
    files = {p.run_id: p.run_dir / "slurm.json" for p in points}
    jobs = {id: json.loads(file.read_text()) for id, file in files.items() if file.is_file()}
    queue = slurm.queue(job["id"] for job in jobs.values())
    states = {p.run_id: state_of(p) for p in points}
    for run_id, job in jobs.items():
        state, reason = queue.get(job["id"], ("", ""))
        if state and states[run_id].state not in SETTLED:
            waits, runs = PointState("queued", reason), PointState("running", f"job {job['id']}")
            states[run_id] = runs if state == "RUNNING" else waits
        elif states[run_id].state == "new":
            ended = f"job {job['id']} ended before the run began; see {job['log']}"
            states[run_id] = PointState("failed", ended)
    return states


def state_of(point: Point) -> PointState:
    """Returns the state of a point by its run directory alone."""
    if not (point.run_dir / "config.yaml").exists():
        return PointState("new")
    run = status.read_status(point.run_dir, run=point.run_id)
    if run.state == "done" and run.evaluated != point.config.evaluation_id:
        return PointState("stopped", "its curve is to be measured as requested")
    if run.state == "running" and run.pid is not None:
        return PointState("running", f"process {run.pid} on {run.host}")
    return PointState(run.state, run.reason)


def pending(points: Sequence[Point], states: Mapping[str, PointState]) -> list[Point]:
    """Returns the points that are to be run; `states` is by run id."""
    return [p for p in points if states[p.run_id].state not in (*SETTLED, *BUSY)]


def counted(states: Mapping[str, PointState]) -> str:
    """Returns "3 done, 1 failed, 4 new", in the order of a point's life from its end."""
    every = [point.state for point in states.values()]
    return ", ".join(f"{every.count(s)} {s}" for s in get_args(State) if s in every)
