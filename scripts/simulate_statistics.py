"""Coverage of intervals and error rates of verdicts and ties, by simulation.

    python scripts/simulate_statistics.py [--out results/statistics] [--scale 1.0]

Writes table.md; a quarter of an hour on one core. Losses are drawn, not trained: an effect of each
seed, each document and each cell (seed, document), normal, or documents with Student's t of three
degrees of freedom. The functions are those of the report.
"""

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, product
from pathlib import Path

import numpy as np

from lengthgen.report.intervals import Estimate, Floats, as_share, compare, gap, ratio
from lengthgen.report.statistics import Word, verdict
from lengthgen.report.tables import Table, TableCell, markdown

Rng = np.random.Generator
SHAPES = ("normal", "heavy")


def effects(rng: Rng, shape: str, R: int, D: int, *, seed: float, document: float) -> Floats:
    """Returns losses [R, D] of mean 0; the effect of a cell is as large as that of a document."""
    drawn_D = rng.standard_t(3, D) / math.sqrt(3) if shape == "heavy" else rng.normal(size=D)
    seeds_R, cells_RD = rng.normal(size=(R, 1)), rng.normal(size=(R, D))
    return seed * seeds_R + document * (drawn_D[None] + cells_RD) / math.sqrt(2)


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]], note: str) -> str:
    cells = [[TableCell(str(value)) for value in row] for row in rows]
    return markdown(Table(title=title, head=head, rows=cells, notes=[note]))


def percent(hits: int, n: int) -> str:
    return f"{100 * hits / n:.1f}"


def coverage(rng: Rng, n: int) -> str:
    """How often the 95% interval holds the truth, by the share of seeds in the variance."""
    weights = {"0": 0.0, "1/4": 1 / 3, "1/2": 1.0, "3/4": 3.0, "10/11": 10.0}

    def row(shape: str, R: int, D: int) -> list[object]:
        rates: list[str] = []
        for weight in weights.values() if R > 1 else [0.0]:  # one checkpoint on other documents
            seed, held = math.sqrt(weight * R / D), 0
            for _ in range(n):
                x_RD = effects(rng, shape, R, D, seed=seed, document=1.0)
                estimate = ratio(x_RD, np.ones(D))
                held += estimate.low <= 0 <= estimate.high
            rates.append(percent(held, n))
        return [shape, R, D, *rates, *["-"] * (len(weights) - len(rates))]

    return table(
        f"Coverage of 95% intervals, percent of {n:,} draws each",
        ["documents", "seeds", "D", *(f"share {share}" for share in weights)],
        [row(*case) for case in product(SHAPES, (1, 2, 3, 5), (16, 64, 128))],
        "Columns: the share of the seeds in the variance of the mean.",
    )


def verdicts(rng: Rng, n: int) -> str:
    """How often each word is said of a model whose gain is known."""
    gains = (0.0, 0.005, 0.0101, -0.0101, 0.03, -0.03)
    words: tuple[Word, ...] = ("uses", "flat", "harmed", "unclear")

    def said(shape: str, R: int, D: int, gain: float) -> Word:
        differ = effects(rng, shape, R, D, seed=0.001, document=0.03)
        return verdict(gap(3 + differ, np.full_like(differ, 3 - gain), np.ones(D)))

    rows: list[list[object]] = []
    sizes = ((1, 64), (2, 64), (3, 16), (3, 64), (3, 128))
    for shape, (R, D), gain in product(SHAPES, sizes, gains):
        heard = [said(shape, R, D, gain) for _ in range(n)]
        shown = f"G = {gain:+}" if gain else "G = 0"
        rows.append([shape, R, D, shown, *(percent(heard.count(word), n) for word in words)])
    return table(
        f"Verdicts, percent of {n:,} models each",
        ["documents", "seeds", "D", "truth", *words],
        rows,
        "Paired differences of two lengths vary by 0.03 nats over documents and by 0.001 over "
        "seeds. Wrong are: uses and harmed where G is 0 or of the other sign, flat where |G| is "
        "above 0.01.",
    )


def family(rng: Rng, tables: Callable[[int], int]) -> str:
    """How often equal series are called different, in tables of 2 to 30 of them."""
    spreads: dict[str, Callable[[int], Sequence[float]]] = {
        "alike": lambda k: [1.0] * k,
        "one x 10": lambda k: [10.0] + [1.0] * (k - 1),
        "half x 5": lambda k: [5.0] * (k // 2) + [1.0] * (k - k // 2),
    }

    def rates(shape: str, k: int, R: int, seeds: Sequence[float]) -> list[str]:
        alone, apart = 0, 0
        for _ in range(tables(k)):
            losses, pairs = drawn_table(rng, shape, R, seeds)
            found = compare(losses, pairs)
            assert found is not None
            apart += bool(found.different)
            alone += any(e.has_sign for pair, e in pairs.items() if found.best in pair)
        return [percent(apart, tables(k)), percent(alone, tables(k))]

    return table(
        "Equal series: percent of tables in which any two are called different",
        [
            *("documents", "series", "seeds", "tables"),
            *(f"{spread}: {how}" for spread in spreads for how in ("joint", "each alone")),
        ],
        [
            [
                shape,
                k,
                R,
                tables(k),
                *(x for of in spreads.values() for x in rates(shape, k, R, of(k))),
            ]
            for shape, k, R in product(SHAPES, (2, 6, 12, 30), (2, 3, 5))
        ],
        "Joint: any two called different, as in the report. Each alone: any series called worse "
        "than the best by the interval of its own difference. Columns: seeds of all series "
        "vary alike, those of one ten times as much, those of half of them five times.",
    )


def accuracies(rng: Rng, n: int) -> str:
    """How often the interval of an accuracy holds the truth."""
    shapes = {"all alike": math.inf, "Beta(5, 5)": 5.0, "Beta(2, 2)": 2.0, "Beta(1/2, 1/2)": 0.5}

    def rate(R: int, beta: float) -> str:
        if R == 1 and math.isfinite(beta):
            return "-"
        held = 0
        for _ in range(n):
            shares_R1 = np.full((R, 1), 0.5)
            if math.isfinite(beta):
                shares_R1 = rng.beta(beta, beta, size=(R, 1))
            right_RD = (rng.random((R, 200)) < shares_R1).astype(np.float64)
            found = as_share(ratio(right_RD, np.ones(200)), 200)
            held += found.low <= 0.5 <= found.high
        return percent(held, n)

    return table(
        f"Coverage of 95% intervals of accuracies, percent of {n:,} draws each",
        ["seeds", *shapes],
        [[R, *(rate(R, beta) for beta in shapes.values())] for R in (1, 2, 3, 5)],
        "200 answers; how often a seed is right is drawn from the distribution.",
    )


def drawn_table(
    rng: Rng,
    shape: str,
    R: int,
    seeds: Sequence[float],
) -> tuple[dict[str, float], dict[tuple[str, str], Estimate]]:
    """Returns the losses of equal series by name, and the differences of pairs; 64 documents."""
    sums = {
        f"{i:02}": effects(rng, shape, R, 64, seed=seed, document=4.0)
        for i, seed in enumerate(seeds)
    }
    pairs = {(a, b): gap(sums[a], sums[b], np.ones(64)) for a, b in combinations(sums, 2)}
    return {name: float(of.mean()) for name, of in sums.items()}, pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/statistics"))
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of draws")
    chosen = parser.parse_args()

    def times(n: int) -> int:
        return max(1, round(n * chosen.scale))

    rng = np.random.default_rng(0)
    texts = [
        coverage(rng, times(1000)),
        verdicts(rng, times(200)),
        family(rng, lambda k: times({2: 2000, 6: 2000, 12: 1000}.get(k, 300))),
        accuracies(rng, times(1000)),
    ]
    chosen.out.mkdir(parents=True, exist_ok=True)
    text = "\n".join(["Made by `python scripts/simulate_statistics.py`.\n", *texts])
    (chosen.out / "table.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
