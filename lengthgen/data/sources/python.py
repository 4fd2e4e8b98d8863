"""Documents of the corpus python: sources of a few projects, pinned by the hash of their wheels."""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from lengthgen.config.compose import conf_dir
from lengthgen.data.sources import Document, Source
from lengthgen.errors import UserError
from lengthgen.files import sha256_of

LONG_BYTES = 55_000  # at about 3.3 bytes per token of a 4k BPE: 16,384 tokens and more
LEFT_OUT = {"test", "tests", "testing", "conftest.py", "benchmarks", "_antlr"}
GENERATED = re.compile(rb"(?i)do not (edit|modify)|auto-?generated|generated (by|from|with)")
HEAD_BYTES = 500  # where a generated file is marked as such
MOST_DIGITS = 0.2  # of the characters that are not blank; a file with more is a table
MOST_BYTES = 500_000  # so is a longer file
# Wheels for every machine, whatever the interpreter is; `--no-deps`: none of what they require.
PIP = [
    *("-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--retries", "2"),
    *("--only-binary=:all:", "--platform=any", "--python-version=3.13"),
    *("--implementation=py", "--abi=none", "--disable-pip-version-check"),
]


class Python(Source):
    """Sources of the projects in conf/corpus/python.toml, which says who is held out.

    Of those of validation only files >= LONG_BYTES are read: extrapolation is measured on them.
    """

    tokenizer_every = 4  # 25 MB, a quarter of the time

    def __init__(self) -> None:
        cache = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
        self.folder = Path(cache) / "lengthgen" / "wheels"  # for all runs of this account
        projects = tomllib.loads((conf_dir() / "corpus/python.toml").read_text(encoding="utf-8"))
        self.wheels = {  # sha256 by the name of the file, by split
            split: {project["wheel"]: project["sha256"] for project in of_split.values()}
            for split, of_split in projects.items()
        }

    def data_key(self) -> dict[str, str]:
        return self.wheels["train"] | self.wheels["validation"]

    def description(self) -> str:
        missing = [name for name in self.data_key() if not (self.folder / name).exists()]
        if missing:
            return f"downloading {len(missing)} wheels (66 MB in all) to {self.folder}"
        return f"reading {len(self.data_key())} projects in {self.folder}"

    def read(self, *, held_out: bool) -> Iterator[Document]:
        fetch(self.data_key(), self.folder)
        for name in self.wheels["validation" if held_out else "train"]:
            with zipfile.ZipFile(self.folder / name) as wheel:
                for path, content in code_files(wheel):
                    if not held_out or len(content) >= LONG_BYTES:
                        yield Document(name=path, text=content.decode())


def fetch(wheels: Mapping[str, str], folder: Path) -> None:
    """Downloads the wheels that are not in a folder with their sha256. Raises UserError."""
    paths = {folder / name: sha256 for name, sha256 in wheels.items()}
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


def code_files(wheel: zipfile.ZipFile) -> Iterator[tuple[str, bytes]]:
    """Yields name and content of hand-written code, each text once, sorted by name.

    Left out: tests, generated files, tables, files that are not UTF-8.
    """
    known: set[bytes] = set()
    for name in sorted(wheel.namelist()):
        parts = PurePosixPath(name).parts
        is_test = any(part.startswith("test_") for part in parts)
        if not name.endswith(".py") or is_test or not LEFT_OUT.isdisjoint(parts):
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
