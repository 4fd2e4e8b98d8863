"""What answers of a task come to: accuracies with intervals, ranks, and the section of a report."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import about

from lengthgen.report.load import typed
from lengthgen.report.tables import markdown
from lengthgen.tasks import report
from lengthgen.tasks.accuracy import Accuracy, mean_ranks

L = 4
RIGHT = None  # the first wrong token of an answer that is right


def answered(
    *wrong: int | None,
    length: int,
    scheme: str = "rope",
    seed: int = 1,
    task: str = "copy",
    **columns: object,
) -> dict[str, object]:
    """The row of a length: the first wrong token of each answer of 3 tokens."""
    config = {"scheme": {"name": scheme, "parts": {}, "variants": {}}, "seed": seed}
    return {
        **about(scheme, seed=seed, run=f"{scheme}-{task}-s{seed}"),
        **{"recipe": f"{scheme}-{task}", "config": json.dumps(config), "corpus": task},
        **{"fingerprint": task, "train_length": L, "protocol": "answers", "targets": None},
        **{"length": length, "document": f"{len(wrong)} examples", "n_documents": 1},
        **{"nats": 1.0, "n_tokens": 3 * len(wrong), "n_bytes": 0, "n_windows": len(wrong)},
        **{"first_wrong": list(wrong), "unit": "characters", "chance": 0.0},
        "token_hits": sum(3 if at is None else at for at in wrong),
        "stop_errors": sum(at == 2 for at in wrong),
        **columns,
    }


def frame(*rows: dict[str, object]) -> pd.DataFrame:
    return typed(pd.DataFrame(rows))


def by_series(*rows: dict[str, object]) -> dict[str, Accuracy]:
    (task,) = report.results_of(frame(*rows))
    return {one.series: one for one in task.measured}


def shares(n_right: int, n: int = 20) -> list[int | None]:
    return [RIGHT] * n_right + [0] * (n - n_right)


def test_an_answer_is_right_if_no_token_of_it_is_wrong() -> None:
    one = by_series(answered(RIGHT, RIGHT, 0, 2, length=3))["rope"]
    at: Any = one.by_length.loc[3]
    assert (at["accuracy"], at["tests"], at["stops"]) == (0.5, 4, 0.25)
    assert at["tokens"] == (3 + 3 + 0 + 2) / 12
    assert at["first_error"] == 1  # the median of 0 and 2


def test_means_give_each_length_the_same_weight_and_part_seen_from_unseen() -> None:
    one = by_series(
        answered(RIGHT, RIGHT, RIGHT, RIGHT, length=2),
        answered(RIGHT, 1, length=L),
        answered(RIGHT, 1, 1, 1, length=5),
        answered(1, 1, length=8),
    )["rope"]
    assert one.seen is not None
    assert one.unseen is not None
    assert (one.seen.value, one.unseen.value) == (0.75, 0.125)


def test_means_are_over_the_lengths_that_all_series_have_a_value_at() -> None:
    found = by_series(
        *(answered(RIGHT, 0, length=n) for n in (2, 6, 8)),
        *(answered(RIGHT, RIGHT, length=n, scheme="alibi") for n in (2, 6)),
        answered(0, 0, length=2, scheme="t5"),
        {**answered(length=6, scheme="t5"), "document": None, "n_documents": 0, "skipped": "no"},
    )
    assert found["alibi"].unseen is not None
    assert found["alibi"].unseen.value == 1.0
    assert found["t5"].unseen is None


def test_seeds_have_equal_weight_and_a_length_that_one_lacks_has_no_value() -> None:
    one = by_series(
        answered(RIGHT, RIGHT, RIGHT, 0, length=5),
        answered(0, RIGHT, 0, 0, length=5, seed=2),
        answered(RIGHT, RIGHT, RIGHT, 0, length=7),
    )["rope"]
    assert one.by_length["accuracy"].to_dict() == {5: 0.5}


HALVES = {">= 8": (20, 20, 20), "4": (20, 10, 9), "2": (20, 3, 20), "< 2": (0, 20, 20)}


@pytest.mark.parametrize("half", HALVES)
def test_half_of_the_answers_are_right_to_the_half_length(half: str) -> None:
    right = zip((2, 4, 8), HALVES[half], strict=True)
    one = by_series(*(answered(*shares(n), length=length) for length, n in right))["rope"]
    assert one.half_length == half


def two_tasks(*, unlearned: bool = False) -> pd.DataFrame:
    """Two tasks and three schemes: alibi is the best at copy, rope at reverse, t5 the last."""
    right = {"copy": {"alibi": 18, "rope": 10, "t5": 2}}
    right |= {"reverse": {"alibi": 4, "rope": 9, "t5": 4}}
    rows = [
        answered(*shares(n if length > L else seen), length=length, scheme=s, task=task, seed=seed)
        for task, of_task in right.items()
        for s, n in of_task.items()
        for seen in [10 if unlearned and s == "alibi" else 20]
        for length in (2, L, 8)
        for seed in (1, 2)
    ]
    return frame(*rows)


def test_ranks_are_means_over_tasks_and_ties_share_theirs() -> None:
    results = report.results_of(two_tasks())
    ranks = {
        name: rank.value for name, rank in mean_ranks(report.series_that_learned(results)).items()
    }
    assert ranks == {"alibi": (1 + 2.5) / 2, "rope": (2 + 1) / 2, "t5": (3 + 2.5) / 2}


def test_a_scheme_that_did_not_learn_a_task_is_neither_ranked_nor_the_best() -> None:
    results = report.results_of(two_tasks(unlearned=True))
    assert mean_ranks(report.series_that_learned(results)).keys() == {"rope", "t5"}
    section = report.tasks_section(two_tasks(unlearned=True))
    assert section is not None
    cells = {row[0].text: row[1] for row in section.summary[0].rows}
    assert cells["alibi"] == ("not learned", "faint")
    assert cells["rope"].mark == "best"


def test_a_scheme_in_one_task_with_fewer_seeds_changes_no_rank() -> None:
    mine = [answered(*shares(20), length=at, scheme="mine") for at in (2, L, 8)]
    alone, together = (
        mean_ranks(report.series_that_learned(report.results_of(rows)))
        for rows in (two_tasks(), pd.concat([two_tasks(), frame(*mine)]))
    )
    assert alone == together != {}


def test_lengths_that_a_few_or_no_series_have_values_at_leave_the_others_their_means() -> None:
    schemes = ("alibi", "rope", "t5")
    rows = [answered(*shares(20), length=n, scheme=s) for n in (2, L, 8) for s in schemes]
    part = answered(*shares(20), length=8, scheme="nope")
    none = {"document": None, "n_documents": 0, "first_wrong": None, "skipped": "no tests"}
    empty = [answered(length=1, scheme=s) | none for s in schemes]
    found = by_series(*rows, part, *empty)
    assert {name for name, one in found.items() if one.excluded is None} == {*schemes}
    assert found["nope"].excluded == "no accuracy up to L"


@pytest.mark.parametrize(("n_right", "chance", "counts"), [(6, 0.25, True), (5, 0.25, False)])
def test_a_task_counts_if_a_scheme_exceeds_chance_by_five_points_beyond_l(
    n_right: int, chance: float, counts: bool
) -> None:
    rows = answered(*shares(20), length=2), answered(*shares(n_right), length=8)
    results = report.results_of(frame(*({**row, "chance": chance} for row in rows)))
    assert bool(report.series_that_learned(results)) == counts


def test_measures_of_decoded_tests_are_means_over_the_tests_that_all_seeds_have() -> None:
    one = by_series(
        answered(*shares(1), length=5, edit_distances=[0.0, 0.5, 1.0]),
        answered(*shares(1), length=5, seed=2, edit_distances=[0.5, 0.5]),
    )["rope"]
    measured = {k: v[5] for k, v in one.by_length.to_dict().items()}
    assert measured["edit_distance"] == pytest.approx(0.375)
    assert np.isnan(measured["result"])


def test_a_section_shows_each_task_and_is_absent_without_one() -> None:
    rows = two_tasks()
    section = report.tasks_section(rows)
    assert section is not None
    assert section.figures.keys() == {"accuracy-copy", "accuracy-reverse"}
    written = markdown(section.tables[1])
    assert "| alibi  |     2 | 100.0 | 100.0 | 90.0 |" in written
    (accuracy,) = section.data["tasks"].query("task == 'copy' and series == 't5' and length == 8")[
        "accuracy"
    ]
    assert accuracy == pytest.approx(0.1)
    assert report.tasks_section(rows.loc[rows["protocol"] == "tail"]) is None
