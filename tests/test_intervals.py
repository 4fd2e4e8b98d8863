"""intervals: what the two-level bootstrap covers, against plain loops and known truth."""

import math
import random

import numpy as np
import pytest

from lengthgen.findings.cautions import FEW_SEEDS
from lengthgen.intervals import RESAMPLES, Draws, Estimate, Floats, central, draws

Rng = np.random.Generator


@pytest.fixture
def rng() -> Rng:
    return np.random.default_rng(7)


def estimate(drawn: Draws, sums_RD: Floats) -> Estimate:
    """The estimate of a mean over documents of one target each."""
    return drawn.estimate(drawn.means(sums_RD, np.ones(sums_RD.shape[1])))


def test_the_mean_of_a_draw_is_that_of_its_seeds_and_documents_written_out(rng: Rng) -> None:
    R, D = 3, 4
    sums_RD, counts_D = rng.lognormal(size=(R, D)), rng.integers(1, 9, D).astype(float)
    drawn = draws(R, D)
    means = drawn.means(sums_RD, counts_D)
    for n in range(0, len(means), 41):
        seeds = [r for r in range(R) for _ in range(int(drawn.seeds_NR[n, r]))]
        documents = [d for d in range(D) for _ in range(int(drawn.documents_ND[n, d]))]
        total = sum(sums_RD[r, d] for r in seeds for d in documents)
        count = sum(counts_D[d] for _ in seeds for d in documents)
        assert means[n] == pytest.approx(total / count, rel=1e-13)


def test_the_first_draws_are_all_data_and_each_seed_alone(rng: Rng) -> None:
    sums_RD = rng.normal(size=(3, 5))
    found = estimate(draws(3, 5), sums_RD)
    assert found.value == pytest.approx(sums_RD.mean(), rel=1e-14)
    assert found.seeds == pytest.approx(tuple(sums_RD.mean(1)), rel=1e-14)


def test_a_resample_draws_as_many_seeds_and_documents_as_there_are() -> None:
    drawn = draws(4, 9)
    assert set(drawn.seeds_NR[5:].sum(1)) == {4.0}
    assert set(drawn.documents_ND[5:].sum(1)) == {9.0}
    assert len(drawn.seeds_NR) == len(drawn.documents_ND) == 1 + 4 + RESAMPLES


@pytest.mark.parametrize(("R", "D"), [(4, 9), (6, 6)])
def test_seeds_and_documents_are_drawn_uniformly_and_independently(R: int, D: int) -> None:
    """Counts of n draws of n things: mean 1, variance 1 - 1/n, within 5 standard errors."""
    drawn = draws(R, D)
    seeds, documents = drawn.seeds_NR[1 + R :], drawn.documents_ND[1 + R :]
    for n, counts in ((R, seeds), (D, documents)):
        assert counts.mean(0) == pytest.approx(1.0, abs=5 / math.sqrt(RESAMPLES))
        assert counts.var(0) == pytest.approx(1 - 1 / n, abs=10 / math.sqrt(RESAMPLES))
    together = np.corrcoef(seeds.T, documents.T)[:R, R:]
    assert np.abs(together).max() < 5 / math.sqrt(RESAMPLES)


def test_the_same_numbers_of_seeds_and_documents_are_drawn_alike_every_time() -> None:
    assert np.array_equal(draws(3, 7).documents_ND, draws(3, 7).documents_ND)
    assert np.array_equal(draws(3, 7).seeds_NR, draws(3, 7).seeds_NR)


def test_with_three_seeds_that_alone_differ_the_interval_spans_them() -> None:
    """All three draws are the least seed in 1 of 27 resamples, which is more than 2.5%."""
    sums_RD = np.repeat(np.array([[0.3], [0.1], [0.7]]), 5, axis=1)
    found = estimate(draws(3, 5), sums_RD)
    assert (found.low, found.high) == pytest.approx((0.1, 0.7))


def test_the_interval_narrows_with_the_root_of_the_documents(rng: Rng) -> None:
    def width(D: int) -> float:
        found = estimate(draws(2, D), np.tile(rng.normal(size=D), (2, 1)))
        return found.high - found.low

    for D in (50, 200, 800):
        assert width(D) == pytest.approx(2 * 1.96 / math.sqrt(D), rel=0.25)


def test_the_interval_of_the_negative_is_the_negative_interval(rng: Rng) -> None:
    drawn, sums_RD = draws(3, 6), rng.normal(size=(3, 6))
    found, negative = estimate(drawn, sums_RD), estimate(drawn, -sums_RD)
    assert (negative.low, negative.high) == (-found.high, -found.low)


def coverage(
    rng: Rng, R: int, D: int, *, seed: float, document: float, both: float, trials: int
) -> dict[str, float]:
    """How often intervals cover the true mean 0: of two levels, of documents or of seeds alone.

    Standard deviations: of a seed, of a document, and of each score beside them.
    """
    two, documents, seeds = draws(R, D), draws(1, D), draws(R, 2)
    hits: dict[str, int] = dict.fromkeys(("two levels", "documents", "seeds"), 0)
    for _ in range(trials):
        shared = rng.normal(0, seed, (R, 1)) + rng.normal(0, document, (1, D))
        scores = shared + rng.normal(0, both, (R, D))
        for name, found in {
            "two levels": estimate(two, scores),
            "documents": estimate(documents, scores.mean(0, keepdims=True)),
            "seeds": estimate(seeds, np.repeat(scores.mean(1, keepdims=True), 2, 1)),
        }.items():
            hits[name] += found.low <= 0 <= found.high
    return {name: n / trials for name, n in hits.items()}


def test_two_levels_cover_the_truth_in_95_percent_and_one_level_in_less(rng: Rng) -> None:
    """600 trials: a standard error of 0.9%."""
    covered = coverage(rng, 12, 40, seed=0.06, document=0.14, both=0.2, trials=600)
    assert 0.93 < covered["two levels"] < 0.97
    assert covered["documents"] < 0.90
    assert covered["seeds"] < 0.85


@pytest.mark.parametrize("n_seeds", FEW_SEEDS)
def test_few_seeds_that_alone_differ_cover_what_the_warning_says(rng: Rng, n_seeds: int) -> None:
    covered = coverage(rng, n_seeds, 2, seed=1.0, document=0.0, both=0.0, trials=500)
    assert covered["two levels"] == pytest.approx(FEW_SEEDS[n_seeds] / 100, abs=0.05)


def test_one_document_has_no_interval(rng: Rng) -> None:
    found = estimate(draws(3, 1), rng.normal(size=(3, 1)))
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert math.isfinite(found.value)


def test_one_seed_has_the_interval_of_its_documents(rng: Rng) -> None:
    found = estimate(draws(1, 100), rng.normal(size=(1, 100)))
    assert found.high - found.low == pytest.approx(2 * 1.96 / 10, rel=0.25)


def test_an_infinite_sum_counts_only_in_the_draws_that_meet_it(rng: Rng) -> None:
    sums_RD = rng.normal(size=(3, 4))
    sums_RD[1, 2] = math.inf
    drawn = draws(3, 4)
    means = drawn.means(sums_RD, np.ones(4))
    met = (drawn.seeds_NR[:, 1] > 0) & (drawn.documents_ND[:, 2] > 0)
    assert np.array_equal(np.isinf(means), met)
    sums_RD[1, 2] = 1.0
    assert np.allclose(means[~met], drawn.means(sums_RD, np.ones(4))[~met])


def test_a_diverged_seed_makes_value_and_upper_bound_infinite(rng: Rng) -> None:
    sums_RD = rng.normal(size=(3, 8))
    sums_RD[0] = math.inf
    found = estimate(draws(3, 8), sums_RD)
    assert (found.value, found.seeds[0], found.high) == (math.inf, math.inf, math.inf)
    assert math.isfinite(found.low)  # 8 of 27 resamples lack the seed


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
