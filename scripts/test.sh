#!/usr/bin/env bash
# Formatting, lint, types, documentation and tests, on a fresh machine too; arguments go to pytest.
# The daily form:
#     bash scripts/test.sh -m "not slow" -n 2
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
extras=dev,docs,slurm
source scripts/install.sh

# Sweeps are tested on a real Slurm; without it, these tests are skipped.
if command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ] && ! command -v slurmctld >/dev/null; then
  echo "installing Slurm for the tests ..." >&2
  { apt-get update &&
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends slurm-wlm munge; } \
    >/dev/null 2>&1 || echo "warning: Slurm could not be installed" >&2
fi

# The newest versions fit together too, which an installation without the pins takes. UNPINNED=1 runs
# all tests on them.
if [ $# -eq 0 ] && [ -z "${UNPINNED-}" ]; then
  .venv/bin/python -m pip install --quiet --dry-run --upgrade --upgrade-strategy eager \
    -c <(grep '^torch==' constraints.txt) -e ".[$extras]" # of torch, the download is large
fi

.venv/bin/ruff format --check .
.venv/bin/ruff check .
.venv/bin/lint-imports
.venv/bin/pyright --pythonpath .venv/bin/python
NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --site-dir build/docs
# By files: the fixtures of one cost up to a minute, and each process would make its own. In the
# order of tests/conftest.py, long files first: at the end, one would leave the other cores idle.
# Three processes for two cores: one often waits, for Slurm or for a signal to be answered.
.venv/bin/pytest -n 3 --dist loadfile --no-loadscope-reorder "$@"
