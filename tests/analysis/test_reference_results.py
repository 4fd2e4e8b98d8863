"""published: the data files and the ratios made of them."""

import csv
import math
import re

import pytest

from lengthgen.analysis.reference_results import FOLDER, Anchor, TaskAnchor, accuracies, anchors
from lengthgen.config import compose
from lengthgen.evaluation import protocols

ANCHORS = anchors()


def named(anchor: Anchor) -> str:
    return f"{anchor.table}-{anchor.protocol}-{anchor.scheme}"


def only(table: str, protocol: str, scheme: str) -> Anchor:
    (found,) = [a for a in ANCHORS if (a.table, a.protocol, a.scheme) == (table, protocol, scheme)]
    return found


def file_rows(name: str = "perplexity.csv") -> list[dict[str, str]]:
    with (FOLDER / name).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("anchor", ANCHORS, ids=named)
def test_the_ratio_at_T_is_one(anchor: Anchor) -> None:
    assert anchor.ratios()[1.0] == 1.0


@pytest.mark.parametrize("anchor", ANCHORS, ids=named)
def test_perplexities_are_finite_above_one_and_sorted_by_length(anchor: Anchor) -> None:
    assert all(1 < ppl < math.inf for ppl in anchor.ppl.values())
    assert list(anchor.ppl) == sorted(anchor.ppl)
    assert len(anchor.ppl) > 1


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
        anchor = only(row["table"], row["protocol"], row["scheme"])
        assert int(row["length"]) not in anchor.ppl
        assert row["note"] == "out of memory"
        assert "out of memory" not in anchor.note


def test_every_other_value_of_a_curve_stands_in_its_anchor() -> None:
    rows = [row for row in file_rows() if row["ppl"]]
    alone = [row for row in rows if row["table"] == "haviv-table"]  # one length each: no curve
    assert len(rows) - len(alone) == sum(len(anchor.ppl) for anchor in ANCHORS)
    for row in rows:
        if row not in alone:
            anchor = only(row["table"], row["protocol"], row["scheme"])
            assert anchor.ppl[int(row["length"])] == float(row["ppl"])


def test_what_differs_from_the_scheme_of_that_name_is_told() -> None:
    assert "25% partial" in only("nope-appendix-f", "nope_f", "rope").note
    assert only("nope-appendix-f", "nope_f", "alibi").note == ""


def test_the_readme_names_every_source_and_its_arxiv_id() -> None:
    readme = (FOLDER / "README.md").read_text()
    assert {row["source"] for row in file_rows()} == {
        line.split("`")[1] for line in readme.splitlines() if line.startswith("| `")
    }
    assert all(anchor.arxiv in readme for anchor in ANCHORS)


@pytest.mark.parametrize("one", [*ANCHORS, *accuracies()], ids=lambda one: one.citation)
def test_every_published_series_has_an_arxiv_id(one: Anchor | TaskAnchor) -> None:
    assert re.fullmatch(r"\d{4}\.\d{5}", one.arxiv)


def test_every_file_names_sources_that_are_listed() -> None:
    listed = {row["source"] for row in file_rows("sources.csv")}
    for name in ("perplexity.csv", "speed.csv", "task_accuracy.csv"):
        assert {row["source"].split()[0] for row in file_rows(name)} <= listed


def test_every_perplexity_has_a_protocol_that_can_be_evaluated_here() -> None:
    for row in file_rows():
        assert protocols.named(row["protocol"]).name == row["protocol"]
