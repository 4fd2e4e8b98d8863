"""Documents of the corpus python: sources of a few projects, pinned by the hash of their wheels."""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath

from lengthgen.config.compose import conf_dir
from lengthgen.data.sources.source import Document, Source
from lengthgen.errors import UserError
from lengthgen.files import sha256_of, writing

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

    Of the projects of validation only files >= LONG_BYTES are read: extrapolation is measured on
    them. Text in both splits is skipped token by token when endpoints are drawn (overlap.py).
    """

    tokenizer_every = 4  # 25 MB, a quarter of the time

    @cached_property
    def wheels(self) -> dict[str, dict[str, str]]:
        """The sha256 of each wheel by its file name, by split."""
        content = (conf_dir() / "corpus/python.toml").read_text(encoding="utf-8")
        return {
            split: {project["wheel"]: project["sha256"] for project in projects.values()}
            for split, projects in tomllib.loads(content).items()
        }

    def data_key(self) -> dict[str, str]:
        """Returns the sha256 of each wheel by its file name."""
        return self.wheels["train"] | self.wheels["validation"]

    def description(self) -> str:
        missing = [name for name in self.data_key() if not (wheel_folder() / name).exists()]
        if missing:
            return f"downloading {len(missing)} wheels (66 MB in all) to {wheel_folder()}"
        return f"reading {len(self.data_key())} projects in {wheel_folder()}"

    def documents(self, *, held_out: bool) -> Iterator[Document]:
        fetch(self.data_key())
        for name in self.wheels["validation" if held_out else "train"]:
            with zipfile.ZipFile(wheel_folder() / name) as wheel:
                for path, content in code_files(wheel):
                    if not held_out or len(content) >= LONG_BYTES:
                        yield Document(name=path, text=content.decode())


def wheel_folder() -> Path:
    """Returns where wheels are kept for all runs of this account."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(cache) / "lengthgen" / "wheels"


def fetch(wheels: Mapping[str, str]) -> None:
    """Downloads the wheels that are not there with their sha256. Raises UserError."""
    folder = wheel_folder()
    missing = {
        name: sha256
        for name, sha256 in wheels.items()
        if not (folder / name).exists() or sha256_of(folder / name) != sha256
    }
    if not missing:
        return
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as aside:
            _download(missing, Path(aside))
            for name in missing:
                (Path(aside) / name).replace(folder / name)


def _download(wheels: Mapping[str, str], folder: Path) -> None:
    requirements = folder / "requirements.txt"
    lines = (f"{_requirement(name)} --hash=sha256:{sha256}" for name, sha256 in wheels.items())
    requirements.write_text("\n".join(lines))
    command = [sys.executable, *PIP, f"--dest={folder}", f"--requirement={requirements}"]
    pip = subprocess.run(command, capture_output=True, text=True)
    if pip.returncode:
        errors = [line for line in pip.stderr.splitlines() if "ERROR" in line]
        raise UserError(
            f"corpus=python: cannot download {len(wheels)} wheels "
            f"({' '.join(errors or [pip.stderr])[:400]}); check the network, or use corpus=stdlib, "
            "which needs none"
        )


def _requirement(wheel: str) -> str:
    """Returns "name==version" of the name of a wheel."""
    return "==".join(wheel.split("-")[:2])


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
        digest = hashlib.sha256(content).digest()
        if digest not in known and _is_code(content):
            known.add(digest)
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
