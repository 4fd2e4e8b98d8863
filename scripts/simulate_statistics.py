"""Coverage of intervals and error rates of verdicts and ties, by simulation.

    python scripts/simulate_statistics.py [--out results/statistics] [--scale 1.0]

Writes table.md; three minutes on one core. Losses are drawn, not trained: an effect of each seed,
each document and each cell (seed, document), normal, or documents with Student's t of three degrees
of freedom. Documents of one group share a part of their effects: the correlation within groups. The
functions are those of the report. Shape suffixes: N draws, R seeds, D documents, G groups.
"""

import argparse
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from pathlib import Path

import numpy as np

from lengthgen.report.intervals import (
    Estimate,
    Floats,
    Ints,
    Spread,
    as_share,
    clustered,
    compare,
    signs,
    spread_of,
    upper,
)
from lengthgen.report.statistics import Verdict, verdict
from lengthgen.report.tables import Table, TableCell, markdown

Rng = np.random.Generator
SHAPES = ("normal", "heavy")
WORDS: tuple[Verdict, ...] = ("uses", "flat", "harmed", "unclear")
RESAMPLES = 400
SIZES: Mapping[str, Sequence[float]] = {  # of groups, relative to each other
    "24 equal": [1] * 24,
    "24 of 1 to 10": np.linspace(1, 10, 24).tolist(),
    "9, three hold two thirds": [20, 14, 10, 6, 4, 4, 3, 2, 1],
    "12, one holds half": [11] + [1] * 11,
}


def grouped(sizes: Sequence[float], D: int) -> Ints:
    """Returns the group of each of D documents, in groups of about these relative sizes."""
    ends = np.cumsum(sizes) / np.sum(sizes)
    return np.searchsorted(ends - 1e-9, (np.arange(D) + 0.5) / D)


def effects(
    rng: Rng,
    shape: str,
    R: int,
    D: int,
    *,
    seed: float,
    document: float,
    groups_D: Ints | None = None,
    alike: float = 0.0,
    n: Sequence[int] = (),
) -> Floats:
    """Returns losses [*n, R, D] of mean 0; the effect of a cell is as large as that of a document.

    `alike` is the correlation of two documents of one group, in both.
    """

    def unit(rows: int, shape: str) -> Floats:
        def of(columns: int) -> Floats:
            size = (*n, rows, columns)
            return rng.standard_t(3, size) / 3**0.5 if shape == "heavy" else rng.normal(size=size)

        if groups_D is None or alike == 0.0:
            return of(D)
        of_groups = of(int(groups_D.max()) + 1)[..., groups_D]
        return math.sqrt(alike) * of_groups + math.sqrt(1 - alike) * of(D)

    of_documents = (unit(1, shape) + unit(R, "normal")) / math.sqrt(2)
    return seed * rng.normal(size=(*n, R, 1)) + document * of_documents


def seed_effect(share: float, R: int, sizes_G: Ints | Floats, alike: float) -> float:
    """Returns the effect of a seed, so that seeds have this share in the variance of the mean."""
    p_G = sizes_G / sizes_G.sum()
    of_documents = float(alike * (p_G**2).sum() + (1 - alike) / sizes_G.sum())
    return math.sqrt(share / (1 - share) * R * of_documents)


def spread_in(x_NRD: Floats, groups_D: Ints) -> Spread:
    """Returns the variance components of each mean over documents of equal counts."""
    return spread_of(*clustered(x_NRD, np.ones(len(groups_D)), groups_D))


def estimates(x_NRD: Floats, groups_D: Ints) -> list[Estimate]:
    """Returns the means over documents of equal counts with their intervals, as the report does."""
    found = spread_in(x_NRD, groups_D)
    n_seeds, freedom = found.n_seeds, found.freedom
    columns = (
        x_NRD.mean(-1).tolist(),
        *(np.array(v).tolist() for v in (found.seeds, found.groups)),
    )
    made = list[Estimate]()
    for seeds, v_seeds, v_groups in zip(*columns, strict=True):
        spread = Spread(seeds=v_seeds, groups=v_groups, n_seeds=n_seeds, freedom=freedom)
        value = sum(seeds) / n_seeds
        exact = Estimate(value=value, low=value, high=value, seeds=tuple(seeds), spread=spread)
        made.append(exact.widened(1))
    return made


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]], note: str) -> str:
    cells = [[TableCell(str(value)) for value in row] for row in rows]
    return markdown(Table(title=title, head=head, rows=cells, notes=[note]))


def percent(hits: float, n: int = 1) -> str:
    return f"{100 * hits / n:.1f}"


def held(x_NRD: Floats, half_N: Floats | float) -> str:
    """Returns the percentage of intervals that hold the truth, 0."""
    return percent(float(np.mean(np.abs(x_NRD.mean((-2, -1))) <= half_N)))


def resampled(rng: Rng, x_NRD: Floats, groups_D: Ints) -> str:
    """Returns the same of percentiles of means of resampled seeds and groups.

    The pigeonhole bootstrap (Owen 2007, Annals of Applied Statistics 1).
    """
    sums_NRG, counts_G = clustered(x_NRD, np.ones(len(groups_D)), groups_D)
    R, G = sums_NRG.shape[-2:]
    seeds_BR, groups_BG = (rng.multinomial(k, [1 / k] * k, RESAMPLES) for k in (R, G))
    means_NRB = sums_NRG @ groups_BG.T / (groups_BG @ counts_G)
    means_NB = np.einsum("nrb,br->nb", means_NRB, seeds_BR) / R
    low_N, high_N = np.quantile(means_NB, [1 - upper(1), upper(1)], axis=1)
    return percent(float(np.mean((low_N <= 0) & (high_N >= 0))))


def coverage(rng: Rng, n: int) -> str:
    """How often the 95% interval holds the truth, by the share of seeds in the variance."""
    shares = {"0": 0.0, "1/4": 1 / 4, "1/2": 1 / 2, "3/4": 3 / 4, "10/11": 10 / 11}

    def row(shape: str, R: int, D: int) -> list[object]:
        rates: list[str] = []
        for share in shares.values() if R > 1 else [0.0]:  # one checkpoint on other documents
            seed = seed_effect(share, R, np.ones(D), 0.0)
            x_NRD = effects(rng, shape, R, D, seed=seed, document=1.0, n=(n,))
            rates.append(held(x_NRD, spread_of(x_NRD, np.ones(D)).half_width(upper(1))))
        return [shape, R, D, *rates, *["-"] * (len(shares) - len(rates))]

    return table(
        f"Coverage of 95% intervals, percent of {n:,} draws each",
        ["documents", "seeds", "D", *(f"share {share}" for share in shares)],
        [row(*case) for case in product(SHAPES, (1, 2, 3, 5), (16, 64, 128))],
        "Columns: the share of the seeds in the variance of the mean.",
    )


def coverage_in_groups(rng: Rng, n: int) -> str:
    """How often intervals hold the truth where documents of one group are alike."""

    draw = partial(effects, rng, document=1.0, n=(n,))

    def row(of: tuple[str, str], D: int, alike: float, R: int) -> list[object]:
        shape, sizes = of
        groups_D, rates = grouped(SIZES[sizes], D), list[str]()
        for share in (0.0, 0.5) if R > 1 else (0.0,):
            seed = seed_effect(share, R, np.bincount(groups_D), alike)
            x_NRD = draw(shape, R, D, seed=seed, groups_D=groups_D, alike=alike)
            alone, spread = spread_of(x_NRD, np.ones(D)), spread_in(x_NRD, groups_D)
            own = replace(spread, freedom=float(groups_D.max()))
            halves = [one.half_width(upper(1)) for one in (alone, own, spread)]
            by_alone, by_own, by_report = (held(x_NRD, half_N) for half_N in halves)
            if share == 0.0:
                rates += [by_alone, resampled(rng, x_NRD, groups_D), by_own, by_report]
            else:
                rates += [by_alone, by_report]
        return [sizes, shape, D, alike, R, *rates, *["-"] * (6 - len(rates))]

    cases = [("normal", sizes) for sizes in SIZES] + [("heavy", "24 of 1 to 10")]
    rows = [row(*case) for case in product(cases, (64, 128), (0.0, 0.1, 0.3), (1, 3, 5))]
    places = {"alone": (5, 9), "bootstrap": (6,), "G - 1": (7,), "report": (8, 10)}

    def least(sizes: str, how: str) -> float:
        of_sizes = [str(row[i]) for row in rows if row[0] == sizes for i in places[how]]
        return min(float(rate) for rate in of_sizes if rate != "-")

    summary = table(
        "Least coverage of 95% intervals of documents in groups, percent",
        ["groups", *places],
        [[sizes, *(least(sizes, how) for how in places)] for sizes in SIZES],
        "Of 1, 3 and 5 seeds, 64 and 128 documents, correlations of 0, 0.1 and 0.3 between two "
        "documents of one group. Alone: documents as independent. Bootstrap: percentiles of "
        f"{RESAMPLES} means of resampled seeds and groups. G - 1: as in the report, but with so "
        "many degrees of freedom. Report: with those of Bell and McCaffrey.",
    )
    halves = [f"share 1/2: {how}" for how in ("alone", "report")]
    return f"{summary}\n" + table(
        f"Coverage of 95% intervals of documents in groups, percent of {n:,} draws each",
        ["groups", "documents", "D", "correlation", "seeds", *places, *halves],
        rows,
        "The seeds have no share in the variance of the mean, in the last two columns one half.",
    )


def verdicts(rng: Rng, n: int) -> str:
    """How often each word is said of a model whose gain is known."""
    gains = (0.0, 0.005, 0.0101, -0.0101, 0.03, -0.03)

    def said(shape: str, R: int, D: int, gain: float) -> list[Verdict]:
        differ_NRD = effects(rng, shape, R, D, seed=0.001, document=0.03, n=(n,))
        return [*map(verdict, estimates(gain + differ_NRD, np.arange(D)))]

    rows: list[list[object]] = []
    sizes = ((1, 64), (2, 64), (3, 16), (3, 64), (3, 128))
    for shape, (R, D), gain in product(SHAPES, sizes, gains):
        heard = said(shape, R, D, gain)
        shown = f"G = {gain:+}" if gain else "G = 0"
        rows.append([shape, R, D, shown, *(percent(heard.count(word), n) for word in WORDS)])
    return table(
        f"Verdicts, percent of {n:,} models each",
        ["documents", "seeds", "D", "truth", *WORDS],
        rows,
        "Paired differences of two lengths vary by 0.03 nats over documents and by 0.001 over "
        "seeds. Wrong are: uses and harmed where G is 0 or of the other sign, flat where |G| is "
        "above 0.01.",
    )


def verdicts_in_groups(rng: Rng, n: int) -> str:
    """How often verdicts are wrong where documents of one group are alike."""

    draw = partial(effects, rng, "normal", seed=0.001, document=0.03, n=(n,))

    def row(D: int, alike: float, R: int) -> list[object]:
        groups_D, cells = grouped(SIZES["24 of 1 to 10"], D), list[str]()
        for gain, wrong in ((0.0, {"uses", "harmed"}), (0.0101, {"flat"}), (0.0, {"flat"})):
            x_NRD = gain + draw(R, D, groups_D=groups_D, alike=alike)
            for of_document in (np.arange(D), groups_D):
                heard = [*map(verdict, estimates(x_NRD, of_document))]
                cells.append(percent(sum(word in wrong for word in heard), n))
        return [D, alike, R, *cells]

    what = ("G = 0: uses or harmed", "G = 0.0101: flat", "G = 0: flat")
    return table(
        f"Verdicts of documents in 24 groups of 1 to 10, percent of {n:,} models each",
        [
            "D",
            "correlation",
            "seeds",
            *(f"{x}, {how}" for x in what for how in ("alone", "report")),
        ],
        [row(*case) for case in product((64, 128), (0.0, 0.1, 0.3), (1, 3, 5))],
        "As above, with normal effects. The last two columns are right verdicts, all others wrong.",
    )


def gains_at_once(rng: Rng, n: int) -> str:
    """How often a table of models without a gain says uses or harmed anywhere."""

    draw = partial(effects, rng, "normal", seed=0.001, document=0.03, alike=0.3)

    def row(k: int, R: int) -> list[object]:
        alone, at_once, groups_D = 0, 0, grouped(SIZES["24 of 1 to 10"], 128)
        for _ in range(n):
            x_LRD = draw(R, 128, groups_D=groups_D, n=(k, 5)).cumsum(1)
            found = estimates(x_LRD.reshape(-1, R, 128), groups_D)
            alone += any(e.has_sign for e in found)
            at_once += bool(signs(dict(enumerate(found))))
        return [k, R, percent(alone, n), percent(at_once, n)]

    return table(
        f"No gain: percent of {n:,} tables with any wrong sign",
        ["series", "seeds", "each alone", "at once"],
        [row(k, R) for k, R in product((2, 6, 12), (1, 3, 5))],
        "Five lengths of each series; what differs at one length does so at all longer ones. 128 "
        "documents in 24 groups of 1 to 10, correlation 0.3. At once: by Holm's correction.",
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


def family_in_groups(rng: Rng, n: int) -> str:
    """How often equal series are called different where documents of one group are alike."""

    def row(k: int, alike: float, R: int) -> list[object]:
        groups_D, apart = grouped(SIZES["24 of 1 to 10"], 128), [0, 0]
        for _ in range(n):
            x_KRD = series(rng, "normal", R, [1.0] * k, groups_D=groups_D, alike=alike)
            for i, of_document in enumerate((np.arange(128), groups_D)):
                found = compare(*compared(x_KRD, of_document))
                apart[i] += found is not None and bool(found.different)
        return [k, alike, R, *(percent(hits, n) for hits in apart)]

    return table(
        f"Equal series of documents in groups: percent of {n:,} tables with any two different",
        ["series", "correlation", "seeds", "alone", "report"],
        [row(*case) for case in product((2, 6, 12), (0.0, 0.1, 0.3), (3, 5))],
        "Jointly, as in the report. 128 documents in 24 groups of 1 to 10; seeds vary alike. "
        "Alone: documents as independent.",
    )


def accuracies(rng: Rng, n: int) -> str:
    """How often the interval of an accuracy holds the truth."""
    shapes = {"all alike": math.inf, "Beta(5, 5)": 5.0, "Beta(2, 2)": 2.0, "Beta(1/2, 1/2)": 0.5}

    def rate(R: int, beta: float) -> str:
        if R == 1 and math.isfinite(beta):
            return "-"
        shares_NR1 = np.full((n, R, 1), 0.5)
        if math.isfinite(beta):
            shares_NR1 = rng.beta(beta, beta, size=(n, R, 1))
        right_NRD = (rng.random((n, R, 200)) < shares_NR1).astype(np.float64)
        found = [as_share(e, 200) for e in estimates(right_NRD, np.arange(200))]
        return percent(sum(e.low <= 0.5 <= e.high for e in found), n)

    return table(
        f"Coverage of 95% intervals of accuracies, percent of {n:,} draws each",
        ["seeds", *shapes],
        [[R, *(rate(R, beta) for beta in shapes.values())] for R in (1, 2, 3, 5)],
        "200 answers; how often a seed is right is drawn from the distribution.",
    )


def series(
    rng: Rng, shape: str, R: int, seeds: Sequence[float], *, groups_D: Ints, alike: float = 0.0
) -> Floats:
    """Returns the losses [K, R, D] of equal series."""
    draw = partial(effects, rng, shape, R, len(groups_D), document=4.0, groups_D=groups_D)
    return np.stack([draw(seed=seed, alike=alike) for seed in seeds])


def compared(
    x_KRD: Floats, groups_D: Ints
) -> tuple[dict[str, float], dict[tuple[str, str], Estimate]]:
    """Returns the losses of series by name, and the differences of pairs."""
    names = [f"{i:02}" for i in range(len(x_KRD))]
    a, b = np.triu_indices(len(x_KRD), 1)
    differences = estimates(x_KRD[a] - x_KRD[b], groups_D)
    pairs = dict(zip(combinations(names, 2), differences, strict=True))
    return dict(zip(names, x_KRD.mean((1, 2)).tolist(), strict=True)), pairs


def drawn_table(
    rng: Rng, shape: str, R: int, seeds: Sequence[float]
) -> tuple[dict[str, float], dict[tuple[str, str], Estimate]]:
    """Returns the losses of equal series, and the differences of pairs; 64 documents."""
    alone_D = np.arange(64)
    return compared(series(rng, shape, R, seeds, groups_D=alone_D), alone_D)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/statistics"))
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of draws")
    chosen = parser.parse_args()

    def times(n: int) -> int:
        return max(1, round(n * chosen.scale))

    rng = np.random.default_rng(0)
    texts = [
        coverage(rng, times(4000)),
        coverage_in_groups(rng, times(4000)),
        verdicts(rng, times(2000)),
        verdicts_in_groups(rng, times(4000)),
        gains_at_once(rng, times(1000)),
        family(rng, lambda k: times({2: 2000, 6: 2000, 12: 1000}.get(k, 300))),
        family_in_groups(rng, times(1000)),
        accuracies(rng, times(4000)),
    ]
    chosen.out.mkdir(parents=True, exist_ok=True)
    text = "\n".join(["Made by `python scripts/simulate_statistics.py`.\n", *texts])
    (chosen.out / "table.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
