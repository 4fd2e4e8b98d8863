"""One learning rate for each scheme: a grid of them, and the one of least loss at T."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import yaml

from lengthgen.config import tuned_rates
from lengthgen.config.schema import Config
from lengthgen.config.tuned_rates import Trial, Tuned
from lengthgen.errors import UserError
from lengthgen.evaluation.rows import stored
from lengthgen.files import replace_file
from lengthgen.model.build import on_meta
from lengthgen.model.transformer import build_scheme
from lengthgen.report import curve_tables, tables
from lengthgen.sweep import grid, states
from lengthgen.sweep.grid import Point

AXES = ("scheme", *tuned_rates.KEYS, "seed")
USUAL = ["eval.endpoints=128"]
# Documents need T tokens, and nothing but the loss at T is measured.
FIXED = {
    "corpus.held_out": "tuning",
    "eval.protocols": "[]",  # the one of the architecture
    "eval.lengths": "[${train.length}]",
    "eval.reach": "${train.length}",
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
    for word in overrides:
        if word.partition("=")[0].lstrip("+") in (*FIXED, "train.tuned"):
            raise UserError(f"{word}: lengthgen tune sets this key itself; drop it")
    root = str(out / "runs").replace("'", "\\'")
    combined = [
        f"runtime.root='{root}'",
        *USUAL,
        *overrides,
        *(f"{k}={v}" for k, v in FIXED.items()),
    ]
    every = grid.points(combined, config_dir=config_dir, plugins=plugins)
    varied = every[0].varied
    for key in varied:
        if key not in AXES:
            raise UserError(f"{key}: rates are chosen for one value of it; give each its own --out")
    if not set(tuned_rates.KEYS) & set(varied):
        raise UserError("train.lr: one value leaves no choice; give train.lr=1e-3,2e-3,4e-3")
    distinct: dict[object, Point] = {}  # less those whose ratio is the rate of no parameters
    for point in every:
        key = (point.config.scheme.name, *_rates(point), point.config.seed)
        distinct.setdefault(key, point)
    _refuse_mixing(_kept(out, every), every[0].config, out)
    return list(distinct.values())


def _rates(point: Point) -> tuple[float, float | None]:
    """Returns lr and scheme_lr_ratio; the latter is None if the scheme has no parameters."""
    config = point.config
    with on_meta():
        scheme = build_scheme(config, config.scheme.parts, where="scheme.parts")
    learns = any(True for _ in scheme.parameters())
    return config.train.lr, config.scheme_lr_ratio if learns else None


def _kept(out: Path, points: Sequence[Point]) -> dict[str, Tuned]:
    """Returns what OUT/tuned.yaml holds of other schemes than those of the points."""
    known = tuned_rates.read(out / FILE) if (out / FILE).exists() else {}
    names = {point.config.scheme.name for point in points}
    return {name: tuned for name, tuned in known.items() if name not in names}


def _refuse_mixing(others: Mapping[str, Tuned], config: Config, out: Path) -> None:
    """Raises UserError if rates of another training would stand next to those to be chosen."""
    train = config.train
    ours = (config.model.label, config.corpus.name, train.length, train.tokens, train.batch_tokens)
    for name, tuned in others.items():
        theirs = (tuned.model, tuned.corpus, tuned.length, tuned.tokens, tuned.batch_tokens)
        if theirs != ours:
            raise UserError(
                f"--out: {out / FILE} holds the rate of {name} for another model, corpus, length "
                "or budget; give another --out, or tune its schemes again too"
            )


def measured(
    points: Sequence[Point], *, say: Callable[[str], None]
) -> list[tuple[Point, float | None]]:
    """Returns the loss at T of the points of each scheme all of which have one or diverged (None).

    Names the other schemes. Raises UserError if that leaves none.
    """
    losses: list[tuple[Point, float | None]] = []
    unmeasured: dict[str, UserError] = {}  # by scheme
    for point in points:
        try:
            losses.append((point, _loss(point)))
        except UserError as error:
            unmeasured.setdefault(point.config.scheme.name, error)
    kept = [(p, loss) for p, loss in losses if p.config.scheme.name not in unmeasured]
    if not kept:
        raise next(iter(unmeasured.values()))
    for name, error in unmeasured.items():
        say(f"scheme={name} is not tuned: {error}")
    return kept


def _loss(point: Point) -> float | None:
    """Returns the loss at T in nats per token, None if the point diverged.

    Raises UserError if it is neither measured nor diverged.
    """
    config = point.config
    asked = (None, config.train.length, config.eval.protocols[0])
    rows = [
        row
        for row in stored(point.run_dir, run=point.run_id)
        if (row["variant"], row["length"], row["protocol"]) == asked
    ]
    rows = {row["document"]: row for row in rows if row["endpoints"] == rows[-1]["endpoints"]}
    nats = [math.nan if row["nats"] is None else row["nats"] for row in rows.values()]
    if rows and math.isfinite(sum(nats)):
        return math.fsum(nats) / sum(row["n_tokens"] for row in rows.values())
    if rows or states.state_of(point).state == "diverged":
        return None
    raise UserError(f"no evaluation in {point.run_dir}; lengthgen eval makes it")


def write(losses: Sequence[tuple[Point, float | None]], out: Path) -> list[Path]:
    """Chooses the rates by the losses of points, as `measured` returns them; writes them into OUT.

    Rates of other schemes in tuned.yaml stay. Raises UserError for a scheme all of whose points
    diverged.
    """
    tuned = _kept(out, [point for point, _ in losses]) | choose(losses)
    table = curve_tables.rates(list(tuned.items()), untuned={})
    assert table is not None
    plain = {name: rates.model_dump(mode="json") for name, rates in tuned.items()}
    files = {
        "table.md": tables.markdown(table),
        FILE: HEADING + yaml.safe_dump(plain, sort_keys=False, default_flow_style=None),
    }
    for name, content in files.items():
        replace_file(out / name, content.encode())
    return [out / name for name in files]


def choose(losses: Sequence[tuple[Point, float | None]]) -> dict[str, Tuned]:
    """Returns the rates of least mean loss over seeds, by scheme; of equal ones the first."""
    grids: dict[str, dict[tuple[float, float | None], list[tuple[Point, float | None]]]] = {}
    for point, loss in losses:
        cells = grids.setdefault(point.config.scheme.name, {})
        cells.setdefault(_rates(point), []).append((point, loss))
    chosen: dict[str, Tuned] = {}
    for name, cells in grids.items():
        trials = [
            Trial(lr=lr, scheme_lr_ratio=ratio, losses=[loss for _, loss in repeats])
            for (lr, ratio), repeats in cells.items()
        ]
        best = min(trials, key=lambda trial: trial.loss)
        if math.isinf(best.loss):
            raise UserError(f"scheme={name}: every rate of the grid diverged; give lower ones")
        repeats = [point for point, _ in cells[best.lr, best.scheme_lr_ratio]]
        config = repeats[0].config
        chosen[name] = Tuned(
            lr=best.lr,
            scheme_lr_ratio=best.scheme_lr_ratio,
            model=config.model.label,
            corpus=config.corpus.name,
            fingerprint=stored(repeats[0].run_dir, run=config.run_id)[0]["fingerprint"][:12],
            length=config.train.length,
            tokens=config.train.tokens,
            batch_tokens=config.train.batch_tokens,
            seeds=[point.config.seed for point in repeats],
            grid=trials,
        )
    return chosen
