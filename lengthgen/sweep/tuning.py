"""One learning rate for each scheme: a grid of them, and the one of least loss at T."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from lengthgen.config import conf
from lengthgen.config.drafts import Rates
from lengthgen.config.overrides import overrides_of
from lengthgen.config.sections import validate
from lengthgen.errors import Say, UserError
from lengthgen.evaluation.stored import loss, stored
from lengthgen.files import replace_file
from lengthgen.report import tables
from lengthgen.sweep import grid
from lengthgen.sweep.grid import Point

RATES = ("train.lr", "train.scheme_lr_ratio")
AXES = ("scheme", *RATES, "seed")
# Documents need T tokens, and nothing but the loss at T is measured.
FIXED = {
    "corpus.held_out": "tuning",
    "eval.protocols": "[]",  # the one of the architecture
    "eval.lengths": "[${train.length}]",
    "eval.max_context": "${train.length}",
    "eval.variants": "[]",
    "eval.reference_variants": "[]",
}
FILE = "tuned.yaml"
HEADING = "# The rates that lengthgen tune chose; train.tuned=FILE gives each scheme its own.\n"


def tuning_points(
    overrides: Sequence[str],
    *,
    out: Path,
    config_dir: Path | None,
    plugins: Sequence[Path],
    say: Say,
) -> list[Point]:
    """Returns the points of the grid, on the tuning split; runs lie in OUT/runs by default.

    Raises UserError as sweep.grid.points does, and for a grid that is not one of rates alone.
    """
    _earlier(out)  # refused before anything is trained
    root = overrides_of({"runtime.root": out / "runs"})
    combined = [*root, *on_tuning_split(overrides, say=say)]
    every = grid.points(combined, config_dir=config_dir, plugins=plugins)
    varied = every[0].varied
    for key in varied:
        if key not in AXES:
            raise UserError(f"{key}: rates are chosen for one value of it; give each its own --out")
    if not set(RATES) & set(varied):
        raise UserError("train.lr: one value leaves no choice; give train.lr=5e-3,1e-2,2e-2")
    # Without those whose ratio is the rate of no parameters.
    distinct = {training_of(point): point for point in reversed(every)}
    return [*reversed(distinct.values())]


def on_tuning_split(overrides: Sequence[str], *, say: Say) -> list[str]:
    """Returns the overrides with those of a run that measures the loss at T on the tuning split.

    What others of them say of these keys is left out, and named: train may share the overrides.
    """
    set_here = (*FIXED, "train.tuned")
    left = [word for word in overrides if word.partition("=")[0].lstrip("+") in set_here]
    if left:
        say(f"ignored, since the loss at T of the tuning split is measured: {' '.join(left)}")
    kept = [word for word in overrides if word not in left]
    if any(word.startswith("eval=") for word in kept):
        say("of eval=NAME, targets and precision are taken; T alone is measured, at 128 endpoints")
    return ["eval.endpoints=128", *kept, *(f"{key}={value}" for key, value in FIXED.items())]


def training_of(point: Point) -> str:
    """Returns the run id, that of all ratios if the scheme has no parameters, whose rate it is."""
    train = point.config.train.model_copy(update={"scheme_lr_ratio": _rates(point)[1]})
    return point.config.model_copy(update={"train": train}).run_id


def _rates(point: Point) -> tuple[float, float | None]:
    """Returns lr and scheme_lr_ratio; the latter is None if the scheme has no parameters."""
    config = point.config
    learns = any(True for _ in point.experiment.scheme.build().parameters())
    return config.train.lr, config.scheme_lr_ratio if learns else None


def write_rates(points: Sequence[Point], out: Path) -> list[Path]:
    """Chooses the rates of points that are evaluated or diverged; writes table and rates into OUT.

    Rates of other schemes in tuned.yaml stay. Raises UserError, after that, for schemes of which
    every rate diverged.
    """
    chosen = _earlier(out)
    diverged: list[str] = []
    for name in dict.fromkeys(point.config.scheme.name for point in points):
        if choice := _choice([p for p in points if p.config.scheme.name == name]):
            chosen[name] = choice
        else:
            diverged.append(name)
    if chosen:
        text = yaml.safe_dump(chosen, sort_keys=False, default_flow_style=None)
        replace_file(out / "table.md", tables.markdown(tables.rates(chosen)).encode())
        replace_file(out / FILE, (HEADING + text).encode())
    if diverged:
        names = ",".join(diverged)
        raise UserError(f"scheme={names}: every rate of the grid diverged; give lower ones")
    return [out / "table.md", out / FILE]


def _earlier(out: Path) -> dict[str, Any]:
    """Returns the entries of tuned.yaml. Raises UserError for one that train.tuned cannot take."""
    plain = conf.read_yaml(out / FILE) if (out / FILE).exists() else {}
    validate(dict[str, Rates], plain, where=f"{out / FILE}: ")
    return plain


def _choice(points: Sequence[Point]) -> dict[str, Any] | None:
    """Returns the rates of least mean loss over seeds of a scheme; of equal ones the first.

    `grid` holds the losses at T of each seed in nats per token, null where one diverged. None if
    all did.
    """
    losses: dict[tuple[float, float | None], list[Any]] = {}
    for point in points:
        loss = loss_at_t(point)
        losses.setdefault(_rates(point), []).append(None if loss == math.inf else loss)
    finite = {r: math.fsum(each) / len(each) for r, each in losses.items() if None not in each}
    if not finite:
        return None
    (lr, ratio), config = min(finite, key=finite.__getitem__), points[0].config
    cells = [{"lr": lr, "scheme_lr_ratio": r, "losses": each} for (lr, r), each in losses.items()]
    return {
        **{"lr": lr, "scheme_lr_ratio": ratio},
        **{"model": config.model.label, "corpus": config.corpus.name},
        **config.train.model_dump(include={"length", "tokens", "batch_tokens"}),
        "seeds": [*dict.fromkeys(point.config.seed for point in points)],
        "grid": cells,
    }


def loss_at_t(point: Point) -> float:
    """Returns the loss at T in nats per token, infinite if the point diverged."""
    wanted = point.config.eval
    keys = ("variant", "length", "protocol", "precision")
    asked = (None, point.config.train.length, wanted.protocols[0], wanted.precision)
    rows = [r for r in stored(point.run_dir, run=point.run_id) if tuple(map(r.get, keys)) == asked]
    at_t = loss([row for row in rows if row["targets"] in (None, wanted.targets)])
    return math.inf if at_t is None else at_t
