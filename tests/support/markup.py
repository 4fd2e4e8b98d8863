"""What a reader of Markdown or CSV would obey in a text."""

import re

from markdown_it import MarkdownIt


def kinds_of_markdown(text: str) -> set[str]:
    """Returns the kinds of elements in Markdown with tables, such as table_open and link_open."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    return {token.type for block in tokens for token in (block, *(block.children or []))}


def is_no_formula(cell: str) -> bool:
    """True if a spreadsheet shows a cell of CSV as it stands; a number is one with its sign."""
    return bool(re.fullmatch(r".?|[^=+\-@\t\r].*|[-+]?[\d.e+-]+|[-+]?(nan|inf)", cell, re.DOTALL))
