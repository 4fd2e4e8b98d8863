"""Pages of results/: verdicts follow from intervals, pages and figures from the committed rows."""

import json
import math
import runpy
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from repository import ROOT

from lengthgen.analysis.intervals import Estimate

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "published_claims.py"))


def statement(low: float, high: float, *, above: bool, bound: float = 1.0) -> Any:
    value = math.sqrt(low * high)
    log_ratio = Estimate(
        value=math.log(value), low=math.log(low), high=math.log(high), seeds=(0.0, 0.0)
    )
    return SCRIPT["Statement"](name="a/b", log_ratio=log_ratio, above=above, bound=bound)


@pytest.mark.parametrize(
    ("low", "high", "bound", "found"),
    [(1.1, 2.0, 1.0, True), (0.5, 0.9, 1.0, False), (0.9, 1.1, 1.0, None), (1.1, 1.9, 2.0, False)],
)
def test_an_interval_on_one_side_of_the_bound_decides(
    low: float, high: float, bound: float, found: bool | None
) -> None:
    assert statement(low, high, above=True, bound=bound).verdict is found
    opposite = None if found is None else not found
    assert statement(low, high, above=False, bound=bound).verdict is opposite


@pytest.mark.parametrize(
    ("low", "high", "bound", "found"),
    [
        (0.1, 0.3, 0.0, True),
        (-0.3, -0.1, 0.0, False),
        (-0.1, 0.3, 0.0, None),
        (0.1, 0.3, 0.5, False),
    ],
)
def test_shares_are_decided_by_their_difference_from_a_bound(
    low: float, high: float, bound: float, found: bool | None
) -> None:
    share = Estimate(value=(low + high) / 2, low=low, high=high, seeds=(0.0, 0.0))
    for above in (True, False):
        claimed = SCRIPT["Share"](name="a less b", share=share, above=above, bound=bound)
        assert claimed.verdict is (found if above or found is None else not found)
    assert f"{100 * low:.1f}, {100 * high:.1f}]" in str(claimed)


@pytest.mark.parametrize(
    ("statements", "verdict"),
    [
        ([(1.1, 2.0), (1.2, 1.3)], "holds"),
        ([(1.1, 2.0), (0.9, 1.3)], "undecided"),
        ([(1.1, 2.0), (0.5, 0.9)], "in part"),
        ([(0.9, 1.1), (0.5, 0.9)], "does not hold"),
    ],
)
def test_a_claim_holds_if_all_its_statements_do(
    statements: list[tuple[float, float]], verdict: str
) -> None:
    of = [statement(low, high, above=True) for low, high in statements]
    claim = SCRIPT["Claim"](source="A 2020", claim="It rises.", published="2", statements=of)
    assert claim.verdict == verdict
    assert f"| **{verdict}** |" in SCRIPT["rendered"]([claim])


@pytest.mark.slow
def test_the_page_is_what_the_committed_rows_give() -> None:
    page = (ROOT / "results" / "published.md").read_text(encoding="utf-8")
    assert page == SCRIPT["page"](), "run python scripts/published_claims.py"


@pytest.mark.slow
def test_receptive_fields_are_tabled_and_drawn_from_the_committed_rows() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "receptive_fields.py"))
    folder, found = ROOT / "results" / "probes", script["schemes"]()
    assert len(found) > 15
    assert (folder / "table.md").read_text(encoding="utf-8") == script["page"](found)
    for name, content in script["files"]({"receptive_field": script["figure"](found)}).items():
        assert (folder / name).read_bytes() == content


def test_the_table_of_the_readme_has_rows_of_figure1() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = (ROOT / "results" / "figure1" / "table.md").read_text(encoding="utf-8")
    committed: dict[str, list[str]] = {}
    for scheme, *numbers in map(cells, table.splitlines()):
        committed.setdefault(scheme.removesuffix(" (T=512"), []).extend(numbers)
    shown = [cells(line) for line in readme.partition("| scheme |")[2].splitlines()[2:8]]
    assert len(shown) == 6
    for scheme, *numbers in shown:
        assert [number for number in numbers if number not in committed[scheme]] == [], scheme


def test_the_hours_of_the_results_are_those_of_the_manifests() -> None:
    results = ROOT / "results"
    lines = (results / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [cells(line) for line in lines if line.startswith("| [`")]
    shown = {row[0].partition("`")[2].partition("/")[0]: row[-1] for row in rows}
    summed = {
        name: sum(
            json.loads(path.read_text(encoding="utf-8"))["training_seconds"] or 0
            for path in (results / name).rglob("manifest.json")
        )
        for name in shown
    }
    hours = {name: f"{value / 3600:.1f}" if value else "-" for name, value in summed.items()}
    assert hours["figure1"] != "-"
    assert shown == hours


def test_the_versions_of_a_corpus_are_constraints_for_pip(tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "corpus_versions.py"))
    constraints, refused = script["constraints"], script["Refused"]
    folder = ROOT / "results" / "schemes"
    (recorded,) = json.loads((folder / "manifest.json").read_text())["corpora"].values()
    lines = constraints(folder).splitlines()
    pinned = {one.name: one.specifier for one in map(Requirement, lines[2:])}
    assert pinned.keys() == recorded.keys() - {"python"}
    for name, specifier in pinned.items():
        installed = Version(recorded[name])  # its build, such as +cpu, is one of one machine
        assert specifier.contains(installed), name
        assert specifier.contains(installed.public), name
    versions = {"python": "3.11.7", "torch": "2.13.0+cpu"}
    for corpora in ({}, {"a": versions, "b": versions}):
        (tmp_path / "manifest.json").write_text(json.dumps({"corpora": corpora}))
        with pytest.raises(refused, match=f"names {len(corpora)} corpora"):
            constraints(tmp_path)
    with pytest.raises(refused, match="name a folder of results/"):
        constraints(tmp_path / "absent")


def cells(line: str) -> list[str]:
    """Returns the cells of a line of a table without marks."""
    return [cell.strip(" *=()") for cell in line.strip().strip("|").split("|")]
