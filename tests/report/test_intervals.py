"""intervals: variance components and joint comparisons, against plain loops and truth."""

import math

import numpy as np
import pytest
from simulate_statistics import SIZES, drawn_table, effects, grouped, spread_in

from lengthgen.report.intervals import (
    Estimate,
    Floats,
    Ints,
    as_share,
    compare,
    gap,
    holm,
    ratio,
    signs,
    student,
    upper,
)

Rng = np.random.Generator


@pytest.fixture
def rng() -> Rng:
    return np.random.default_rng(7)


@pytest.mark.parametrize(("R", "D"), [(2, 5), (3, 4), (5, 9)])
def test_the_interval_is_that_of_an_analysis_of_variance(rng: Rng, R: int, D: int) -> None:
    x = effects(rng, "normal", R, D, seed=0.3, document=1.0).tolist()
    mean = sum(map(sum, x)) / (R * D)
    of_seed = [sum(row) / D for row in x]
    of_document = [sum(row[d] for row in x) / R for d in range(D)]
    rest = [x[r][d] - of_seed[r] - of_document[d] + mean for r in range(R) for d in range(D)]
    v_s = sum((m - mean) ** 2 for m in of_seed) / (R - 1) / R
    v_d = sum((m - mean) ** 2 for m in of_document) / (D - 1) / D
    v_e = sum(e**2 for e in rest) / ((R - 1) * (D - 1)) / (R * D)
    half = math.sqrt(
        student(0.975, R - 1) ** 2 * v_s + student(0.975, D - 1) ** 2 * max(0.0, v_d - v_e)
    )
    found = ratio(np.array(x), np.ones(D))
    assert (found.value, *found.seeds) == pytest.approx((mean, *of_seed), rel=1e-13)
    assert (found.low, found.high) == pytest.approx((mean - half, mean + half), rel=1e-12)


def test_with_one_seed_the_variance_is_that_of_the_ratio_of_sums(rng: Rng) -> None:
    """Of the influence of each document on the ratio, with the correction for its leverage."""
    counts, x = rng.integers(1, 9, 12).astype(float), rng.normal(size=12)
    total = counts.sum()
    mean = (x * counts).sum() / total
    variance = sum(
        (c * (y - mean) / total) ** 2 / (1 - c / total) for c, y in zip(counts, x, strict=True)
    )
    found = ratio((x * counts)[None], counts)
    assert found.spread is not None
    assert found.spread.groups == pytest.approx(variance, rel=1e-12)
    assert found.spread.seeds == 0.0
    assert found.spread.freedom < 11


@pytest.mark.parametrize(
    ("R", "seed", "shape", "uneven"),
    [
        (1, 0.0, "heavy", False),
        (2, 1.0, "normal", False),
        (2, 0.2, "heavy", True),
        (3, 0.5, "normal", False),
        (5, 0.2, "heavy", False),
    ],
)
def test_an_interval_covers_the_truth_in_95_percent_or_a_little_more(
    rng: Rng, R: int, seed: float, shape: str, uneven: bool
) -> None:
    """800 trials: a standard error of 0.8%. Documents 1, so a seed of 0.2 weighs as much."""
    hits = 0
    for _ in range(800):
        counts_D = rng.integers(1, 5, 32).astype(float) if uneven else np.ones(32)
        found = ratio(effects(rng, shape, R, 32, seed=seed, document=1.0) * counts_D, counts_D)
        hits += found.low <= 0 <= found.high
    assert 0.93 < hits / 800 < 0.995


def uneven(rng: Rng, R: int, D: int) -> tuple[Floats, Floats, Ints]:
    """Returns sums, counts and groups of documents that differ in all of them."""
    counts_D = rng.integers(1, 9, D).astype(float)
    groups_D = rng.permutation(grouped([1, 2, 3, 5, 8], D))
    x_RD = effects(rng, "normal", R, D, seed=0.3, document=1.0, groups_D=groups_D, alike=0.3)
    return x_RD * counts_D, counts_D, groups_D


def bounds(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.value, estimate.low, estimate.high


def test_variance_and_freedom_in_groups_are_those_of_bell_and_mccaffrey(rng: Rng) -> None:
    """By the matrices of a regression of all targets on a constant: CR2, Satterthwaite's moments.

    A group's adjustment is the symmetric root of the inverse of I - H; targets vary alike.
    """
    sums_1D, counts_D, groups_D = uneven(rng, 1, 20)
    of_target = np.repeat(np.arange(20), counts_D.astype(int))
    y, group, N = (sums_1D[0] / counts_D)[of_target], groups_D[of_target], len(of_target)
    residual_maker = np.eye(N) - 1 / N
    residuals, variance, columns = residual_maker @ y, 0.0, list[Floats]()
    for g in range(5):
        own = group == g
        values, vectors = np.linalg.eigh(residual_maker[np.ix_(own, own)])
        adjusted = (vectors / np.sqrt(values)) @ vectors.T @ np.full(own.sum(), 1 / N)
        variance += (adjusted @ residuals[own]) ** 2
        columns.append(residual_maker[:, own] @ adjusted)
    moments = np.linalg.eigvalsh(np.array(columns) @ np.array(columns).T)
    spread = ratio(sums_1D, counts_D, groups_D).spread
    assert spread is not None
    assert spread.groups == pytest.approx(variance, rel=1e-12)
    assert spread.freedom == pytest.approx(moments.sum() ** 2 / (moments**2).sum(), rel=1e-12)


def test_with_seeds_the_variance_is_two_way_by_cluster(rng: Rng) -> None:
    """Seeds and groups, minus their intersection once: here of equal groups, in plain loops."""
    x = rng.normal(size=(3, 12)) + rng.normal(size=(3, 1))
    groups = [0, 1, 2, 3] * 3
    means = [[x[r, g::4].mean() for g in range(4)] for r in range(3)]
    of_seed, mean = [sum(row) / 4 for row in means], sum(map(sum, means)) / 12
    of_group = [sum(row[g] for row in means) / 3 for g in range(4)]
    rest = [means[r][g] - of_seed[r] - of_group[g] + mean for r in range(3) for g in range(4)]
    v_seeds = sum((m - mean) ** 2 for m in of_seed) / 2 / 3
    v_groups = sum((m - mean) ** 2 for m in of_group) / 3 / 4
    v_both = sum(e**2 for e in rest) / (2 * 3) / 12
    spread = ratio(x, np.ones(12), np.array(groups)).spread
    assert spread is not None
    assert (spread.seeds, spread.n_seeds, spread.freedom) == pytest.approx((v_seeds, 3, 3))
    assert spread.groups == pytest.approx(max(0.0, v_groups - v_both), rel=1e-12)


@pytest.mark.parametrize("R", [1, 3])
def test_groups_have_no_order_and_no_names_and_documents_alone_are_groups(rng: Rng, R: int) -> None:
    sums_RD, counts_D, groups_D = uneven(rng, R, 30)
    found, order = bounds(ratio(sums_RD, counts_D, groups_D)), rng.permutation(30)
    moved = ratio(sums_RD[:, order], counts_D[order], 7 - 3 * groups_D[order])
    assert bounds(moved) == pytest.approx(found, rel=1e-12)
    alone = ratio(sums_RD, counts_D)
    assert found != bounds(alone)
    assert ratio(sums_RD, counts_D, rng.permutation(30)) == alone
    assert ratio(sums_RD, counts_D, np.full(30, 4)) == alone  # of no other group anything is known


@pytest.mark.parametrize("R", [1, 3])
def test_what_a_group_says_twice_narrows_no_interval(rng: Rng, R: int) -> None:
    sums_RD, counts_D, _ = uneven(rng, R, 30)
    once = ratio(sums_RD, counts_D)
    twice, counts = np.repeat(sums_RD, 2, axis=1), np.repeat(counts_D, 2)
    assert bounds(ratio(twice, counts, np.repeat(np.arange(30), 2))) == pytest.approx(bounds(once))
    alone = ratio(twice, counts)
    assert alone.high - alone.low < 0.95 * (once.high - once.low)


@pytest.mark.parametrize(
    ("sizes", "alone"), [("24 of 1 to 10", 0.92), ("12, one holds half", 0.85)]
)
@pytest.mark.parametrize("R", [1, 5])
def test_an_interval_covers_the_truth_where_documents_of_a_group_are_alike(
    rng: Rng, sizes: str, alone: float, R: int
) -> None:
    """2,000 trials of 64 documents: a standard error of 0.5%. Documents alone cover too seldom."""
    groups_D, rates = grouped(SIZES[sizes], 64), list[float]()
    about = {"groups_D": groups_D, "alike": 0.3, "n": (2000,)}
    x_NRD = effects(rng, "normal", R, 64, seed=0.0, document=1.0, **about)  # pyright: ignore[reportArgumentType]
    for of_document in (groups_D, np.arange(64)):
        half_N = spread_in(x_NRD, of_document).half_width(upper(1))
        rates.append(float(np.mean(np.abs(x_NRD.mean((1, 2))) <= half_N)))
    assert 0.93 < rates[0] < 0.98
    assert rates[1] < alone


def test_what_is_shown_at_once_is_what_holms_steps_reject(rng: Rng) -> None:
    for n in range(1, 9):
        chances = dict(enumerate(rng.uniform(0, 0.04, n)))
        rejected = set[int]()
        for i, p in sorted(chances.items(), key=lambda of: of[1]):
            if p > 0.05 / (n - len(rejected)):
                break
            rejected.add(i)
        assert holm(chances, lambda i, k, p=chances: p[i] <= 0.05 / k) == rejected


def test_a_sign_at_once_is_one_alone_and_seldom_wrong_in_any_of_a_table(rng: Rng) -> None:
    """400 tables of ten gains of 0, of one seed: 5% and two standard errors; alone 40% have one."""
    wrong_alone = wrong = 0
    for x_10D in rng.normal(size=(400, 10, 1, 30)):
        gains = {i: ratio(x_1D, np.ones(30)) for i, x_1D in enumerate(x_10D)}
        alone, at_once = {i for i, gain in gains.items() if gain.has_sign}, signs(gains)
        assert at_once <= alone
        wrong_alone, wrong = wrong_alone + bool(alone), wrong + bool(at_once)
    assert wrong <= 400 * (0.05 + 2 * math.sqrt(0.05 * 0.95 / 400))
    assert wrong_alone > 100


def test_a_gap_is_paired_by_seed_and_document(rng: Rng) -> None:
    shared = effects(rng, "normal", 3, 20, seed=1.0, document=1.0)
    found = gap(shared + 0.5, shared, np.ones(20))
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))
    assert found.seeds == pytest.approx((0.5, 0.5, 0.5))


def test_one_document_has_no_interval(rng: Rng) -> None:
    found = ratio(rng.normal(size=(3, 1)), np.ones(1))
    assert math.isfinite(found.value)
    assert all(map(math.isnan, (found.low, found.high)))


def test_where_all_seeds_diverged_the_bounds_are_infinite_and_have_a_sign(rng: Rng) -> None:
    diverged = np.full((3, 8), math.inf)
    found = gap(rng.normal(size=(3, 8)), diverged, np.ones(8))
    assert (found.value, found.low, found.high) == (-math.inf,) * 3
    assert found.has_sign


def test_a_share_of_right_answers_has_an_interval_where_all_are_right(rng: Rng) -> None:
    found = as_share(ratio(np.ones((3, 50)), np.ones(50)), 50)
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(50 / (50 + 1.959964**2), rel=1e-6)  # Wilson
    half = as_share(ratio((rng.random((3, 200)) < 0.5).astype(float), np.ones(200)), 200)
    assert 0.0 < half.low < half.value < half.high < 1.0


@pytest.mark.parametrize(
    ("k", "R", "shape", "n"), [(2, 2, "normal", 400), (6, 3, "normal", 120), (6, 2, "heavy", 120)]
)
def test_equal_series_are_seldom_told_apart(k: int, R: int, shape: str, n: int) -> None:
    """Of n tables at most 5% and two standard errors; calling each pair alone does so in 20%."""
    rng, wrong = np.random.default_rng(2), 0
    for _ in range(n):
        compared = compare(*drawn_table(rng, shape, R, [1.0] * k))
        assert compared is not None
        wrong += bool(compared.different)
    assert wrong <= 0.05 * n + 2 * math.sqrt(0.05 * 0.95 * n)
