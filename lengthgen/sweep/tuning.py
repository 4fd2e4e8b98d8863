"""One learning rate for each scheme: a grid of them, and the one of least loss at T."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from lengthgen.config import compose
from lengthgen.errors import UserError
from lengthgen.evaluation.rows import loss, stored
from lengthgen.files import replace_file
from lengthgen.model.transformer import build_scheme
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


def points(
    overrides: Sequence[str], *, out: Path, config_dir: Path | None, plugins: Sequence[Path]
) -> list[Point]:
    """Returns the points of the grid, on the tuning split; runs lie in OUT/runs by default.

    Raises UserError as sweep.grid.points does, and for a grid that is not one of rates alone.
    """
    root = str(out / "runs").replace("'", "\\'")
    combined = [f"runtime.root='{root}'", *on_tuning_split(overrides)]
    every = grid.points(combined, config_dir=config_dir, plugins=plugins)
    varied = every[0].varied
    for key in varied:
        if key not in AXES:
            raise UserError(f"{key}: rates are chosen for one value of it; give each its own --out")
    if not set(RATES) & set(varied):
        raise UserError("train.lr: one value leaves no choice; give train.lr=1e-3,2e-3,4e-3")
    # Without those whose ratio is the rate of no parameters.
    distinct = {(p.config.scheme.name, *_rates(p), p.config.seed): p for p in reversed(every)}
    return [*reversed(distinct.values())]


def on_tuning_split(overrides: Sequence[str]) -> list[str]:
    """Returns the overrides with those of a run that measures the loss at T on the tuning split.

    Raises UserError if one of them sets what these set.
    """
    for word in overrides:
        if word.partition("=")[0].lstrip("+") in (*FIXED, "train.tuned"):
            raise UserError(f"{word}: a choice by the loss at T sets this key itself; drop it")
    return ["eval.endpoints=128", *overrides, *(f"{key}={value}" for key, value in FIXED.items())]


def _rates(point: Point) -> tuple[float, float | None]:
    """Returns lr and scheme_lr_ratio; the latter is None if the scheme has no parameters."""
    config = point.config
    scheme = build_scheme(config, config.scheme.parts, where="scheme.parts")
    learns = any(True for _ in scheme.parameters())
    return config.train.lr, config.scheme_lr_ratio if learns else None


def write(points: Sequence[Point], out: Path) -> list[Path]:
    """Chooses the rates of points that are evaluated or diverged; writes table and rates into OUT.

    Rates of other schemes in tuned.yaml stay.
    """
    chosen = compose.read(out / FILE) if (out / FILE).exists() else {}
    for name in dict.fromkeys(point.config.scheme.name for point in points):
        chosen[name] = _choice([point for point in points if point.config.scheme.name == name])
    table = tables.rates(chosen)
    text = yaml.safe_dump(chosen, sort_keys=False, default_flow_style=None)
    replace_file(out / "table.md", tables.markdown(table).encode())
    replace_file(out / FILE, (HEADING + text).encode())
    return [out / "table.md", out / FILE]


def _choice(points: Sequence[Point]) -> dict[str, Any]:
    """Returns the rates of least mean loss over seeds of a scheme; of equal ones the first.

    `grid` holds the losses at T of each seed in nats per token; null where one diverged. Raises
    UserError if all did.
    """
    cells: dict[tuple[float, float | None], list[Point]] = {}
    for point in points:
        cells.setdefault(_rates(point), []).append(point)
    losses = {rates: [loss_at_t(point) for point in repeats] for rates, repeats in cells.items()}
    best = min(losses, key=lambda rates: math.fsum(losses[rates]) / len(losses[rates]))
    first = cells[best][0]
    if math.inf in losses[best]:
        name = first.config.scheme.name
        raise UserError(f"scheme={name}: every rate of the grid diverged; give lower ones")
    return {
        **dict(zip(("lr", "scheme_lr_ratio"), best, strict=True)),
        "model": first.config.model.label,
        "corpus": first.config.corpus.name,
        "fingerprint": stored(first.run_dir, run=first.run_id)[0]["fingerprint"][:12],
        **first.config.train.model_dump(include={"length", "tokens", "batch_tokens"}),
        "seeds": [point.config.seed for point in cells[best]],
        "grid": [
            {"lr": lr, "scheme_lr_ratio": r, "losses": [None if x == math.inf else x for x in xs]}
            for (lr, r), xs in losses.items()
        ],
    }


def loss_at_t(point: Point) -> float:
    """Returns the loss at T in nats per token, infinite if the point diverged."""
    asked = (None, point.config.train.length, point.config.eval.protocols[0])
    rows = stored(point.run_dir, run=point.run_id)
    at_t = loss([r for r in rows if (r["variant"], r["length"], r["protocol"]) == asked])
    return math.inf if at_t is None else at_t
