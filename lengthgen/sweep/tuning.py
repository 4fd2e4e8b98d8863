"""One learning rate for each scheme: a grid of them, and the one of least loss at T."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lengthgen.config import compose
from lengthgen.errors import UserError
from lengthgen.evaluation.rows import loss, stored
from lengthgen.files import replace_file
from lengthgen.model.transformer import build_scheme
from lengthgen.report import tables
from lengthgen.runs import directory
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
    root = compose.overrides_of({"runtime.root": out / "runs"})
    combined = [*root, *on_tuning_split(overrides)]
    every = grid.points(combined, config_dir=config_dir, plugins=plugins)
    varied = every[0].varied
    for key in varied:
        if key not in AXES:
            raise UserError(f"{key}: rates are chosen for one value of it; give each its own --out")
    names = {point.config.scheme.name for point in every}
    if not set(RATES) & set(varied) and not names <= _tuned(out).keys():
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


def write(points: Sequence[Point], out: Path, *, say: Callable[[str], None]) -> list[Path]:
    """Chooses the rates of points that are evaluated or diverged; writes table and rates into OUT.

    Rates of other schemes in tuned.yaml stay, and so do the losses of earlier grids. Raises
    UserError, after that, for schemes of which every rate diverged, or whose only rate would
    replace those of another training.
    """
    chosen, diverged, single = _tuned(out), list[str](), list[str]()
    for name in dict.fromkeys(point.config.scheme.name for point in points):
        own, before = [p for p in points if p.config.scheme.name == name], chosen.get(name, {})
        about = _about(own)
        is_same = about.items() <= before.items()
        if before and not is_same and not set(RATES) & set(own[0].varied):
            single.append(name)
        elif choice := _choice(own, before["grid"] if is_same else []):
            chosen[name] = {**choice, **about, "grid": choice["grid"]}
            if before and not is_same:
                say(f"scheme={name}: {out / FILE} had rates of another training; they are replaced")
        else:
            diverged.append(name)
    if chosen:
        text = yaml.safe_dump(chosen, sort_keys=False, default_flow_style=None)
        replace_file(out / "table.md", tables.markdown(tables.rates(chosen)).encode())
        replace_file(out / FILE, (HEADING + text).encode())
    if single:
        names = ",".join(single)
        raise UserError(
            f"scheme={names}: one value leaves no choice, and {out / FILE} has rates of another "
            "training; give several values, or another --out"
        )
    if diverged:
        names = ",".join(diverged)
        raise UserError(f"scheme={names}: every rate of the grid diverged; give lower ones")
    return [out / "table.md", out / FILE]


def _tuned(out: Path) -> dict[str, Any]:
    """Returns what was chosen before, by scheme."""
    return compose.read(out / FILE) if (out / FILE).exists() else {}


def _about(points: Sequence[Point]) -> dict[str, Any]:
    """Returns what the losses of one scheme share; those of two grids compare if it is the same."""
    config = points[0].config
    unrated = config.train.model_copy(update={"lr": 1.0, "scheme_lr_ratio": 1.0})
    begun = directory.read_provenance(points[0].run_dir, run=points[0].run_id)
    return {
        "model": config.model.label,
        "corpus": config.corpus.name,
        "fingerprint": begun.get("fingerprint", "")[:12],
        **config.train.model_dump(include={"length", "tokens", "batch_tokens"}),
        "recipe": config.model_copy(update={"train": unrated}).recipe,
        "eval": config.eval.model_dump(include={"targets", "endpoints", "precision"}),
        "seeds": [*dict.fromkeys(point.config.seed for point in points)],
    }


def _choice(points: Sequence[Point], before: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Returns the rates of least mean loss over seeds of a scheme; of equal ones the first.

    `grid` holds the losses at T of each seed in nats per token, after those of the grid before;
    null where one diverged. None if all did.
    """
    new: dict[tuple[float, float | None], list[Any]] = {}
    for point in points:
        loss = loss_at_t(point)
        new.setdefault(_rates(point), []).append(None if loss == math.inf else loss)
    losses = {(cell["lr"], cell["scheme_lr_ratio"]): cell["losses"] for cell in before} | new
    finite = {rates: math.fsum(own) / len(own) for rates, own in losses.items() if None not in own}
    if not finite:
        return None
    cells = [{"lr": lr, "scheme_lr_ratio": r, "losses": own} for (lr, r), own in losses.items()]
    lr, ratio = min(finite, key=finite.__getitem__)
    return {"lr": lr, "scheme_lr_ratio": ratio, "grid": cells}


def loss_at_t(point: Point) -> float:
    """Returns the loss at T in nats per token, infinite if the point diverged."""
    wanted = point.config.eval
    keys = ("variant", "length", "protocol", "precision")
    asked = (None, point.config.train.length, wanted.protocols[0], wanted.precision)
    rows = [r for r in stored(point.run_dir, run=point.run_id) if tuple(map(r.get, keys)) == asked]
    at_t = loss([row for row in rows if row["targets"] in (None, wanted.targets)])
    return math.inf if at_t is None else at_t
