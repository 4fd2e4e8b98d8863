"""Every format that text is written in, with names that would do something in one of them."""

import csv
import io
import re
from itertools import pairwise

import pandas as pd
import pytest
from markdown_it import MarkdownIt

from lengthgen import escaping
from lengthgen.report import tables as table_formats
from lengthgen.report.tables import Table, TableCell

HOSTILE = {
    "clipboard": "\x1b]52;c;ZXZpbA==\x07",
    "one-byte escape": "\x9b2J",
    "carriage return": "failed\rdone",
    "newline": "rope\ndone",
    "line separator": "rope\u2028done",
    "right to left": "\u202egnp.exe",
    "half a pair": "\ud800",
    "undecodable file name": "\udcff",
    "formula": "=cmd|' /C calc'!A0",
    "minus": "-1+cmd",
    "tab before a formula": "\t=1+1",
    "script": "<script>alert(1)</script>",
    "comment": "<!--",
    "end of a tag": '"></td>',
    "input": r"\input{/etc/passwd}",
    "math": r"$\frac$",
    "character code": "^^5cinput",
    "latex comment": "a % b & c # d_e ~f",
    "row": r"a \\ b | c",
    "escaped bar": r"a \| b",
    "link": "[x](javascript:alert(1))",
    "picture": "![](https://evil.example/x.png)",
    "reference": "[x]: https://evil.example",
    "autolink": "<https://evil.example>",
    "template": "{{ 7 * 7 }}",
}


@pytest.fixture(params=HOSTILE)
def name(request: pytest.FixtureRequest) -> str:
    return HOSTILE[request.param]


def kinds_of_markdown(text: str) -> set[str]:
    """Returns the kinds of elements in Markdown with tables, such as table_open and link_open."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    return {token.type for block in tokens for token in (block, *(block.children or []))}


def is_no_formula(cell: str) -> bool:
    """True if a spreadsheet shows a cell of CSV as it stands; a number is one with its sign."""
    return bool(re.fullmatch(r".?|[^=+\-@\t\r].*|[-+]?[\d.e+-]+|[-+]?(nan|inf)", cell, re.DOTALL))


def table_with(name: str) -> Table:
    """A table in which a name stands everywhere."""
    row = [TableCell(name), TableCell(name, "best"), TableCell(name, "tie")]
    return Table(title=name, head=[name, name, "3"], rows=[row], notes=[name])


def test_a_terminal_is_given_printable_characters(name: str) -> None:
    assert escaping.visible(name).isprintable()
    escaping.visible(name).encode()


def test_what_is_printable_stays_as_it_is() -> None:
    for text in ("rope", "na\u00efve \u65e5\u672c", "a=b|c<d", ""):
        assert escaping.visible(text) == text
    assert escaping.visible("a\n\tb\x1b", keep="\n\t") == "a\n\tb\\x1b"


def test_csv_holds_a_name_in_one_cell_that_is_no_formula(name: str) -> None:
    text = table_formats.csv_text(pd.DataFrame([[name, -0.5]], dtype=object))
    rows = list(csv.reader(io.StringIO(text)))
    assert [len(row) for row in rows] == [2, 2]
    assert all(is_no_formula(row[0]) and row[0].isprintable() for row in rows)


def test_numbers_in_csv_stay_numbers() -> None:
    row = [-0.5, "-0.5", "-inf", 3, None, "", "-", True]
    text = table_formats.csv_text(pd.DataFrame([row], dtype=object))
    assert text.splitlines()[1] == "-0.5,-0.5,-inf,3,,,-,True"


def test_markdown_shows_a_name_in_its_cell_and_nothing_else(name: str) -> None:
    text = table_formats.markdown(table_with(name))
    plain = kinds_of_markdown(table_formats.markdown(table_with("word")))
    assert kinds_of_markdown(text) - {"code_inline", "softbreak"} <= plain
    row = text.splitlines()[-3]
    assert len([1 for a, b in pairwise(row) if b == "|" and a != "\\"]) == 3
    assert text.replace("\n", "").isprintable()
