# Makes .venv beside this folder and installs lengthgen into it; to be sourced from the repository
# root, with the extras of pyproject.toml that $extras names, in the versions of constraints.txt
# unless UNPINNED is set. Does nothing if it is done already and both have not changed since.
python=${PYTHON:-python3}
extras=${extras-}
stamp=.venv/pyproject${extras:+-$extras}${UNPINNED:+-unpinned}.toml
pins="-c constraints.txt"
if [ -n "${UNPINNED-}" ]; then pins="--upgrade --upgrade-strategy eager"; fi

if ! command -v "$python" >/dev/null; then
  echo "error: $python not found; install Python 3.11 or newer, or give PYTHON=/path/to/python" >&2
  exit 2
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "error: $("$python" --version) is too old; install Python 3.11 or newer, or give PYTHON=/path/to/python" >&2
  exit 2
fi
if [[ $(uname -sm) == "Darwin x86_64" ]]; then
  echo "error: PyTorch has no build for this Python; a Mac needs Apple Silicon, macOS 14 and a Python for arm64" >&2
  exit 2
fi
if ! cat pyproject.toml constraints.txt | cmp -s - "$stamp" || ! .venv/bin/python -c pass 2>/dev/null; then
  if ! .venv/bin/python -c pass 2>/dev/null && ! "$python" -m venv --clear .venv; then
    echo "error: $python -m venv failed; on Debian and Ubuntu: apt install python3-venv" >&2
    exit 2
  fi
  echo "installing lengthgen and its dependencies into .venv ..." >&2
  # shellcheck disable=SC2086 # several words
  .venv/bin/python -m pip install --quiet $pins -e ".${extras:+[$extras]}"
  rm -f .venv/pyproject*-unpinned.toml # what is installed has other versions now
  if [ -n "${UNPINNED-}" ]; then rm -f .venv/pyproject*.toml; fi
  cat pyproject.toml constraints.txt >"$stamp"
fi
