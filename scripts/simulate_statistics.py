"""Coverage of intervals and error rates of verdicts, ties and ranks, by simulation.

    python scripts/simulate_statistics.py [--out results/statistics] [--scale 1.0]

Writes table.md; minutes on one core. Losses are drawn, not trained: an effect of each
seed, each document and each cell (seed, document), normal, or documents with Student's t of three
degrees of freedom. The functions are those of the report.
"""

import argparse
import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from lengthgen.report.intervals import Estimate, Floats, as_share, compare, gap, ratio
from lengthgen.report.statistics import Word, verdict
from lengthgen.report.tables import Cell, Table, markdown

Rng = np.random.Generator
SHAPES = ("normal", "heavy")
T = 512
LENGTHS = (128, 256, 512, 1024)


def effects(rng: Rng, shape: str, R: int, D: int, *, seed: float, document: float) -> Floats:
    """Returns losses [R, D] of mean 0; the effect of a cell is as large as that of a document."""
    drawn_D = rng.standard_t(3, D) / math.sqrt(3) if shape == "heavy" else rng.normal(size=D)
    seeds_R, cells_RD = rng.normal(size=(R, 1)), rng.normal(size=(R, D))
    return seed * seeds_R + document * (drawn_D[None] + cells_RD) / math.sqrt(2)


def coverage(rng: Rng, n: int) -> Table:
    """How often the 95% interval holds the truth, by the share of seeds in the variance."""
    weights = {"0": 0.0, "1/4": 1 / 3, "1/2": 1.0, "3/4": 3.0, "10/11": 10.0}
    rows: list[list[Cell]] = []
    for shape in SHAPES:
        for R in (1, 2, 3, 5):
            for D in (16, 64, 128):
                rates: list[str] = []
                for weight in weights.values():
                    held, seed = 0, math.sqrt(weight * R / D)
                    for _ in range(n):
                        x_RD = effects(rng, shape, R, D, seed=seed, document=1.0)
                        if R == 1:  # of one checkpoint on other documents
                            x_RD = effects(rng, shape, R, D, seed=0.0, document=1.0)
                        found = ratio(x_RD, np.ones(D))
                        held += found.low <= 0 <= found.high
                    rates.append(_percent(held, n))
                    if R == 1:
                        rates += ["-"] * (len(weights) - 1)
                        break
                rows.append([*map(Cell, (shape, str(R), str(D), *rates))])
    return Table(
        title=f"Coverage of 95% intervals, percent of {n:,} draws each",
        head=["documents", "seeds", "D", *(f"share {share}" for share in weights)],
        rows=rows,
        notes=["Columns: the share of the seeds in the variance of the mean."],
    )


def verdicts(rng: Rng, n: int) -> Table:
    """How often each word is said of a model whose gain and used context are known."""
    models: dict[str, tuple[float, int]] = {
        "G = 0, c* = T": (0.0, T),
        "G = 0, c* = T/4": (0.0, T // 4),
        "G = +0.005": (0.005, T),
        "G = +0.0101": (0.0101, T),
        "G = -0.0101": (-0.0101, T),
        "G = +0.03": (0.03, T),
        "G = -0.03": (-0.03, T),
    }
    words: tuple[Word, ...] = ("uses", "flat", "harmed", "unclear")
    rows: list[list[Cell]] = []
    for shape in SHAPES:
        for R, D in ((1, 64), (2, 64), (3, 16), (3, 64), (3, 128)):
            for name, (gain, c) in models.items():
                said = Counter[Word]()
                for _ in range(n):
                    said[_word(rng, shape, R, D, gain=gain, used=c)] += 1
                rates = [_percent(said[word], n) for word in words]
                rows.append([*map(Cell, (shape, str(R), str(D), name, *rates))])
    return Table(
        title=f"Verdicts at 2T, percent of {n:,} models each",
        head=["documents", "seeds", "D", "truth", *words],
        rows=rows,
        notes=[
            "Paired differences of two lengths vary by 0.03 nats over documents and by 0.001 over "
            "seeds. The loss falls by 0.05 nats with each doubling up to c*. Wrong are: uses and "
            "harmed where G is 0 or of the other sign, flat where |G| is above 0.01."
        ],
    )


def _word(rng: Rng, shape: str, R: int, D: int, *, gain: float, used: int) -> Word:
    def loss(n: int) -> Floats:
        noise = effects(rng, shape, R, D, seed=0.001, document=0.03) / math.sqrt(2)
        return 3 + noise - 0.05 * math.log2(min(n, used)) - gain * (n > T)

    losses = {n: loss(n) for n in LENGTHS}
    return verdict(gap(losses[T], losses[2 * T], np.ones(D)))


def family(rng: Rng, tables: Callable[[int], int]) -> Table:
    """How often equal series are told apart, in tables of 2 to 30 of them."""
    spreads: dict[str, Callable[[int], Sequence[float]]] = {
        "alike": lambda k: [1.0] * k,
        "one x 10": lambda k: [10.0] + [1.0] * (k - 1),
        "half x 5": lambda k: [5.0] * (k // 2) + [1.0] * (k - k // 2),
    }
    rows: list[list[Cell]] = []
    for shape in SHAPES:
        for k in (2, 6, 12, 30):
            for R in (2, 3, 5):
                rates: list[str] = []
                for spread in spreads.values():
                    n, alone, apart = tables(k), 0, 0
                    for _ in range(n):
                        losses, pairs = _table(rng, shape, R, 64, [0.0] * k, spread(k))
                        found = compare(losses, pairs)
                        assert found is not None
                        apart += bool(found.different)
                        alone += any(e.has_sign for pair, e in pairs.items() if found.best in pair)
                    rates += [_percent(apart, n), _percent(alone, n)]
                rows.append([*map(Cell, (shape, str(k), str(R), str(tables(k)), *rates))])
    said = ("joint", "each alone")
    return Table(
        title="Equal series: percent of tables in which any two are told apart",
        head=[
            "documents",
            "series",
            "seeds",
            "tables",
            *(f"{s}: {how}" for s in spreads for how in said),
        ],
        rows=rows,
        notes=[
            "Joint: any two told apart, as the report does it. Each alone: any series called worse "
            "than the best by the interval of its own difference. Columns: seeds of all series "
            "vary alike, those of one ten times as much, those of half of them five times."
        ],
    )


def ranks(rng: Rng, n: int) -> Table:
    """How often all rank intervals of a table hold the truth, and how wide they are."""
    rows: list[list[Cell]] = []
    for shape in SHAPES:
        for R in (2, 3, 5):
            for step in (0.02, 0.1, 0.5):
                held, width = 0, 0
                for _ in range(n):
                    losses, pairs = _table(
                        rng, shape, R, 64, [i * step for i in range(6)], [0.01] * 6, 0.1
                    )
                    found = compare(losses, pairs)
                    assert found is not None
                    bounds = [found.ranks[name] for name in sorted(losses)]
                    held += all(a <= i <= b for i, (a, b) in enumerate(bounds, start=1))
                    width += sum(b - a for a, b in bounds)
                rates = (_percent(held, n), f"{width / (6 * n):.1f}")
                rows.append([*map(Cell, (shape, str(R), f"{step:g}", *rates))])
    return Table(
        title=f"Ranks of six series, equal steps apart, {n:,} tables each",
        head=["documents", "seeds", "step in nats", "all ranks hold (%)", "mean width"],
        rows=rows,
        notes=["Seeds vary by 0.01 nats, documents by 0.1; 64 documents. Width 5: nothing known."],
    )


def accuracies(rng: Rng, n: int) -> Table:
    """How often the interval of a share of right answers holds the truth."""
    shapes = {"all alike": math.inf, "Beta(5, 5)": 5.0, "Beta(2, 2)": 2.0, "Beta(1/2, 1/2)": 0.5}
    rows: list[list[Cell]] = []
    for R in (1, 2, 3, 5):
        rates: list[str] = []
        for beta in shapes.values():
            if R == 1 and math.isfinite(beta):
                rates.append("-")
                continue
            held = 0
            for _ in range(n):
                shares_R1 = np.full((R, 1), 0.5)
                if math.isfinite(beta):
                    shares_R1 = rng.beta(beta, beta, size=(R, 1))
                right_RD = (rng.random((R, 200)) < shares_R1).astype(np.float64)
                found = as_share(ratio(right_RD, np.ones(200)), 200)
                held += found.low <= 0.5 <= found.high
            rates.append(_percent(held, n))
        rows.append([*map(Cell, (str(R), *rates))])
    return Table(
        title=f"Coverage of 95% intervals of accuracies, percent of {n:,} draws each",
        head=["seeds", *shapes],
        rows=rows,
        notes=["200 answers; how often a seed is right is drawn from the distribution."],
    )


def _table(
    rng: Rng,
    shape: str,
    R: int,
    D: int,
    means: Sequence[float],
    seeds: Sequence[float],
    document: float = 4.0,
) -> tuple[dict[str, float], dict[tuple[str, str], Estimate]]:
    """Returns the losses of series by name, and the differences of their pairs."""
    sums = {
        f"{i:02}": mean + effects(rng, shape, R, D, seed=seed, document=document)
        for i, (mean, seed) in enumerate(zip(means, seeds, strict=True))
    }
    counts = np.ones(D)
    pairs = {(a, b): gap(sums[a], sums[b], counts) for a, b in combinations(sums, 2)}
    return {name: float(of.mean()) for name, of in sums.items()}, pairs


def _percent(hits: int, n: int) -> str:
    return f"{100 * hits / n:.1f}"


def main() -> None:
    """Runs the simulations and writes their tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/statistics"))
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of draws")
    chosen = parser.parse_args()

    def times(n: int) -> int:
        return max(1, round(n * chosen.scale))

    rng = np.random.default_rng(0)
    found: list[Table] = []
    for make in (
        lambda: coverage(rng, times(1000)),
        lambda: verdicts(rng, times(200)),
        lambda: family(rng, lambda k: times({2: 1000, 6: 400, 12: 120}.get(k, 40))),
        lambda: ranks(rng, times(200)),
        lambda: accuracies(rng, times(1000)),
    ):
        found.append(make())
        print(markdown(found[-1]), flush=True)
    chosen.out.mkdir(parents=True, exist_ok=True)
    said = "\n".join(map(markdown, found))
    (chosen.out / "table.md").write_text(
        f"Made by `python scripts/simulate_statistics.py`.\n\n{said}", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
