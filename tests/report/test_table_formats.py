"""typeset: tables as Markdown and LaTeX."""

import re

import pytest

from lengthgen import escaping
from lengthgen.report.table_formats import Cell, Table, latex, markdown

NASTY = r"a_b & 50% $x^2$ #1 {q} ~ \cmd | <b> [c]"


def table(*cells: Cell, title: str = "A title", notes: tuple[str, ...] = ()) -> Table:
    row = [Cell("rope"), *cells]
    head = ["scheme", *(f"c{i}" for i in range(len(cells)))]
    return Table(key="key", title=title, head=head, rows=[row], notes=notes)


def test_markdown_marks_the_best_bold_and_a_tie_with_its_sign() -> None:
    text = markdown(table(Cell("1.0", "best"), Cell("2.0", "tie"), Cell("3.0")))
    assert "| **1.0** |" in text
    assert "| 2.0= |" in text
    assert "| 3.0 |" in text


def test_what_counts_little_is_grey_or_in_parentheses_and_the_unknown_has_its_sign() -> None:
    marked = table(Cell("1.0", "faint"), Cell("2.0", "unknown"))
    assert "| (1.0) | 2.0? |" in markdown(marked)
    assert r"\textcolor{gray}{1.0} & 2.0$^{?}$" in latex(marked)


def test_markdown_columns_are_in_line() -> None:
    lines = [line for line in markdown(table(Cell("1.0", "best"))).splitlines() if "|" in line]
    assert len({len(line) for line in lines}) == 1


def test_markdown_keeps_bars_within_their_cell() -> None:
    row = markdown(table(Cell("a|b"))).splitlines()[-1]
    assert len(re.split(r"(?<!\\)\|", row)) == 4


def test_notes_are_paragraphs_of_their_own() -> None:
    text = markdown(table(Cell("1"), notes=("one", "two")))
    assert text.endswith("|\n\none\n\ntwo\n")


def test_latex_marks_the_best_bold_and_a_tie_with_its_sign() -> None:
    text = latex(table(Cell("1.0", "best"), Cell("2.0", "tie"), Cell("3.0")))
    assert r"rope & \textbf{1.0} & 2.0$^{=}$ & 3.0 \\" in text


def unescaped(text: str, character: str) -> int:
    """How often a character stands without a backslash before it."""
    return len(re.findall(rf"(?<!\\){re.escape(character)}", text))


@pytest.mark.parametrize("place", ["title", "cell", "note"])
def test_latex_braces_are_balanced_and_ampersands_part_columns_alone(place: str) -> None:
    text = latex(
        table(
            Cell(NASTY if place == "cell" else "1"),
            title=NASTY if place == "title" else "t",
            notes=(NASTY,) if place == "note" else (),
        )
    )
    assert unescaped(text, "{") == unescaped(text, "}")
    assert unescaped(text, "&") == 2  # one in the head, one in the row
    assert unescaped(text, "%") == unescaped(text, "#") == unescaped(text, "$") == 0


def test_what_latex_would_read_is_escaped() -> None:
    assert escaping.latex("a_b") == r"a\_b"
    assert escaping.latex("{q}") == r"\{q\}"
    assert escaping.latex("50%") == r"50\%"
    assert escaping.latex("\\x") == r"\textbackslash{}x"
    assert escaping.latex("~^") == r"\textasciitilde{}\textasciicircum{}"


def test_a_latex_row_never_begins_with_a_bracket() -> None:
    text = latex(Table(key="k", title="t", head=["a"], rows=[[Cell("[0, 1]")]], notes=[]))
    assert "\n[" not in text
    assert "{[}0, 1] \\\\" in text


def test_latex_has_a_rule_at_top_middle_and_bottom() -> None:
    text = latex(table(Cell("1")))
    rules = re.findall(r"\\(toprule|midrule|bottomrule)", text)
    assert rules == ["toprule", "midrule", "bottomrule"]
    assert r"\begin{tabular}{lr}" in text
    assert r"\label{tab:key}" in text
