"""Accuracy of tasks: shares of right answers, their intervals, ranks over tasks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from eval_rows import cell, row
from scipy import stats

from lengthgen.analysis import curves, reference_results
from lengthgen.analysis.accuracy import (
    Accuracy,
    accuracies,
    agreement,
    correlation,
    counted,
    mean_ranks,
    unseen_difference,
    wilson,
)
from lengthgen.analysis.findings import Finding, findings
from lengthgen.analysis.seed_groups import Series, series
from lengthgen.errors import UserError
from lengthgen.report import collect, pictures, task_tables
from lengthgen.report.figures.accuracy import PALE, Dot, accuracy, relation, side_by_side
from lengthgen.report.figures.chart import Chart
from lengthgen.report.figures.layout import laid_out
from lengthgen.report.run_records import RunRecord, task_facts
from lengthgen.report.table_formats import Cell

L = 4
SCHEMES = ("alibi", "rope", "t5")
TWO = ("copy", "reverse")


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
    points = curves.curve(rows)
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


def test_seeds_have_equal_weight_and_each_is_kept() -> None:
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


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        ({2: 1.0, 4: 0.4, 6: 0.2, 8: 0.0}, "6"),
        ({2: 1.0, 4: 0.0, 6: 0.6, 8: 0.0}, "2"),  # what comes back by chance does not count
        ({2: 1.0, 4: 0.8, 6: 0.4, 8: 0.2}, ">= 8"),
        ({2: 0.0, 4: 0.0, 6: 0.0, 8: 0.0}, "< 2"),
    ],
)
def test_k_max_is_the_last_before_less_than_a_fifth_of_the_answers_are_right(
    shares: dict[int, float], text: str
) -> None:
    rows = [
        answered(*(None if i < 5 * share else 0 for i in range(5)), length=length)
        for length, share in shares.items()
    ]
    assert only(*rows).k_max == text


def test_the_order_of_five_schemes_is_said_to_be_too_short_for_a_correlation() -> None:
    known = [a for a in reference_results.accuracies() if a.task == "copy_repeat"]
    rows: list[dict[str, object]] = []
    for i, paper in enumerate(known):
        for length, n_right in ((10, 4), (30, 4 - i), (60, i)):  # 60 is beyond the published ones
            wrong = [None if k < n_right else 0 for k in range(4)]
            one = answered(*wrong, length=length, scheme=paper.scheme)
            rows.append({**one, "train_length": 20, "corpus": "copy_repeat"})
    (table,) = task_tables.contents(reported(rows))
    (message,) = (note for note in table.notes if "The order of" in note)
    assert (
        "over 21 to 40 compared with that of Kazemnejad et al. 2023: no rank correlation (n = 5"
        in message
    )


def reported(rows: Sequence[dict[str, object]]) -> task_tables.TaskReport:
    """The report of the tasks that rows name as their corpus."""
    configs: dict[str, dict[str, object]] = {}
    for one in rows:
        spec = {"name": one["corpus"], "kind": one["corpus"], "arguments": {}}
        parts = {"name": one["scheme"], "parts": {one["scheme"]: {}}}
        configs[str(one["run"])] = {"corpus": {"task": spec}, "scheme": parts}
    records = [
        RunRecord(
            run=run,
            config=config,
            task=task_facts(config),
            rows=[dict(row) for row in rows if row["run"] == run],
        )
        for run, config in configs.items()
    ]
    return collect.gather_tasks(records)


def skipped(length: int, scheme: str) -> dict[str, object]:
    nothing = {"document": None, "n_documents": 0, "nats": 0.0, "n_tokens": 0, "n_windows": 0}
    absent = dict.fromkeys(("first_wrong", "token_hits", "stop_errors"))
    message = answered(None, length=length, scheme=scheme)
    return {**message, **nothing, **absent, "window_nats": 0.0, "skipped": "no rows"}


def test_a_half_length_before_lengths_without_a_value_is_not_called_censored() -> None:
    found = only(answered(None, length=2), answered(None, length=4), skipped(6, "rope"))
    assert found.half_length == "4 (n/a beyond)"


def test_means_of_a_task_are_over_the_lengths_that_all_series_have() -> None:
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


# Decoded tests


def test_measures_of_decoded_tests_are_means_over_tests_and_then_over_lengths() -> None:
    row = answered(None, 0, 0, length=5)
    long = answered(None, 0, 0, length=8)
    found = only(
        {**row, "edit_distances": [0.0, 0.25], "answer_ranks": [1, 4]},
        {**long, "edit_distances": [0.5, 1.0, 0.0], "answer_ranks": [10, 10, 1]},
        answered(None, length=2),
    )
    assert list(found.decoded) == ["edit distance", "rank"]
    distance, rank = found.decoded.values()
    assert {n: e.value for n, e in distance.by_length.items()} == {5: 0.125, 8: 0.5}
    assert distance.n_tests == {5: 2, 8: 3}
    assert distance.unseen is not None
    assert distance.unseen.value == pytest.approx((0.125 + 0.5) / 2)
    assert distance.seen is None  # the length up to L has none
    assert rank.by_length[8].value == 7
    assert only(answered(None, length=2)).decoded == {}


def test_seeds_share_the_tests_that_all_of_them_decoded() -> None:
    def row(*distances: float, seed: int) -> dict[str, object]:
        return {**answered(None, 0, 0, length=5, seed=seed), "edit_distances": [*distances]}

    (distance,) = only(row(0.0, 0.5, seed=1), row(0.5, 0.5, 0.9, seed=2)).decoded.values()
    assert distance.n_tests == {5: 2}
    assert distance.by_length[5].value == pytest.approx(0.375)
    assert distance.by_length[5].seeds == pytest.approx((0.25, 0.5))
    none = answered(None, 0, 0, length=5, seed=3)
    assert only(row(0.0, 0.5, seed=1), none).decoded == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"edit_distances": [0.5] * 3},
        {"edit_distances": []},
        {"edit_distances": [0.5, 0.5], "results_right": [True]},
    ],
)
def test_a_row_that_does_not_speak_of_every_decoded_test_is_damaged(
    changes: dict[str, object],
) -> None:
    with pytest.raises(UserError, match="field edit_distances is not of every decoded answer"):
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


def test_intervals_of_few_seeds_hold_the_truth_too() -> None:
    """Shares that differ by seed: 95 % of 200 trials, less three standard errors."""
    generator, held, n_trials = np.random.default_rng(2), 0, 200
    for _ in range(n_trials):
        shares = generator.beta(2, 2, size=3)
        rows = [
            answered(*(None if x < share else 0 for x in generator.random(40)), length=5, seed=seed)
            for seed, share in enumerate(shares, start=1)
        ]
        found = only(*rows).exact[5]
        held += found.low <= 0.5 <= found.high
    assert held / n_trials >= 0.9


def test_seeds_that_differ_widen_the_interval() -> None:
    equal = [answered(*[None] * 50, *[0] * 50, length=5, seed=seed) for seed in (1, 2)]
    different = [
        answered(*[None] * 90, *[0] * 10, length=5, seed=1),
        answered(*[None] * 10, *[0] * 90, length=5, seed=2),
    ]
    narrow, wide = (only(*rows).exact[5] for rows in (equal, different))
    assert narrow.value == wide.value == 0.5
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_a_difference_is_paired_by_seed_and_example() -> None:
    """Of 20 examples a always has those of b right, and two more; the seeds differ by ten."""
    rows = [
        answered(*[None] * n, *[0] * (20 - n), length=5, scheme=scheme, seed=seed)
        for scheme, more in (("a", 2), ("b", 0))
        for seed, n in ((1, 2 + more), (2, 12 + more))
    ]
    a, b = accuracies(of(*rows))
    found = unseen_difference(a, b)
    assert found is not None
    assert found.seeds == pytest.approx((0.1, 0.1))
    assert found.high - found.low < 0.3 < b.exact[5].high - b.exact[5].low
    assert unseen_difference(a, only(answered(None, length=5, scheme="b"))) is None


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


def test_the_bounds_of_a_rank_are_those_of_seeds() -> None:
    ranks = mean_ranks(
        {"one": task(a=[10, 9], b=[5, 9], c=[4, 9]), "other": task(a=[9, 9], b=[5, 9], c=[4, 3])}
    )
    assert ranks == {
        "a": (1.375, 1.0, 1.75),
        "b": (1.875, 1.75, 2.0),
        "c": (2.75, 2.5, 3.0),
    }


def test_a_scheme_without_a_value_in_a_task_has_no_rank() -> None:
    ranks = mean_ranks({"one": task(a=[9], b=[5], c=[3]), "other": task(a=[1], c=[2])})
    assert set(ranks) == {"a", "c"}


def test_a_scheme_alone_has_no_rank() -> None:
    assert mean_ranks({"one": task(a=[9], b=[5]), "other": task(a=[1])}) == {}


def test_ranks_have_the_seeds_of_those_that_are_ranked() -> None:
    rows = [answered(None, length=5, scheme="a"), skipped(8, "a")]
    for n, scheme, seed in product((5, 8), "bc", (1, 2)):
        right = scheme == "b" or seed == 2
        rows.append(answered(None if right else 0, length=n, scheme=scheme, seed=seed))
    ranks = mean_ranks({"one": accuracies(of(*rows))})
    assert ranks == {"b": (1.25, 1.0, 1.5), "c": (1.75, 1.5, 2.0)}


def test_no_task_has_no_ranks() -> None:
    assert mean_ranks({}) == {}


# Gates


def shares(
    scheme: str, *, seen: float, unseen: float, task: str = "copy", seed: int = 1
) -> list[dict[str, object]]:
    """The rows of a scheme that answers such shares of 100 at two lengths seen and one unseen."""
    found: list[dict[str, object]] = []
    for length, share in ((2, seen), (L, seen), (8, unseen)):
        right = round(100 * share)
        one = answered(
            *[None] * right, *[0] * (100 - right), length=length, scheme=scheme, seed=seed
        )
        found.append({**one, "corpus": task, "run": f"{scheme}-tiny-{task}-s{seed}-0a0a0a0a"})
    return found


def counting(
    *rows: list[dict[str, object]], chance: float = 0.0
) -> tuple[set[str], dict[str, Accuracy]]:
    """The schemes that count in the only task (none if the task does not), and all of them."""
    found = {one.series.label: one for one in accuracies(of(*(row for of in rows for row in of)))}
    by_task = counted({"copy": list(found.values())}, {"copy": chance})
    return {one.series.label for ones in by_task.values() for one in ones}, found


@pytest.mark.parametrize(("seen", "message"), [(0.94, "not learned"), (0.95, None), (1.0, None)])
def test_a_scheme_counts_where_it_is_right_in_95_percent_up_to_L(
    seen: float, message: str | None
) -> None:
    labels, found = counting(
        shares("alibi", seen=1.0, unseen=0.5), shares("rope", seen=seen, unseen=0.9)
    )
    assert found["rope"].excluded == message
    assert labels == {"alibi"} | ({"rope"} if message is None else set())


def test_it_is_the_mean_over_lengths_and_seeds_that_decides() -> None:
    labels, _ = counting(
        *(shares("nope", seen=seen, unseen=0.5, seed=seed) for seed, seen in ((1, 0.9), (2, 1.0)))
    )
    assert labels == {"nope"}


def test_a_mean_of_95_percent_counts_however_it_is_rounded() -> None:
    right = {2: 86, 3: 100, L: 99, 5: 100}  # as floats, the mean of the first three is below 0.95
    rows = [answered(*[None] * n, *[0] * (100 - n), length=at) for at, n in right.items()]
    labels, _ = counting(rows)
    assert labels == {"rope"}


def test_a_scheme_whose_accuracy_up_to_L_is_unknown_does_not_count() -> None:
    labels, found = counting([answered(None, length=5)])
    assert found["rope"].excluded == "no accuracy up to L"
    assert labels == set()


@pytest.mark.parametrize(
    ("unseen", "chance", "counts"),
    [(0.05, 0.0, True), (0.04, 0.0, False), (0.54, 0.5, False), (0.55, 0.5, True)],
)
def test_a_task_counts_if_a_scheme_exceeds_chance_by_five_points_beyond_L(
    unseen: float, chance: float, counts: bool
) -> None:
    labels, _ = counting(
        shares("alibi", seen=1.0, unseen=unseen), shares("rope", seen=1.0, unseen=0), chance=chance
    )
    assert labels == ({"alibi", "rope"} if counts else set())


def test_neither_a_scheme_that_did_not_learn_a_task_nor_an_upper_bound_makes_it_count() -> None:
    labels, found = counting(
        shares("alibi", seen=1.0, unseen=0.0), shares("rope", seen=0.9, unseen=1.0)
    )
    assert labels == set()
    bound = found["rope"].series
    solved = accuracies([replace(bound, points=bound.points, bound=True)])
    learned = [replace(one, seen=found["alibi"].seen) for one in solved]
    assert counted({"copy": [found["alibi"], *learned]}, {"copy": 0.0}) == {}


def matrix(*rows: list[dict[str, object]]) -> tuple[dict[str, list[Cell]], str]:
    """The cells of the table of tasks by scheme, and its notes."""
    table, *_ = task_tables.contents(reported([row for of in rows for row in of]))
    return {line[0].text: list(line[1:]) for line in table.rows}, " ".join(table.notes)


def test_a_task_that_nobody_learned_has_no_ranks_and_no_best() -> None:
    rows, notes = matrix(
        *(shares(one, seen=0.5, unseen=0.4, task=task) for one in ("alibi", "rope") for task in TWO)
    )
    grey = Cell("not learned", "faint")
    assert rows == {"alibi": [grey, grey, Cell("-")], "rope": [grey, grey, Cell("-")]}
    assert "Mean rank: none" in notes
    assert "In no rank, grey or in parentheses: copy, reverse; no scheme that learned it" in notes


def test_ranks_are_over_the_tasks_and_schemes_that_count() -> None:
    rows, notes = matrix(
        *(shares(one, seen=1.0, unseen=n / 10, task="copy") for n, one in enumerate(SCHEMES)),
        *(shares(one, seen=1.0, unseen=0.01, task="reverse") for one in SCHEMES[:2]),
        shares("t5", seen=0.94, unseen=0.9, task="reverse"),
    )
    assert rows["rope"] == [Cell("10.0"), Cell("1.0", "faint"), Cell("2.00 [2.00, 2.00]")]
    assert rows["t5"][:2] == [Cell("20.0", "best"), Cell("not learned", "faint")]
    assert "Mean rank: over copy, of the schemes that count in each" in notes
    assert "Not learned, grey or in parentheses: less than 95% right up to L" in notes


def test_the_table_of_a_task_greys_a_scheme_that_did_not_learn_it() -> None:
    rows = [*shares("alibi", seen=1.0, unseen=0.5), *shares("rope", seen=0.94, unseen=0.9)]
    (table,) = task_tables.contents(reported(rows))
    by_name = {line[0].text: line for line in table.rows}
    assert set(by_name) == {"alibi", "rope (not learned)"}
    assert {cell.mark for cell in by_name["rope (not learned)"][1:]} == {"faint"}
    assert {cell.mark for cell in by_name["alibi"]} == {""}
    assert by_name["rope (not learned)"][3].text == "94.0"


def test_the_figure_of_a_task_pales_a_scheme_that_did_not_learn_it() -> None:
    rows = [*shares("alibi", seen=1.0, unseen=0.5), *shares("rope", seen=0.94, unseen=0.9)]
    chart = accuracy(accuracies(of(*rows)), unit="characters", chance=0.0, published=[])
    assert chart is not None
    ends = {line.end: line.style["color"] for line in chart.lines}
    assert set(ends) == {"alibi", "rope (not learned)"}
    assert ends["rope (not learned)"] == PALE["color"] != ends["alibi"]
    assert any(message.startswith("pale: less than 95%") for message in chart.notes)


@pytest.mark.parametrize("trained", [[L], [L, 6]])
def test_the_name_of_L_stands_above_all_that_is_drawn_of_a_task(trained: list[int]) -> None:
    rows = [*shares("alibi", seen=1.0, unseen=1.0), *shares("rope", seen=1.0, unseen=0.0)]
    (chart,) = drawn(rows)
    figure = laid_out(replace(chart, trained=trained))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    best = axes.transData.transform((L, 1.0))[1] + figure.dpi * 3 / 72  # and half of a marker
    names = {text.get_text(): text.get_window_extent() for text in axes.texts}
    assert {*names} == {f"trained to {length}" for length in trained}
    assert all(best < name.y0 < name.y1 < axes.bbox.y1 for name in names.values())


def test_series_of_two_tasks_are_one_row_only_if_their_model_is_one() -> None:
    copying = shares("alibi", seen=1.0, unseen=0.5)
    sorting = shares("alibi", seen=1.0, unseen=0.2, task="sort")
    of_encoders = [{**row, "model": "tiny_encoder"} for row in sorting]
    for rows, names in (
        (sorting, ["alibi"]),
        (of_encoders, ["alibi (tiny)", "alibi (tiny_encoder)"]),
    ):
        matrix, *_ = task_tables.contents(reported([*copying, *rows]))
        assert [line[0].text for line in matrix.rows] == names


def drawn(rows: Sequence[dict[str, object]]) -> list[Chart]:
    return [*pictures.accuracies(reported(rows), published=False).values()]


def test_tasks_side_by_side_name_a_series_as_where_it_counts() -> None:
    rows = [
        *shares("alibi", seen=1.0, unseen=0.5, task="sort"),
        *shares("rope", seen=1.0, unseen=0.1, task="sort"),
        *shares("alibi", seen=0.9, unseen=0.5),
        *shares("rope", seen=1.0, unseen=0.2),
        *shares("nope", seen=0.2, unseen=0.1),
    ]
    figure = side_by_side(drawn(rows))
    assert figure is not None
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sorted(names) == ["alibi", "nope (not learned)", "rope"]
    colours = dict(
        zip(names, (line.get_color() for line in figure.legends[0].get_lines()), strict=True)
    )
    grey = [name for name, colour in colours.items() if colour == PALE["color"]]
    assert grey == ["nope (not learned)"]
    copying, sorting = (axes.get_title(loc="left") for axes in figure.axes)
    assert copying.startswith("(a) right answers; corpus copy")
    assert sorting.startswith("(b) right answers; corpus sort")


@pytest.mark.parametrize(
    ("n", "shape"),
    [(1, None), (2, (1, 2)), (3, (1, 3)), (4, (2, 2)), (5, (3, 2)), (6, (3, 2)), (7, None)],
)
def test_two_to_six_tasks_share_a_figure(n: int, shape: tuple[int, int] | None) -> None:
    tasks = ["copy", "sort", "reverse", "parity", "modsum", "mqar", "addition"][:n]
    rows = [row for task in tasks for row in shares("alibi", seen=1.0, unseen=0.5, task=task)]
    figure = side_by_side(drawn(rows))
    grid = figure.axes[0].get_gridspec() if figure else None
    assert (grid and grid.get_geometry()) == shape
    if figure is not None:
        assert [axes.axison for axes in figure.axes] == [i < n for i in range(len(figure.axes))]


# Rank correlations


def test_rho_is_one_for_any_increasing_relation_and_minus_one_for_a_decreasing_one() -> None:
    x = [0.1, 2.0, 3.0, 50.0, 51.0, 60.0]
    up, down = (correlation(x, [sign * math.log(one) for one in x]) for sign in (1, -1))
    assert up is not None
    assert down is not None
    assert (up.rho, down.rho) == pytest.approx((1.0, -1.0))
    assert up.p == down.p == pytest.approx(2 / 720)


def test_rho_of_ties_is_pearson_of_mean_ranks() -> None:
    ranks = ([1.0, 2.5, 2.5, 4.0, 5.0, 6.0], [2.0, 1.0, 3.0, 4.0, 6.0, 5.0])
    found = correlation([1.0, 5.0, 5.0, 9.0, 10.0, 11.0], [20.0, 10.0, 30.0, 40.0, 60.0, 50.0])
    assert found is not None
    assert found.rho == pytest.approx(float(np.corrcoef(*ranks)[0, 1]))


@pytest.mark.parametrize(
    "other", [[2, 1, 3, 4, 6, 5], [1, 1, 2, 2, 3, 0], [3, 1, 2, 6, 4, 5, 7], [0, 0, 0, 1, 1, 2, 1]]
)
def test_p_is_the_share_of_all_permutations_with_a_rho_as_far_from_0(other: list[float]) -> None:
    one = [float(x // 2) for x in range(len(other))]  # with ties, ranks 1.5, 1.5, 3.5 ...
    ranks = [[sum(b < a for b in of) + of.count(a) / 2 for a in of] for of in (one, other)]

    def rho(order: Sequence[float]) -> float:
        return float(np.corrcoef(ranks[0], order)[0, 1])

    least = abs(rho(ranks[1])) - 1e-9
    as_far = [abs(rho(order)) >= least for order in permutations(ranks[1])]
    found = correlation(one, other)
    assert found is not None
    assert (found.n, found.rho) == (len(other), pytest.approx(rho(ranks[1])))
    assert found.p == pytest.approx(sum(as_far) / len(as_far))


def test_p_of_many_schemes_is_about_that_of_a_t_test_and_the_same_every_time() -> None:
    x, y = np.random.default_rng(3).normal(size=(2, 20)).tolist()
    first, again = correlation(x, y), correlation(x, y)
    assert first is not None
    assert first == again
    t = first.rho * math.sqrt(18 / (1 - first.rho**2))
    assert first.p == pytest.approx(2 * float(stats.t.sf(abs(t), 18)), abs=0.02)


def test_chance_finds_p_below_5_percent_in_no_more_than_5_percent() -> None:
    generator, below, n_trials = np.random.default_rng(1), 0, 300
    for _ in range(n_trials):
        found = correlation(*generator.normal(size=(2, 6)).tolist())
        below += found is not None and found.p < 0.05
    assert below / n_trials <= 0.05


def test_five_schemes_have_no_correlation_since_only_a_perfect_order_would_tell() -> None:
    x, y = [1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0, 3.0, 5.0, 4.0]
    assert correlation(x, x) is None
    assert agreement(x, x).startswith("no rank correlation (n = 5: below 6 schemes only a perfect")
    rhos = [abs(float(np.corrcoef(x, order)[0, 1])) for order in permutations(x)]
    next_best = abs(float(np.corrcoef(x, y)[0, 1])) - 1e-9
    assert sum(rho >= next_best for rho in rhos) / len(rhos) > 0.05


def test_a_correlation_is_written_with_n_and_p() -> None:
    x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert agreement(x, x) == "Spearman's rho +1.00 (n = 6, permutation P = 0.0028)"


def test_equal_values_have_no_correlation() -> None:
    assert correlation([1.0] * 6, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) is None
    assert "all values of a side are equal" in agreement([1.0] * 6, [1.0] * 6)


# The relation to perplexity


def text_of(schemes: Mapping[str, float]) -> list[Finding]:
    """Findings of text under some schemes that lose so many nats at 4 T."""
    rows: list[dict[str, object]] = [
        {**one, "run": f"{scheme}-tiny-toy-s1-0a0a0a0a", "scheme": scheme}
        for scheme, lost in schemes.items()
        for length, loss in ((512, 3.0), (2048, 3.0 + lost))
        for one in cell(8 * loss, 8 * loss, length=length)
    ]
    return findings({"tail": of(*rows)})


def test_the_relation_is_of_the_tasks_that_count_and_the_schemes_that_learned_them() -> None:
    rows = [
        *(
            one
            for n, scheme in enumerate(SCHEMES)
            for one in shares(scheme, seen=1.0, unseen=n / 4)
        ),
        *(one for scheme in SCHEMES for one in shares(scheme, seen=0.5, unseen=1, task="reverse")),
        *shares("kerple", seen=0.94, unseen=1.0),
        *(one for s in SCHEMES[:2] for one in shares(s, seen=1.0, unseen=0.5, task="sort")),
        *shares("t5", seen=0.94, unseen=1.0, task="sort"),
    ]
    report = reported(rows)
    text = text_of({"alibi": 0.0, "rope": 1.0, "t5": 0.5, "kerple": 0.1})
    found = {dot.label: dot for dot in pictures.dots(report, text)}
    assert {label: dot.accuracy for label, dot in found.items()} == pytest.approx(
        {"alibi": (0 + 0.5) / 2, "rope": (0.25 + 0.5) / 2}
    )
    assert found["rope"].ratio == pytest.approx(math.e)
    out = pictures.left_out(report, text, [*found])
    assert out.startswith("kerple, t5 (not learned in")
    assert "reverse (no scheme that learned it" in out


@pytest.mark.parametrize(
    ("n", "message"),
    [
        (5, "no rank correlation (n = 5"),
        (6, "Spearman's rho +1.00 (n = 6, permutation P = 0.0028)"),
    ],
)
def test_the_relation_says_its_correlation_of_six_schemes_and_more(n: int, message: str) -> None:
    dots = [Dot(f"s{i}", 2.0 - i / 10, i / 10, 4.0) for i in range(n)]
    figure = relation(dots, tasks=["copy"], left_out="a reason of many lines " * 20 + "(why)")
    (axes,) = figure.axes
    title = " ".join(figure.get_suptitle().split())
    figure.draw_without_rendering()
    assert figure.bbox.y1 >= max(one.get_window_extent().y1 for one in figure.texts)
    assert axes.get_window_extent().height > figure.bbox.height / 3
    assert message in title
    assert "left out: a reason" in title
    assert title.endswith("(why)")
