"""Prints the package versions that the corpus of a study was made of, as constraints for pip.

    python3 scripts/corpus_versions.py results/schemes > constraints.txt
    PIP_CONSTRAINT=$PWD/constraints.txt bash scripts/results.sh schemes  # before .venv exists

The corpus `python` is made of installed files: other versions give other tokens, and rows of other
tokens are not joined with those of the study. Needs nothing but the standard library.
"""

import json
import sys
from pathlib import Path


class Refused(Exception):
    """The folder names no versions, or those of two corpora."""


def constraints(folder: Path) -> str:
    """Returns the text of a constraints file, a line for each package; torch without its build.

    Raises Refused unless the manifest of the folder names the versions of exactly one corpus.
    """
    try:
        corpora = json.loads((folder / "manifest.json").read_text(encoding="utf-8")).get("corpora")
    except OSError as error:
        raise Refused(f"{error.filename}: {error.strerror}; name a folder of results/") from None
    if not corpora or len(corpora) > 1:
        raise Refused(f"{folder}: its manifest names {len(corpora or ())} corpora, not one")
    ((fingerprint, versions),) = corpora.items()
    python = versions.pop("python")
    lines = [f"# tokens {fingerprint}", f"# Python {python}"]
    lines += [f"{name}=={version.partition('+')[0]}" for name, version in versions.items()]
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    try:
        print(constraints(Path(*sys.argv[1:2])), end="")
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
