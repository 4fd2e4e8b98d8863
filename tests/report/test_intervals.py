"""intervals: variance components and joint comparisons, against plain loops and truth."""

import math

import numpy as np
import pytest
from simulate_statistics import drawn_table, effects

from lengthgen.report.intervals import as_share, compare, gap, ratio, student

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
    assert found.spread.documents == pytest.approx(variance, rel=1e-12)
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
