"""Where the repository and its tests are; published numbers."""

import json
import os
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# For programs in processes of their own: the package, and what tests share.
PYTHONPATH = f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'support'}"


def published(kind: str) -> list[dict[str, Any]]:
    """Returns the cases of a kind from tests/reference/schemes.json, each with its source."""
    return json.loads((ROOT / "tests" / "reference" / "schemes.json").read_text())[kind]
