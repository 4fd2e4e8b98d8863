"""Committed results: claims follow from intervals, pages and tables from the committed rows."""

import runpy
from pathlib import Path

import claims
import matplotlib
import pytest
import yaml
from repository import ROOT

from lengthgen.report import report, style
from lengthgen.report.load import load_rows

RESULTS = ROOT / "results"
FIGURES = runpy.run_path(str(ROOT / "docs" / "figures.py"))["FIGURES"]


@pytest.mark.slow
def test_the_page_of_claims_is_what_the_committed_rows_give() -> None:
    given = yaml.safe_load((RESULTS / "claims.yaml").read_text(encoding="utf-8"))
    page = claims.PAGE.read_text(encoding="utf-8")
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
@pytest.mark.parametrize("rows", sorted(RESULTS.glob("**/rows.parquet")), ids=str)
def test_the_tables_of_a_folder_are_what_its_rows_give(rows: Path) -> None:
    sections = report.sections(load_rows([rows.parent], checkpoints=True))
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
