"""Where the repository and its tests are; examples of the documentation; published numbers."""

import json
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TELLING = ROOT / "tests/support/telling.py"  # a plugin
# For programs in processes of their own: the package, and what tests share.
PYTHONPATH = f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'support'}"


def example(name: str) -> str:
    """Returns a file that the documentation shows as an example of one's own."""
    paths = sorted((ROOT / "docs").glob("*.md"))
    pages = "".join(path.read_text(encoding="utf-8") for path in paths)
    return re.findall(rf"<!-- example: {name} -->\n```\w+\n(.*?)^```", pages, re.DOTALL | re.M)[0]


def published(kind: str) -> list[dict[str, Any]]:
    """Returns the cases of a kind from tests/reference/schemes.json, each with its source."""
    return json.loads((ROOT / "tests" / "reference" / "schemes.json").read_text())[kind]
