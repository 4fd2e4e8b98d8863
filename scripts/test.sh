#!/usr/bin/env bash
# Formatting, lint, types, documentation and tests, on a fresh machine too; arguments go to pytest.
# The daily form:
#     bash scripts/test.sh -m "not slow" -n 2
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/install.sh

# The report's page is tested in a browser, sweeps on a real Slurm; without them, tests are skipped.
if command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ]; then
  wanted=()
  command -v chromium >/dev/null || wanted+=(chromium)
  command -v slurmctld >/dev/null || wanted+=(slurm-wlm munge)
  if [ "${#wanted[@]}" -gt 0 ]; then
    echo "installing ${wanted[*]} for the tests ..." >&2
    { apt-get update &&
      DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "${wanted[@]}"; } \
      >/dev/null 2>&1 || echo "warning: ${wanted[*]} could not be installed" >&2
  fi
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
