"""Committed results: claims follow from intervals, pages and tables from the committed rows."""

import re
import runpy
from collections import Counter
from pathlib import Path

import claims
import matplotlib
import pytest
import receptive_fields
import yaml
from repository import ROOT

from lengthgen.report import report, style
from lengthgen.report.load import load

RESULTS = ROOT / "results"
FILLED = runpy.run_path(str(ROOT / "docs" / "fill.py"))["filled"]
FIGURES = runpy.run_path(str(ROOT / "docs" / "figures.py"))["FIGURES"]


@pytest.mark.slow
def test_the_page_of_claims_is_what_the_committed_rows_give() -> None:
    given = yaml.safe_load((RESULTS / "claims.yaml").read_text(encoding="utf-8"))
    page = (RESULTS / "published.md").read_text(encoding="utf-8")
    assert page == claims.page(given), "run python scripts/claims.py"


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_of_the_documentation_is_drawn_from_the_committed_rows(name: str) -> None:
    drawn = style.saved(FIGURES[name](), "svg")
    shown = (ROOT / "docs" / "figures" / f"{name}.svg").read_bytes()
    if f"Matplotlib v{matplotlib.__version__}".encode() not in shown:
        pytest.skip("another Matplotlib draws other bytes")
    assert drawn == shown, f"run python docs/figures.py {name}"


@pytest.mark.slow
def test_receptive_fields_are_tabled_from_the_committed_rows() -> None:
    folder, found = RESULTS / "probes", receptive_fields.schemes()
    assert len(found) > 15
    assert (folder / "table.md").read_text(encoding="utf-8") == receptive_fields.page(found)


def test_a_number_on_a_page_is_that_of_the_committed_table() -> None:
    table = (RESULTS / "figure1" / "table.md").read_text(encoding="utf-8")
    perplexity, gain = "ppl('figure1', 'kerple', 512)", "gain('figure1', 'kerple', 16384)"
    page = f"9.9<!-- = {perplexity} --> -<!-- = {gain} -->"
    perplexity, low, high = re.fullmatch(
        r"(\S+)<!-- .* --> \S+ \[(\S+), (\S+)\]<!-- .* -->", FILLED(page)
    ).groups()  # pyright: ignore[reportOptionalMemberAccess]
    assert f" {perplexity} " in table
    assert f"uses [+{low}, +{high}]" in table
    assert FILLED(FILLED(page)) == FILLED(page)


@pytest.mark.parametrize(
    "page",
    [
        "1<!-- = ppl('figure1', 'kerpel', 512) -->",
        "1<!-- = ppl('figure2', 'kerple', 512) -->",
        "<!-- holds: gain('figure1', 'rope (T=512)', 16384).low > 0 -->",
    ],
)
def test_an_expression_without_a_value_and_a_claim_that_does_not_hold_are_errors(page: str) -> None:
    expression = re.findall(r"\w+\('figure.*?\)", page)[0]
    with pytest.raises(ValueError, match=re.escape(expression)):
        FILLED(page)


@pytest.mark.slow
def test_numbers_and_claims_of_the_documentation_follow_from_the_committed_rows() -> None:
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        page = path.read_text(encoding="utf-8")
        assert FILLED(page) == page, f"{path.name}: run python docs/fill.py"
        marks = Counter(re.findall(r"<!-- ?(\S+)", page))
        assert {*marks} <= {"=", "holds:", "begin:", "end", "table:", "example:"}, path
        assert marks["="] == len(re.findall(r"[\d\]-]<!-- = ", page)), path


@pytest.mark.slow
@pytest.mark.parametrize("rows", sorted(RESULTS.glob("**/rows.parquet")), ids=str)
def test_the_tables_of_a_folder_are_what_its_rows_give(rows: Path) -> None:
    sections = report.sections(load([rows.parent]))
    committed = (rows.parent / "table.md").read_text(encoding="utf-8")
    assert committed == report.table_text(sections), f"lengthgen report {rows.parent}"


def test_committed_folders_hold_what_cannot_be_made_again() -> None:
    """Rows, manifest and table.md, training.csv, probes.jsonl, and figures that a page shows."""
    pages = "".join(path.read_text(encoding="utf-8") for path in RESULTS.glob("*.md"))
    for rows in RESULTS.glob("**/rows.parquet"):
        assert rows.stat().st_size < 1e6, rows
        kept = {path.name for path in rows.parent.iterdir()}
        others = {"manifest.json", "table.md", "training.csv", "probes.jsonl"}
        figures = kept - {"rows.parquet", *others}
        assert all(f"{rows.parent.name}/{name}" in pages for name in figures), rows.parent
