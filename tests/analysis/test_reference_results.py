"""published: the data files and the ratios made of them."""

import csv
import math
import re

import pytest

from lengthgen.analysis.reference_results import (
    FOLDER,
    PublishedAccuracy,
    PublishedCurve,
    accuracies,
    published_curves,
)
from lengthgen.config import compose
from lengthgen.evaluation import protocols

CURVES = published_curves()


def named(paper: PublishedCurve) -> str:
    return f"{paper.table}-{paper.protocol}-{paper.scheme}"


def only(table: str, protocol: str, scheme: str) -> PublishedCurve:
    (found,) = [a for a in CURVES if (a.table, a.protocol, a.scheme) == (table, protocol, scheme)]
    return found


def file_rows(name: str = "perplexity.csv") -> list[dict[str, str]]:
    with (FOLDER / name).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("paper", CURVES, ids=named)
def test_the_ratio_at_T_is_one(paper: PublishedCurve) -> None:
    assert paper.ratios()[1.0] == 1.0


@pytest.mark.parametrize("paper", CURVES, ids=named)
def test_perplexities_are_finite_above_one_and_sorted_by_length(
    paper: PublishedCurve,
) -> None:
    assert all(1 < ppl < math.inf for ppl in paper.ppl.values())
    assert list(paper.ppl) == sorted(paper.ppl)
    assert len(paper.ppl) > 1


def test_ratios_are_those_of_the_papers() -> None:
    alibi = only("alibi-table2", "alibi_nonoverlap", "alibi").ratios()
    assert alibi[15512 / 512] == pytest.approx(18.31 / 19.73)
    nope = only("nope-appendix-f", "nope_f", "nope").ratios()
    assert (nope[0.5], nope[2.5]) == pytest.approx((2.783 / 2.555, 521.8 / 2.555))


def test_every_scheme_is_one_of_ours() -> None:
    used = {row["scheme"] for row in file_rows()}
    assert used <= set(compose.choices("scheme", config_dir=None))


def test_lengths_at_which_memory_did_not_suffice_are_absent() -> None:
    without = [row for row in file_rows() if not row["ppl"]]
    assert without
    for row in without:
        paper = only(row["table"], row["protocol"], row["scheme"])
        assert int(row["length"]) not in paper.ppl
        assert row["note"] == "out of memory"
        assert "out of memory" not in paper.note


def test_every_other_value_of_a_curve_stands_in_its_anchor() -> None:
    rows = [row for row in file_rows() if row["ppl"]]
    alone = [row for row in rows if row["table"] == "haviv-table"]  # one length each: no curve
    assert len(rows) - len(alone) == sum(len(paper.ppl) for paper in CURVES)
    for row in rows:
        if row not in alone:
            paper = only(row["table"], row["protocol"], row["scheme"])
            assert paper.ppl[int(row["length"])] == float(row["ppl"])


def test_what_differs_from_the_scheme_of_that_name_is_told() -> None:
    assert "25% partial" in only("nope-appendix-f", "nope_f", "rope").note
    assert only("nope-appendix-f", "nope_f", "alibi").note == ""


def test_the_readme_names_every_source_and_its_arxiv_id() -> None:
    readme = (FOLDER / "README.md").read_text()
    assert {row["source"] for row in file_rows()} == {
        line.split("`")[1] for line in readme.splitlines() if line.startswith("| `")
    }
    assert all(paper.arxiv in readme for paper in CURVES)


@pytest.mark.parametrize("one", [*CURVES, *accuracies()], ids=lambda one: one.citation)
def test_every_published_series_has_an_arxiv_id(one: PublishedCurve | PublishedAccuracy) -> None:
    assert re.fullmatch(r"\d{4}\.\d{5}", one.arxiv)


def test_every_file_names_sources_that_are_listed() -> None:
    listed = {row["source"] for row in file_rows("sources.csv")}
    for name in ("perplexity.csv", "speed.csv", "task_accuracy.csv"):
        assert {row["source"].split()[0] for row in file_rows(name)} <= listed


def test_every_perplexity_has_a_protocol_that_can_be_evaluated_here() -> None:
    for row in file_rows():
        assert protocols.named(row["protocol"]).name == row["protocol"]
