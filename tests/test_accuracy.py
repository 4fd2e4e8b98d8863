"""Accuracy of tasks: shares of right answers, their intervals, ranks over tasks."""

import math
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from eval_rows import row

from lengthgen import published, statistics, task_report
from lengthgen.accuracy import Accuracy, accuracies, mean_ranks, wilson
from lengthgen.errors import UserError
from lengthgen.figures.relation import spearman
from lengthgen.series import Series, series

L = 4


def answered(
    *wrong: int | None, length: int, scheme: str = "rope", seed: int = 1, n_tokens: int = 3
) -> dict[str, object]:
    """The row of a length: the first wrong token of each answer of n_tokens tokens."""
    n = len(wrong)
    return row(
        run=f"{scheme}-tiny-copy-s{seed}-0a0a0a0a",
        scheme=scheme,
        seed=seed,
        corpus="copy",
        train_length=L,
        protocol="answers",
        targets=None,
        length=length,
        reach=0,
        document=f"{n} examples",
        n_documents=1,
        n_tokens=n * n_tokens,
        n_bytes=0,
        n_windows=n,
        first_wrong=list(wrong),
        token_hits=sum(n_tokens if one is None else one for one in wrong),
        stop_errors=sum(one == n_tokens - 1 for one in wrong),
    )


def of(*rows: dict[str, object]) -> list[Series]:
    points = statistics.curve(rows)
    return series(points, {(p.run, p.variant): p.scheme for p in points})


def only(*rows: dict[str, object]) -> Accuracy:
    (found,) = accuracies(of(*rows))
    return found


def test_an_answer_is_right_if_no_token_of_it_is_wrong() -> None:
    found = only(answered(None, None, 0, 2, length=3))
    assert found.exact[3].value == 0.5
    assert found.tokens[3] == (3 + 3 + 0 + 2) / 12
    assert found.stops[3] == 0.25


def test_the_mean_over_lengths_gives_each_the_same_weight_and_parts_seen_from_unseen() -> None:
    found = only(
        answered(None, None, None, None, length=2),
        answered(None, 1, length=L),
        answered(None, 1, 1, 1, length=5),
        answered(1, 1, length=8),
    )
    assert found.seen is not None
    assert found.unseen is not None
    assert (found.seen.value, found.unseen.value) == (0.75, 0.125)


def test_a_mean_of_answers_all_wrong_has_the_interval_of_so_many_answers() -> None:
    found = only(
        answered(None, None, None, length=2),
        answered(*[0] * 20, length=5),
        answered(*[0] * 20, length=8),
    )
    assert found.seen is not None
    assert found.unseen is not None
    assert (found.unseen.value, found.unseen.low) == (0.0, 0.0)
    assert found.unseen.high == pytest.approx(wilson(0, 40)[1])
    assert found.seen.low == pytest.approx(wilson(3, 3)[0])


def test_seeds_count_alike_and_each_is_kept() -> None:
    found = only(
        answered(None, None, None, 0, length=5),
        answered(0, None, 0, 0, length=5, seed=2),
    )
    assert found.exact[5].value == 0.5
    assert found.exact[5].seeds == (0.75, 0.25)
    assert found.unseen is not None
    assert found.unseen.seeds == (0.75, 0.25)


def test_a_length_that_a_seed_lacks_has_no_accuracy() -> None:
    rows = [answered(None, length=5), answered(None, length=8), answered(None, length=5, seed=2)]
    assert list(only(*rows).exact) == [5]


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        ({2: 1.0, 4: 1.0, 6: 0.5, 8: 0.25}, "6"),
        ({2: 1.0, 4: 0.25, 6: 0.75, 8: 0.25}, "2"),  # what comes back by chance does not count
        ({2: 1.0, 4: 1.0, 6: 0.75, 8: 0.5}, ">= 8"),
        ({2: 0.25, 4: 0.0, 6: 0.0, 8: 0.0}, "< 2"),
    ],
)
def test_the_half_length_is_the_last_before_less_than_half_of_the_answers_are_right(
    shares: dict[int, float], text: str
) -> None:
    rows = [
        answered(*(None if i < 4 * share else 0 for i in range(4)), length=length)
        for length, share in shares.items()
    ]
    assert only(*rows).half_length == text


@pytest.mark.parametrize(("backwards", "rho"), [(False, "1.00"), (True, "-1.00")])
def test_the_order_of_schemes_is_compared_with_the_published_one_over_its_lengths(
    backwards: bool, rho: str
) -> None:
    known = {
        a.scheme: a.accuracy
        for a in published.accuracies()
        if a.task == "copy_repeat" and a.scheme in ("nope", "t5", "alibi")
    }
    best_first = sorted(known, key=lambda scheme: known[scheme], reverse=not backwards)
    rows: list[dict[str, object]] = []
    for i, scheme in enumerate(best_first):
        for length, n_right in ((10, i), (30, 3 - i), (60, i)):  # 60 is beyond the published ones
            wrong = [None if k < n_right else 0 for k in range(4)]
            one = answered(*wrong, length=length, scheme=scheme)
            rows.append({**one, "train_length": 20, "corpus": "copy_repeat"})
    spec = {"name": "copy_repeat", "kind": "copy_repeat", "arguments": {}}
    configs: dict[str, dict[str, object]] = {
        str(one["run"]): {"corpus": {"task": spec}, "scheme": {"name": one["scheme"], "parts": {}}}
        for one in rows
    }
    report = task_report.gather(rows, configs, remarks=lambda points, kept, labels: [])
    (table,) = task_report.contents(report)
    (said,) = (note for note in table.notes if "rank correlation" in note)
    assert "over 21 to 40 agrees with Kazemnejad et al. 2023" in said
    assert f"of {rho} (" in said


def skipped(length: int, scheme: str) -> dict[str, object]:
    nothing = {"document": None, "n_documents": 0, "nats": 0.0, "n_tokens": 0, "n_windows": 0}
    absent = dict.fromkeys(("first_wrong", "token_hits", "stop_errors"))
    said = answered(None, length=length, scheme=scheme)
    return {**said, **nothing, **absent, "window_nats": 0.0, "skipped": "no rows"}


def test_a_half_length_before_lengths_without_a_value_is_not_called_censored() -> None:
    found = only(answered(None, length=2), answered(None, length=4), skipped(6, "rope"))
    assert found.half_length == "4 (n/a beyond)"


def test_means_of_a_task_are_over_the_lengths_that_all_series_were_asked() -> None:
    alone = answered(None, length=16)
    rows = [answered(None, 0, length=5), alone, answered(None, None, length=5, scheme="nope")]
    nope, rope = accuracies(of(*rows))
    assert nope.unseen is not None
    assert rope.unseen is not None
    assert (nope.unseen.value, rope.unseen.value) == (1.0, 0.5)
    assert 16 in rope.exact


def test_a_series_without_a_value_at_one_of_them_has_no_mean() -> None:
    rows = [answered(None, length=n, scheme=s) for n in (2, 5) for s in ("nope", "rope")]
    rows += [answered(0, length=8), skipped(8, "nope")]
    nope, rope = accuracies(of(*rows))
    assert nope.unseen is None
    assert nope.seen is not None
    assert rope.unseen is not None
    assert rope.unseen.value == 0.5


@pytest.mark.parametrize(
    "changes",
    [
        {"first_wrong": None},
        {"first_wrong": []},
        {"first_wrong": [None]},
        {"token_hits": None},
        {"n_windows": 0, "first_wrong": []},
    ],
)
def test_a_row_that_does_not_speak_of_every_answer_is_damaged(changes: dict[str, object]) -> None:
    with pytest.raises(UserError, match="rope-tiny-copy-s1-0a0a0a0a: field first_wrong is not of"):
        of({**answered(None, None, length=5), **changes})


# Intervals


def solved(right: int, n: int) -> tuple[float, float]:
    """Wilson's bounds by their definition: where |p - right/n| is Z standard errors of p."""
    z = 1.959964

    def excess(p: float) -> float:
        return abs(right / n - p) - z * math.sqrt(p * (1 - p) / n)

    def root(inside: float, outside: float) -> float:
        for _ in range(200):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if excess(middle) <= 0 else (inside, middle)
        return inside

    return root(right / n, 0.0), root(right / n, 1.0)


@pytest.mark.parametrize(("right", "n"), [(100, 200), (1, 200), (199, 200), (3, 7)])
def test_wilsons_interval_solves_its_equation(right: int, n: int) -> None:
    assert wilson(right, n) == pytest.approx(solved(right, n), abs=1e-6)


def test_200_examples_give_half_widths_of_seven_points_at_most() -> None:
    assert max((high - low) / 2 for low, high in (wilson(k, 200) for k in range(201))) < 0.07


def test_answers_that_are_all_right_have_an_interval_of_some_width() -> None:
    rows = [answered(*[None] * 200, length=5, seed=seed) for seed in (1, 2)]
    found = only(*rows).exact[5]
    assert found.value == 1.0
    assert found.low == pytest.approx(wilson(200, 200)[0])


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    generator, held, n_trials = np.random.default_rng(1), 0, 200
    for _ in range(n_trials):
        right = generator.random(100) < 0.8
        found = only(answered(*(None if one else 0 for one in right), length=5)).exact[5]
        held += found.low <= 0.8 <= found.high
    assert 0.9 <= held / n_trials <= 1.0


def test_seeds_that_differ_widen_the_interval() -> None:
    alike = [answered(*[None] * 50, *[0] * 50, length=5, seed=seed) for seed in (1, 2)]
    apart = [
        answered(*[None] * 90, *[0] * 10, length=5, seed=1),
        answered(*[None] * 10, *[0] * 90, length=5, seed=2),
    ]
    narrow, wide = (only(*rows).exact[5] for rows in (alike, apart))
    assert narrow.value == wide.value == 0.5
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


# Ranks


def task(**right: Sequence[int]) -> list[Accuracy]:
    """A task of which each scheme's seeds answer so many of 10 unseen examples."""
    rows = [
        answered(*[None] * n, *[0] * (10 - n), length=5, scheme=scheme, seed=seed)
        for scheme, seeds in right.items()
        for seed, n in enumerate(seeds, start=1)
    ]
    return accuracies(of(*rows))


def test_ranks_are_means_over_tasks_and_ties_share_theirs() -> None:
    ranks = mean_ranks({"one": task(a=[9], b=[5], c=[5]), "other": task(a=[1], b=[8], c=[2])})
    assert {label: rank.value for label, rank in ranks.items()} == {
        "a": (1 + 3) / 2,
        "b": (2.5 + 1) / 2,
        "c": (2.5 + 2) / 2,
    }


def test_a_rank_that_examples_decide_has_an_interval_and_one_that_is_clear_has_none() -> None:
    ranks = mean_ranks({"one": task(a=[10], b=[5], c=[4])})
    assert (ranks["a"].low, ranks["a"].high) == (1.0, 1.0)
    # b has all that c has right, and one more: on the same examples it can fall to a tie alone.
    assert (ranks["b"].low, ranks["b"].value, ranks["b"].high) == (2.0, 2.0, 2.5)


def test_a_scheme_without_a_value_in_a_task_has_no_rank() -> None:
    ranks = mean_ranks({"one": task(a=[9], b=[5]), "other": task(a=[1])})
    assert set(ranks) == {"a"}


def test_ranks_have_the_seeds_of_those_that_are_ranked() -> None:
    rows = [answered(None, length=5, scheme="a"), skipped(8, "a")]
    for n, scheme, seed in product((5, 8), "bc", (1, 2)):
        right = scheme == "b" or seed == 2
        rows.append(answered(None if right else 0, length=n, scheme=scheme, seed=seed))
    ranks = mean_ranks({"one": accuracies(of(*rows))})
    assert {label: rank.seeds for label, rank in ranks.items()} == {
        "b": (1.0, 1.5),
        "c": (2.0, 1.5),
    }


def test_no_task_has_no_ranks() -> None:
    assert mean_ranks({}) == {}


# Spearman's correlation


def test_spearman_is_one_for_any_increasing_relation_and_minus_one_for_a_decreasing_one() -> None:
    x = [0.1, 2.0, 3.0, 50.0]
    assert spearman(x, [math.log(one) for one in x]) == pytest.approx(1.0)
    assert spearman(x, [-one for one in x]) == pytest.approx(-1.0)


def test_spearman_of_ties_is_pearson_of_mean_ranks() -> None:
    ranks = ([1.0, 2.5, 2.5, 4.0], [2.0, 1.0, 3.0, 4.0])
    want = float(np.corrcoef(*ranks)[0, 1])
    assert spearman([1.0, 5.0, 5.0, 9.0], [20.0, 10.0, 30.0, 40.0]) == pytest.approx(want)


def test_equal_values_have_no_correlation() -> None:
    assert math.isnan(spearman([1.0, 1.0], [1.0, 2.0]))
