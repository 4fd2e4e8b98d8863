"""curve_tables: what is best, what ties with it, and every number as the findings have it."""

import csv
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from eval_rows import Runs, gathered, row

from lengthgen.analysis.comparisons import compare, difference
from lengthgen.analysis.curves import curve
from lengthgen.analysis.seed_groups import Series
from lengthgen.evaluation.protocols import named
from lengthgen.report import curve_csv, curve_tables
from lengthgen.report.collect import Report
from lengthgen.report.run_records import Cost
from lengthgen.report.table_formats import Cell, Table


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "runs")


def line(
    label: str,
    *losses: float,
    noise: float = 0.0,
    reference: bool = False,
    seeds: tuple[int, ...] = (1, 2, 3),
    documents: str = "abcdefgh",
    **changes: Any,
) -> Series:
    """A series of three seeds and eight documents: T = 512, then doublings; losses plus noise."""
    chance = random.Random(label)
    shared = random.Random(0)  # what makes documents and seeds differ in all series alike
    hard = {(s, d): shared.gauss(0, 0.3) for s in (1, 2, 3) for d in "abcdefgh"}
    hard = {(s, d): one for (s, d), one in hard.items() if s in seeds and d in documents}
    return Series(
        label=label,
        reference=reference,
        points=tuple(
            curve(
                row(
                    **{"run": f"{label}-{s}", "scheme": label, "seed": s, "document": d},
                    **{"length": 512 * 2**i, "n_documents": len(documents)},
                    **{"nats": 8 * (loss + hard[s, d] + chance.gauss(0, noise)), **changes},
                )
                for i, loss in enumerate(losses)
                for s, d in hard
            )
        ),
    )


def there(table: Table | None) -> Table:
    assert table is not None
    return table


def cells(table: Table, name: str) -> dict[str, Cell]:
    (found,) = [r for r in table.rows if r[0].text == name]
    return dict(zip(table.head, found, strict=True))


# Perplexity


def test_the_least_perplexity_of_a_length_is_best() -> None:
    found = curve_tables.perplexities([line("a", 3.0, 2.0), line("b", 2.0, 3.0)], ["a", "b"])
    assert cells(found, "a")["512"].mark == ""
    assert cells(found, "a")["1k"].mark == "best"
    assert cells(found, "b")["512"].mark == "best"


def test_one_seed_marks_nothing_and_says_why() -> None:
    lines = [line("a", 3.0, seeds=(1,)), line("b", 5.0, seeds=(1,))]
    found = curve_tables.perplexities(lines, [])
    assert {cell.mark for row in found.rows for cell in row} <= {"", "faint"}
    assert curve_tables.NOT_MARKED in found.notes
    behind = there(curve_tables.against_least(lines))
    assert cells(behind, "b")["rank at 512"].text == "n/a"
    assert {cell.mark for row in behind.rows for cell in row} == {""}


def test_one_document_of_several_seeds_is_neither_best_nor_a_tie() -> None:
    lines = [line("a", 3.0, documents="a"), line("b", 5.0, documents="a")]
    found = curve_tables.perplexities(lines, [])
    assert [cells(found, name)["512"].mark for name in "ab"] == ["", ""]
    assert curve_tables.NOT_MARKED in found.notes


def test_blocks_of_a_packed_stream_are_compared_like_documents() -> None:
    lines = [line(name, loss, noise=0.01, packed=True) for name, loss in (("a", 3.0), ("b", 5.0))]
    found = curve_tables.perplexities(lines, [])
    assert [cells(found, name)["512"].mark for name in "ab"] == ["best", ""]


def test_what_cannot_be_compared_with_the_best_has_a_question_mark() -> None:
    lines = [line("a", 3.0), line("b", 3.5), line("c", 3.2, seeds=(1,))]
    found = curve_tables.perplexities(lines, [])
    assert cells(found, "c")["512"].mark == "unknown"
    assert curve_tables.NOT_COMPARED in found.notes


def test_the_least_loss_at_the_longest_length_stands_first() -> None:
    lines = [line("a", 1.0, 4.0), line("b", 2.0, 3.0), line("c", 3.0, 2.0), line("d", 1.0)]
    assert [r[0].text for r in curve_tables.perplexities(lines, []).rows] == ["c", "b", "a", "d"]


def test_the_ratio_of_a_series_that_learnt_little_is_faint() -> None:
    lines = [line("a", 3.0, 4.0), line("b", 3.049, 4.0), line("c", 3.051, 3.1)]
    found = curve_tables.perplexities(lines, [])
    assert [cells(found, name)["1k/512"].mark for name in "abc"] == ["", "", "faint"]
    assert curve_tables.FAINT in found.notes


def test_a_value_that_noise_may_have_made_worse_is_a_tie() -> None:
    lines = [line("a", 3.0, noise=0.1), line("b", 3.02, noise=0.1), line("c", 6.0, noise=0.1)]
    found = curve_tables.perplexities(lines, [])
    marks = {name: cells(found, name)["512"].mark for name in "abc"}
    assert sorted(marks.values()) == ["", "best", "tie"]
    assert marks["c"] == ""


def test_a_reference_is_neither_best_nor_tied_and_stands_last() -> None:
    lines = [line("a", 1.0, reference=True), line("b", 3.0), line("c", 4.0)]
    found = curve_tables.perplexities(lines, ["b", "c"])
    assert [r[0].text for r in found.rows] == ["b", "c", "a"]
    assert cells(found, "a")["512"].mark == ""
    assert cells(found, "b")["512"].mark == "best"


def test_a_single_value_is_not_marked() -> None:
    found = curve_tables.perplexities([line("a", 3.0, 2.0), line("b", 2.5)], [])
    assert cells(found, "a")["1k"].mark == ""
    alone = curve_tables.perplexities([line("a", 3.0), line("b", 1.0, reference=True)], [])
    assert curve_tables.MARKED not in alone.notes


def test_the_last_column_is_the_ratio_of_the_longest_to_T() -> None:
    found = curve_tables.perplexities([line("a", 2.0, 3.0, 4.0)], [])
    assert cells(found, "a")["2k/512"].text == f"{math.exp(2.0):.2f}"


# Verdicts and key numbers


def test_a_verdict_stands_with_the_interval_of_its_gain(runs: Runs) -> None:
    found = gathered(runs.write("rope", (3.0, 2.5, 3.0, 5.0)))
    row = cells(there(curve_tables.verdicts(found.findings)), "rope")
    assert row["1k"].text == "uses [+0.500, +0.500]"
    assert row["2k"].text == "unclear [+0.000, +0.000]"
    assert row["16k"].text == "harmed [-2.000, -2.000]"
    assert "512" not in row
    assert (row["c*"].text, row["seeds"].text) == ("n/a", "1 (this checkpoint)")


def test_the_used_context_and_what_the_data_could_show_stand_beside_the_verdicts(
    runs: Runs,
) -> None:
    lengths = (64, 256, 512, 1024)
    found = gathered(
        *(runs.write("rope", (3.5, 3.1, 3.0, 3.0), lengths=lengths, seed=s) for s in (1, 2))
    )
    row = cells(there(curve_tables.verdicts(found.findings)), "rope")
    assert row["1k"].text == "ignores [+0.000, +0.000]"
    assert (row["c*"].text, row["seeds"].text, row["least |G| shown"].text) == ("512", "2", "0.000")


def test_an_unclear_verdict_is_followed_by_what_would_decide_it(runs: Runs) -> None:
    notes = there(curve_tables.verdicts(gathered(runs.write("rope", (3.0, 3.0))).findings)).notes
    assert any(said.startswith("rope: ") and "add 64, 128, 256" in said for said in notes)


def test_references_are_not_judged(runs: Runs) -> None:
    path = runs.write("rope")
    runs.write("rope", variant="window")
    config = path / "config.yaml"
    config.write_text(config.read_text() + "eval: {reference_variants: [window]}\n")
    found = gathered(path)
    for table in (curve_tables.verdicts(found.findings), curve_tables.key_numbers(found.findings)):
        assert [r[0].text for r in there(table).rows] == ["rope"]


def test_without_lengths_beyond_T_there_are_no_verdicts(runs: Runs) -> None:
    assert (
        curve_tables.verdicts(gathered(runs.write("rope", (3.0,), lengths=(512,))).findings) is None
    )


def test_key_numbers_are_those_of_the_definitions(runs: Runs) -> None:
    far: dict[str, Any] = {"far_tokens": 4}
    path = runs.write("rope", (3.0,), lengths=(512,), far_nats=4 * 5.0, **far)
    for n, loss, nats in ((1024, 2.9, 16.0), (2048, 3.005, 14.0), (8192, 3.04, 8.0)):
        runs.write("rope", (loss,), lengths=(n,), far_nats=nats, **far)
    runs.write("rope", (3.255,), lengths=(2048,), protocol="swap")
    row = cells(there(curve_tables.key_numbers(gathered(path).findings)), "rope")
    value = {name: cell.text.split(" [")[0] for name, cell in row.items()}
    assert value == {
        **{"scheme": "rope", "NLL(T)": "3.000", "NLL(longest)": "3.040", "c*": "n/a"},
        **{"G(2T)": "+0.100", "G(4T)": "-0.005", "G(16T)": "-0.040"},
        **{"XF .01": "4", "XF .05": ">= 16", "U(4T)": "+0.250"},
        "least |G| shown": "0.000",
        "far-copy gain": "+3.000",
        "bits/byte at T": f"{1 / math.log(2):.3f}",
    }


def test_key_numbers_that_were_not_evaluated_are_dashes(runs: Runs) -> None:
    path = runs.write("rope", (3.0, 3.0), lengths=(512, 1024))
    table = there(curve_tables.key_numbers(gathered(path).findings))
    row = cells(table, "rope")
    assert [row[name].text for name in ("G(4T)", "U(4T)", "far-copy gain")] == ["-"] * 3
    assert curve_tables.NOT_EVALUATED in table.notes


# Differences


def test_each_series_is_set_against_the_least_at_T_and_at_the_longest_length() -> None:
    lines = [line("a", 3.0, 2.5, 4.0), line("b", 3.5, 9.0, 3.0)]
    table = there(curve_tables.against_least(lines))
    at_T, at_2k = "at 512 (least: a)", "at 2k (least: b)"
    assert list(table.head) == ["scheme", at_T, "rank at 512", at_2k, "rank at 2k"]
    assert [r[0].text for r in table.rows] == ["b", "a"]
    assert cells(table, "b")[at_T].text == "+0.500 [+0.500, +0.500]"
    assert cells(table, "a")[at_2k].text == "+1.000 [+1.000, +1.000]"
    assert cells(table, "a")[at_T] == Cell("0", "best")
    assert [cells(table, name)["rank at 512"].text for name in "ab"] == ["1", "2"]


def test_a_difference_that_is_not_told_apart_is_marked_and_shares_its_ranks() -> None:
    lines = [line("a", 3.0, noise=0.5), line("b", 3.02, noise=0.5)]
    table = there(curve_tables.against_least(lines))
    (row,) = [r for r in table.rows if r[1].text != "0"]
    assert row[1].mark == "tie"
    assert {r[2].text for r in table.rows} == {"1 to 2"}


def test_one_series_has_no_differences() -> None:
    lines = [line("a", 3.0), line("b", 3.0, reference=True)]
    assert curve_tables.against_least(lines) is None
    assert parsed(curve_csv.differences_csv(lines)) == []


def test_series_of_different_T_are_compared_at_the_longest_length_alone() -> None:
    lines = [line("a", 3.0, 3.0, 2.0), line("b", 3.0, 3.0, 4.0, train_length=1024)]
    (row,) = parsed(curve_csv.differences_csv(lines))
    assert (row["length"], float(row["a_minus_b"])) == ("2048", -2.0)


# Protocols


def test_the_protocols_of_a_run_stand_below_each_other_and_say_what_they_score(
    runs: Runs,
) -> None:
    path = runs.write("rope", (2.0, 2.1, 2.2, 3.0))
    runs.write("rope", (4.0, 3.0, 2.0, 1.0), protocol="nonoverlap", targets=None)
    runs.write("rope", (2.5,), lengths=(1024,), protocol="sliding-128", targets=None)
    table = there(curve_tables.protocols(gathered(path).by_protocol))
    assert [[c.text for c in r] for r in table.rows] == [
        ["rope", "tail", "1", "7.39", "8.17", "9.03", "20.09", "2.72"],
        ["rope", "nonoverlap", "1", "54.60", "20.09", "7.39", "2.72", "0.05"],
        ["rope", "sliding-128", "1", "-", "12.18", "-", "-", "n/a"],
    ]
    said = " ".join(table.notes)
    assert all(f"{n}: {named(n).summary}" in said for n in ("tail", "nonoverlap", "sliding-128"))


def test_the_table_of_protocols_says_why_a_length_has_no_value(runs: Runs) -> None:
    paths = [runs.write("rope", (2.0, 2.1)), runs.write("alibi")]
    runs.write("alibi", protocol="nonoverlap", targets=None)
    table = there(curve_tables.protocols(gathered(*paths).by_protocol))
    assert "n/a (1)" in [cell.text for row in table.rows for cell in row]
    assert "1. the table has 512 rows" in table.notes


def test_one_protocol_needs_no_such_table(runs: Runs) -> None:
    assert curve_tables.protocols(gathered(runs.write("rope")).by_protocol) is None


# CSV


def parsed(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_the_csv_of_points_parses_back_to_the_same_numbers(runs: Runs) -> None:
    found = gathered(runs.write("rope", (3.1, 1 / 3, 7.7)))
    rows = parsed(curve_csv.points_csv(found.by_protocol))
    for point, got in zip(found.points, rows, strict=True):
        for name in ("loss", "ppl", "bits_per_byte"):
            number = getattr(point, name)
            assert got[name] == "" if number is None else float(got[name]) == number
        assert int(got["length"]) == point.length
        assert got["skipped"] == (point.skipped or "")


def test_the_csv_of_points_holds_gain_and_ratio_of_the_headline(runs: Runs) -> None:
    found = gathered(runs.write("rope"))
    rows = parsed(curve_csv.points_csv(found.by_protocol))
    assert [float(got["context_gain"]) for got in rows] == [0.0, 0.5, -1.0, -2.0]
    assert float(rows[-1]["ratio_to_T"]) == math.exp(2.0)


def test_the_csv_of_findings_parses_back_to_the_same_numbers(runs: Runs) -> None:
    paths = [runs.write("rope"), runs.write("rope", (3.3, 2.0, 2.0, 2.0), seed=2)]
    found = gathered(*paths).findings
    rows = {(got["quantity"], got["length"]): got for got in parsed(curve_csv.findings_csv(found))}
    for name in ("loss", "gain"):
        estimates = getattr(found[0], name)
        assert {n for quantity, n in rows if quantity == name} == {str(n) for n in estimates}
        for n, estimate in estimates.items():
            got = rows[name, str(n)]
            numbers = [float(got[key]) for key in ("value", "low", "high")]
            assert numbers == [estimate.value, estimate.low, estimate.high]
    assert rows["gain", "1024"]["text"] == found[0].verdicts[1024].word
    least = rows["least_gain_shown", "1024"]["value"]
    assert float(least) == found[0].gain[1024].detectable
    assert rows["factor_0.01", ""]["text"] == found[0].factors[0].text
    assert {got["n_seeds"] for got in rows.values()} == {"2"}


def test_a_bound_that_is_unknown_is_an_empty_cell(runs: Runs) -> None:
    one = runs.write("rope", (3.0,), lengths=(512,), n_documents=1, document="a", n_tokens=64)
    (loss, *_) = parsed(curve_csv.findings_csv(gathered(one).findings))
    assert (loss["low"], loss["high"]) == ("", "")


def test_the_csv_of_differences_parses_back_to_the_same_numbers() -> None:
    lines = [line(name, 3.0 + i / 7, 2.0, 3.0 - i / 3, noise=0.2) for i, name in enumerate("abc")]
    rows = parsed(curve_csv.differences_csv(lines))
    assert [(got["a"], got["b"], got["length"]) for got in rows] == [
        (a, b, n) for a, b in ("ab", "ac", "bc") for n in ("512", "2048")
    ]
    by_name = dict(zip("abc", lines, strict=True))
    for got in rows:
        want = difference(by_name[got["a"]], by_name[got["b"]], int(got["length"]))
        assert want is not None
        numbers = [float(got[key]) for key in ("a_minus_b", "low", "high")]
        assert numbers == [want.value, want.low, want.high]
        together = compare(lines, int(got["length"]))
        assert together is not None
        pair = (got["a"], got["b"])
        assert got["apart"] == str(bool({pair, pair[::-1]} & together.different))
    assert {got["apart"] for got in rows} == {"True", "False"}


def test_of_one_seed_no_pair_is_said_to_be_apart() -> None:
    (row,) = parsed(curve_csv.differences_csv([line(name, 3.0, seeds=(1,)) for name in "ab"]))
    assert row["apart"] == ""


# The leaderboard


def board(found: Report, costs: dict[str, Cost] | None = None) -> dict[str, Sequence[Cell]]:
    of = {run: Cost(parameters=None, tokens=None, seconds=None) for run in found.runs}
    table = there(curve_tables.leaderboard(found.findings, of | (costs or {})))
    return {row[0].text: row for row in table.rows}


def test_the_leaderboard_is_ordered_by_the_loss_at_the_longest_length(runs: Runs) -> None:
    paths = [
        runs.write(name, (2.0, last, last, last + 0.01 * seed), seed=seed)
        for name, last in (("alibi", 3.0), ("nope", 4.0), ("rope", 2.0))
        for seed in (1, 2, 3)
    ]
    rows = board(gathered(*paths))
    assert [*rows] == ["rope", "alibi", "nope"]
    assert [row[3].text for row in rows.values()] == ["1", "2", "3"]
    assert rows["rope"][2].text.startswith("2.020 [")
    assert [row[2].mark for row in rows.values()] == ["best", "", ""]


def test_the_leaderboard_holds_size_and_the_median_speed_of_the_seeds(runs: Runs) -> None:
    found = gathered(*(runs.write("rope", seed=seed) for seed in (1, 2, 3)), runs.write("alibi"))
    seconds = dict(zip((run for run in found.runs if "rope" in run), (1, 2, 4), strict=True))
    costs = {run: Cost(parameters=1234, tokens=4000, seconds=s) for run, s in seconds.items()}
    rows = board(found, costs)
    assert [cell.text for cell in rows["rope"][-2:]] == ["1,234", "2,000"]
    assert [cell.text for cell in rows["alibi"][-2:]] == ["-", "-"]
    mib = dict(zip(costs, (700.0, 500.25, 400.0), strict=True))
    measured = {run: replace(cost, peak_mib=mib[run]) for run, cost in costs.items()}
    rows = board(found, measured)
    assert [cell.text for cell in rows["rope"][-3:]] == ["1,234", "2,000", "500"]
    assert [cell.text for cell in rows["alibi"][-3:]] == ["-", "-", "-"]


def test_the_leaderboard_has_no_speed_of_only_some_of_the_seeds(runs: Runs) -> None:
    found = gathered(*(runs.write("rope", seed=seed) for seed in (1, 2)), runs.write("alibi"))
    one = next(run for run in found.runs if "rope" in run)
    rows = board(found, {one: Cost(parameters=1234, tokens=4000, seconds=1, peak_mib=700)})
    assert [cell.text for cell in rows["rope"][-3:]] == ["1,234", "-", "-"]


def test_one_series_is_no_leaderboard(runs: Runs) -> None:
    found = gathered(runs.write("rope"))
    assert curve_tables.leaderboard(found.findings, found.costs) is None


def test_a_series_is_compared_with_the_runs_it_began_with() -> None:
    lines = [line("base", 3.0, 4.0), line("tuned", 2.5, 3.0), line("other", 2.0, 2.0)]
    bases = {f"tuned-{seed}": f"base-{seed}" for seed in (1, 2, 3)}
    table = there(curve_tables.before_and_after(lines, bases))
    assert [cell.text for cell in table.rows[0]] == [
        *("tuned", "base"),
        *("-0.500 [-0.500, -0.500]", "-1.000 [-1.000, -1.000]"),
    ]
    assert len(table.rows) == 1


@pytest.mark.parametrize("bases", [{}, {"tuned-1": "absent-1"}, {"tuned-1": "base-1"}])
def test_a_series_whose_bases_are_not_all_there_is_not_compared(bases: dict[str, str]) -> None:
    lines = [line("base", 3.0, 4.0), line("tuned", 2.5, 3.0)]
    assert curve_tables.before_and_after(lines, bases) is None
