"""Writes the tables of docs/ from what `lengthgen list KIND` prints.

A table stands between the lines `<!-- table: KIND -->` and `<!-- end -->`.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
COLUMNS = {
    "schemes": ["scheme", "description", "variants of its own"],
    "protocols": ["protocol", "what it scores", "source"],
    "probes": ["probe", "what it shows"],
}


def rendered(page: str, listed: Callable[[str], str]) -> str:
    """Returns a page with its tables; `listed` gives what `lengthgen list` prints of a kind."""
    return BLOCK.sub(lambda found: f"{found[1]}{_table(found[2], listed)}{found[3]}", page)


def _table(kind: str, listed: Callable[[str], str]) -> str:
    columns = COLUMNS.get(kind, ["name", "description"])
    rows = [line.split("\t") for line in listed(kind).splitlines()]
    lines = [columns, ["---"] * len(columns)]
    lines += [[f"`{name}`", *map(_cell, more)] for name, *more in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    """Returns text for a cell, with arXiv ids as links."""
    escaped = re.sub(r"([|*_\[\]<])", r"\\\1", text)
    return re.sub(r"arXiv (\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", escaped)


def _listed(kind: str) -> str:
    command = [sys.executable, "-m", "lengthgen", "list", kind]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    for path in sorted(DOCS.glob("*.md")):
        page = path.read_text(encoding="utf-8")
        path.write_text(rendered(page, _listed), encoding="utf-8")
