"""Documents of the corpus python: sources of many projects, pinned by the hash of their wheels."""

import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TypedDict

from lengthgen.config.conf import conf_dir
from lengthgen.config.user import user_cache
from lengthgen.data.sources import Document, Source, name_hash
from lengthgen.errors import UserError
from lengthgen.files import sha256_of

PROJECT_BYTES = 2_400_000  # of a project: 3 % of training
PROJECT_FILES = 5  # of a project of validation: 4 % of 128 endpoints
LONG_BYTES = 55_000  # at about 3.3 bytes per token of a 4k BPE: 16,384 tokens and more
LEFT_OUT = {
    *("test", "tests", "testing", "conftest.py", "benchmarks", "_antlr"),
    *("vendor", "_vendor", "vendored", "_vendored", "third_party", "extern", "externals"),
}
GENERATED = re.compile(rb"(?i)do not (edit|modify)|auto-?generated|generated (by|from|with)")
HEAD_BYTES = 500  # where a generated file is marked as such
MOST_DIGITS = 0.2  # of the characters that are not blank; a file with more is a table
MOST_BYTES = 500_000  # so is a longer file
# Wheels for every machine, whatever the interpreter is; `--no-deps`: none of what they require.
PIP = [
    *("-P", "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--retries", "2"),
    *("--only-binary=:all:", "--platform=any", "--python-version=3.13"),
    *("--implementation=py", "--abi=none", "--disable-pip-version-check"),
]


class Project(TypedDict):
    """A wheel as conf/corpus/python.toml pins it."""

    wheel: str
    license: str
    bytes: int
    sha256: str


class Python(Source):
    """Sources of the projects in conf/corpus/python.toml, which says who is held out.

    Of those of validation only files >= LONG_BYTES are read: extrapolation is measured on them. No
    project prevails: its files are taken in the order of the hashes of their paths, up to
    PROJECT_BYTES, and those of validation up to PROJECT_FILES. A document is named PROJECT/path.
    """

    tokenizer_every = 4  # 25 MB, a quarter of the time

    def __init__(self) -> None:
        self.folder = user_cache() / "wheels"
        text = (conf_dir() / "corpus/python.toml").read_text(encoding="utf-8")
        self.projects: dict[str, dict[str, Project]] = tomllib.loads(text)  # by split, by name

    def data_key(self) -> dict[str, dict[str, Project]]:
        return self.projects

    def description(self) -> str:
        projects = self._wheels().values()
        missing = [p for p in projects if not (self.folder / p["wheel"]).exists()]
        if missing:
            n_bytes = sum(project["bytes"] for project in missing)
            return f"downloading {len(missing)} wheels ({n_bytes / 1e6:.0f} MB) to {self.folder}"
        return f"reading {len(projects)} projects in {self.folder}"

    def read(self, *, held_out: bool) -> Iterator[Document]:
        fetch(self._wheels(), self.folder)
        for project, about in self.projects["validation" if held_out else "train"].items():
            n_bytes = 0
            with zipfile.ZipFile(self.folder / about["wheel"]) as wheel:
                files = code_files(wheel, at_least=LONG_BYTES if held_out else 1)
                for path, content in islice(files, PROJECT_FILES if held_out else None):
                    n_bytes += len(content)
                    if n_bytes > PROJECT_BYTES:
                        break
                    name = f"{project}/{path}"
                    yield Document(name=name, text=content.decode(), group=project)

    def _wheels(self) -> dict[str, Project]:
        return self.projects["train"] | self.projects["validation"]


def fetch(projects: Mapping[str, Project], folder: Path) -> None:
    """Downloads the wheels that are not in a folder with their sha256. Raises UserError."""
    paths = {folder / project["wheel"]: project["sha256"] for project in projects.values()}
    missing = {p: sha for p, sha in paths.items() if not p.exists() or sha256_of(p) != sha}
    if not missing:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as aside:
        names = {path: "==".join(path.name.split("-")[:2]) for path in missing}
        lines = [f"{names[path]} --hash=sha256:{sha256}" for path, sha256 in missing.items()]
        requirements = Path(aside) / "requirements.txt"
        requirements.write_text("\n".join(lines))
        command = [sys.executable, *PIP, f"--dest={aside}", f"--requirement={requirements}"]
        pip = subprocess.run(command, capture_output=True, text=True)
        if pip.returncode:
            errors = [line for line in pip.stderr.splitlines() if "ERROR" in line]
            raise UserError(
                f"corpus=python: cannot download {len(missing)} wheels "
                f"({' '.join(errors or [pip.stderr])[:400]}); check the network, or use "
                "corpus=stdlib, which needs none"
            )
        for path in missing:
            (Path(aside) / path.name).replace(path)


def code_files(wheel: zipfile.ZipFile, *, at_least: int) -> Iterator[tuple[str, bytes]]:
    """Yields path and content of hand-written code, each text once, in the order of path hashes.

    Left out: tests, copies of other projects, generated files, tables, files that are not UTF-8 or
    have fewer bytes than `at_least`.
    """
    known: set[bytes] = set()
    for name in sorted(wheel.namelist(), key=name_hash):
        parts = PurePosixPath(name).parts
        is_test = any(part.startswith("test_") for part in parts)
        if not name.endswith(".py") or is_test or not LEFT_OUT.isdisjoint(parts):
            continue
        if wheel.getinfo(name).file_size < at_least:
            continue
        content = wheel.read(name)
        if content not in known and _is_code(content):
            known.add(content)
            yield name, content


def _is_code(content: bytes) -> bool:
    """True unless a source is empty, generated, a table of numbers or not UTF-8."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    shown = content.translate(None, b" \t\r\n")
    digits = len(shown) - len(shown.translate(None, b"0123456789"))
    is_table = digits > MOST_DIGITS * len(shown) or len(content) > MOST_BYTES
    return bool(shown) and not is_table and not GENERATED.search(content[:HEAD_BYTES])
