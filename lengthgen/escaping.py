"""Untrusted text, written so that it is only shown: a function for each format.

Names of runs, schemes and documents, reasons and error messages come from files.
"""

import re
from contextlib import suppress


def visible(text: str, *, keep: str = "") -> str:
    """Returns text for a terminal or a figure: what either obeys or hides stands as \\x1b.

    That is control characters, newlines too unless they are in `keep`, characters that change the
    direction of text, and halves of surrogate pairs, which cannot be printed.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode()
        for char in text
    )


def without_folders(text: str) -> str:
    """Returns text in which absolute paths, which name a machine or a user, stand as .../name."""
    return re.sub(r"(?<![\w.~:/\\])(?:~|[A-Za-z]:)?[/\\](?:[^\s/\\,'\"\]]+[/\\])+", ".../", text)


def csv_cell(value: object) -> object:
    """Returns a cell of CSV; of text that a spreadsheet would run as a formula, no number."""
    if not isinstance(value, str):
        return value
    with suppress(ValueError):
        float(value)
        return value
    return f"'{visible(value)}" if value[:1] in "=+-@" and len(value) > 1 else visible(value)


def escape_markdown(text: str) -> str:
    """Returns text for Markdown that is neither an HTML tag nor a link.

    Emphasis and, outside of tables, bars keep their meaning.
    """
    escaped = re.sub(r"\\|\](?=[(:[])", r"\\\g<0>", visible(text))
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", escaped)


def html(value: object) -> object:
    """Returns what Jinja2 is to escape, as its `finalize`: plain text stands visible."""
    return visible(value, keep="\n\t") if type(value) is str else value
