"""What a reader of Markdown, LaTeX or CSV would obey in a text."""

import re
from collections import Counter
from contextlib import suppress

from markdown_it import MarkdownIt


def kinds_of_markdown(text: str) -> set[str]:
    """Returns the kinds of elements in Markdown with tables, such as table_open and link_open."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    return {token.type for block in tokens for token in (block, *(block.children or []))}


def commands_of_latex(text: str) -> Counter[str]:
    """Returns how often each command and active character occurs, less those that show one."""
    shown = r"\\text(?:backslash|asciitilde|asciicircum|less|greater|bar)\{\}|\\[&%$#_{}]|\{\[\}"
    left = re.sub(shown, "", text)
    return Counter(re.findall(r"\\[A-Za-z]+|\\\\|[{}$&#^_~%]", left))


def is_no_formula(cell: str) -> bool:
    """True if a spreadsheet shows a cell of CSV as it stands; a number is one with its sign."""
    with suppress(ValueError):
        float(cell)
        return True
    return len(cell) < 2 or cell[0] not in "=+-@\t\r"
