"""Where the repository and its tests are."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# For programs in processes of their own: the package, and what tests share.
PYTHONPATH = f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'support'}"
