"""intervals: variance components, against plain loops and truth."""

import math
import random

import numpy as np
import pytest

from lengthgen.analysis.intervals import (
    Estimate,
    Floats,
    central,
    gap,
    ratio,
    student,
)

Rng = np.random.Generator


@pytest.fixture
def rng() -> Rng:
    return np.random.default_rng(7)


# Variance components


def effects(rng: Rng, R: int, D: int, *, heavy: bool, **sd: float) -> Floats:
    """Sums of one target a document: an effect of each seed, each document and each cell.

    Standard deviations are 0 unless given; heavy documents have Student's t with 3 degrees.
    """
    document_D = rng.standard_t(3, D) / math.sqrt(3) if heavy else rng.normal(size=D)
    seed_R, both_RD = rng.normal(size=(R, 1)), rng.normal(size=(R, D))
    parts = {"seed": seed_R, "document": document_D[None], "both": both_RD}
    return sum((sd[name] * parts[name] for name in sd), np.zeros((R, D)))


@pytest.mark.parametrize(("R", "D"), [(2, 5), (3, 4), (5, 9)])
def test_the_interval_is_that_of_an_analysis_of_variance_written_out(
    rng: Rng, R: int, D: int
) -> None:
    x = effects(rng, R, D, heavy=False, seed=0.3, document=1.0, both=0.5).tolist()
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
    assert (found.spread.seeds, found.of_scheme) == (0.0, False)
    assert found.spread.freedom < 11


def coverage(rng: Rng, R: int, D: int, *, heavy: bool, uneven: bool, **sd: float) -> float:
    hits = 0
    for _ in range(800):
        counts_D = rng.integers(1, 5, D).astype(float) if uneven else np.ones(D)
        found = ratio(effects(rng, R, D, heavy=heavy, **sd) * counts_D, counts_D)
        hits += found.low <= 0 <= found.high
    return hits / 800


@pytest.mark.parametrize(
    ("R", "seed", "heavy", "uneven"),
    [
        (1, 0.0, True, False),
        (2, 1.0, False, False),
        (2, 0.2, True, True),
        (3, 0.5, False, False),
        (5, 0.2, True, False),
    ],
)
def test_an_interval_covers_the_truth_in_95_percent_or_a_little_more(
    rng: Rng, R: int, seed: float, heavy: bool, uneven: bool
) -> None:
    """800 trials: a standard error of 0.8%. Documents 1, so a seed of 0.2 weighs as much."""
    sd = {"seed": seed, "document": 1.0, "both": 0.5}
    covered = coverage(rng, R, 32, heavy=heavy, uneven=uneven, **sd)
    assert 0.93 < covered < 0.995


def test_an_effect_of_the_detectable_size_is_found_in_about_80_percent(rng: Rng) -> None:
    shown = trials = 0
    for _ in range(600):
        noise = effects(rng, 3, 32, heavy=False, document=1.0)
        detectable = ratio(noise, np.ones(32)).detectable
        trials += 1
        shown += ratio(noise + detectable, np.ones(32)).low > 0
    assert 0.74 < shown / trials < 0.86


def test_statements_that_are_widened_hold_together(rng: Rng) -> None:
    def all_hold(m: int, widened_for: int) -> bool:
        found = [
            ratio(effects(rng, 3, 20, heavy=False, seed=0.2, document=1.0), np.ones(20))
            for _ in range(m)
        ]
        return all(e.low <= 0 <= e.high for e in (one.widened(widened_for) for one in found))

    assert sum(all_hold(6, 6) for _ in range(300)) / 300 > 0.93
    assert sum(all_hold(6, 1) for _ in range(300)) / 300 < 0.93


def test_a_gap_is_paired_by_seed_and_document(rng: Rng) -> None:
    shared = effects(rng, 3, 20, heavy=False, seed=1.0, document=1.0)
    found = gap(shared + 0.5, shared, np.ones(20))
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))
    assert found.seeds == pytest.approx((0.5, 0.5, 0.5))


def test_a_gap_is_the_negative_of_its_reverse(rng: Rng) -> None:
    a, b, counts = rng.normal(size=(3, 6)), rng.normal(size=(3, 6)), np.arange(1.0, 7.0)
    found, reverse = gap(a, b, counts), gap(b, a, counts)
    assert (reverse.low, reverse.high) == (-found.high, -found.low)
    assert reverse.seeds == tuple(-seed for seed in found.seeds)


def test_values_are_exact_sums() -> None:
    sums_RD = np.array([[1e16, 1.0, -1e16, 1.0]])
    assert ratio(sums_RD, np.ones(4)).value == 0.5


def test_one_document_has_no_interval_and_detects_nothing(rng: Rng) -> None:
    found = ratio(rng.normal(size=(3, 1)), np.ones(1))
    assert math.isfinite(found.value)
    assert all(map(math.isnan, (found.low, found.high, found.detectable)))


def test_a_diverged_seed_leaves_no_interval(rng: Rng) -> None:
    sums_RD = rng.normal(size=(3, 8))
    sums_RD[0, 5] = math.inf
    found = ratio(sums_RD, np.ones(8))
    assert (found.value, found.seeds[0]) == (math.inf, math.inf)
    assert all(map(math.isfinite, found.seeds[1:]))
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert not found.has_sign


def test_where_all_seeds_diverged_the_bounds_are_infinite_and_have_a_sign(rng: Rng) -> None:
    diverged = np.full((3, 8), math.inf)
    found = gap(rng.normal(size=(3, 8)), diverged, np.ones(8))
    assert (found.value, found.low, found.high) == (-math.inf,) * 3
    assert found.has_sign


def test_the_gap_of_two_diverged_losses_is_undefined(rng: Rng) -> None:
    found = gap(np.full((2, 4), math.inf), np.full((2, 4), math.inf), np.ones(4))
    assert all(map(math.isnan, (found.value, found.low, found.high)))


# Central values


@pytest.mark.parametrize("share", [0.5, 0.9, 0.95])
def test_at_most_half_of_what_is_not_central_lies_beyond_each_bound(share: float) -> None:
    dice = random.Random(3)
    for n in (1, 2, 3, 4, 5, 100, 2000):
        values = [dice.gauss(0, 1) for _ in range(n)]
        low, high = central(values, share)
        below, above = sum(v < low for v in values), sum(v > high for v in values)
        assert low in values
        assert below == above
        assert below <= (1 - share) / 2 * (n - 1) < below + 1


def test_what_is_undefined_in_one_draw_has_no_interval() -> None:
    assert all(map(math.isnan, central([1.0, math.nan, 2.0], 0.95)))


@pytest.mark.parametrize(
    ("low", "high", "seeds", "expected"),
    [
        (0.1, 0.3, (0.1, 0.2), True),
        (-0.3, -0.1, (-0.1, -0.2), True),
        (0.0, 0.3, (0.1, 0.2), False),
        (-0.3, 0.0, (-0.1, -0.2), False),
        (-0.1, 0.3, (0.1, 0.2), False),
        (0.1, 0.3, (0.4, -0.1), False),
        (0.1, 0.3, (0.4, 0.0), False),
        (-0.3, -0.1, (-0.4, 0.1), False),
        (math.nan, math.nan, (0.1, 0.2), False),
    ],
)
def test_a_sign_is_that_of_the_whole_interval_and_of_every_seed(
    low: float, high: float, seeds: tuple[float, ...], expected: bool
) -> None:
    found = Estimate(value=(low + high) / 2, low=low, high=high, seeds=seeds)
    assert found.has_sign is expected
