"""Writes the tables of docs/ that `lengthgen list` gives; --check exits with 1 if one differs.

A table stands between the lines `<!-- table: KIND -->` and `<!-- end -->`.
"""

import re
import sys
from pathlib import Path

from lengthgen.cli import listing
from lengthgen.cli.lists import _KINDS as KINDS  # pyright: ignore[reportPrivateUsage]

DOCS = Path(__file__).resolve().parents[1] / "docs"
BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def rendered(page: str) -> str:
    """Returns a page with the tables of today."""
    return BLOCK.sub(lambda found: f"{found[1]}{table(found[2])}{found[3]}", page)


def table(kind: str) -> str:
    """Returns what `lengthgen list KIND` prints as a Markdown table, arXiv ids as links."""
    group = KINDS[kind]
    listed = listing.choices(group, config_dir=None) if group else listing.protocols()
    rows = [[f"`{name}`", *(_cell(text) for text in more)] for name, *more in listed.rows]
    lines = [listed.head, ["---"] * len(listed.head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    escaped = re.sub(r"([|*_\[\]<])", r"\\\1", text)
    return re.sub(r"arXiv (\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", escaped)


def main() -> int:
    stale = 0
    for path in sorted(DOCS.glob("*.md")):
        page = path.read_text(encoding="utf-8")
        if rendered(page) != page:
            stale += 1
            print(f"{path.name}: {'differs' if '--check' in sys.argv else 'written'}")
            if "--check" not in sys.argv:
                path.write_text(rendered(page), encoding="utf-8")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
