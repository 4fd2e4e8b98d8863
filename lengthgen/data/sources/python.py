"""Documents of the corpus python: sources of this interpreter and of what lengthgen depends on."""

import hashlib
import platform
import re
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lengthgen.data.sources.source import Document, Source, name_hash
from lengthgen.data.sources.stdlib import LONG_BYTES, library_files, library_folder

LEFT_OUT = {
    *("test", "tests", "testing", "conftest.py", "benchmarks"),
    *("_vendor", "_vendored", "vendor", "vendored", "externals", "_distutils", "v1"),  # copies
    *("gen", "_generated", "_antlr", "proto", "serialized_patterns"),  # output of programs
}
GENERATED = re.compile(rb"(?i)do not (edit|modify)|auto-?generated|generated (by|from|with)")
HEAD_BYTES = 500  # where a generated file is marked as such
MOST_DIGITS = 0.2  # of the characters that are not blank; a file with more is a table


class Python(Source):
    """Sources of the interpreter and of the installed distributions, split by the hash of names.

    Of validation are 1 in 40, but 1 in 2 of those >= LONG_BYTES. Training keeps about 4/5 of all
    bytes; text in both splits is skipped token by token when endpoints are drawn (overlap.py).
    """

    tokenizer_every = 4  # 25 MB, a quarter of the time

    def documents(self, *, held_out: bool) -> Iterator[Document]:
        for name, path, n_bytes in code_files(library_folder(), distributions()):
            if (name_hash(name) % (2 if n_bytes >= LONG_BYTES else 40) == 0) == held_out:
                yield Document(name=name, text=path.read_bytes().decode())

    def data_key(self) -> dict[str, str]:
        """Returns the versions of the interpreter and of the distributions."""
        interpreter = f"{platform.python_version()} {sysconfig.get_platform()}"
        packages = distributions().items()
        return {"python": interpreter} | {name: package.version for name, package in packages}

    def description(self) -> str:
        return f"reading this interpreter's sources and {len(distributions())} distributions'"


def distributions(root: str = "lengthgen") -> dict[str, metadata.Distribution]:
    """Returns the installed distributions that `root` requires, directly or not, sorted by name.

    Requirements of extras do not count, so that tools for development change nothing.
    """
    packages: dict[str, metadata.Distribution] = {}
    names = [root]
    while names:
        name = canonicalize_name(names.pop())
        package = next(iter(metadata.distributions(name=name)), None)
        if package is None or name in packages:
            continue
        packages[name] = package
        for requirement in map(Requirement, package.requires or []):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                names.append(requirement.name)
    packages.pop(canonicalize_name(root), None)
    return dict(sorted(packages.items()))


def code_files(
    library: Path, packages: dict[str, metadata.Distribution]
) -> Iterator[tuple[str, Path, int]]:
    """Yields (name, path, bytes) of hand-written code, each text once, sorted by name.

    Left out: tests, vendored copies, generated files, tables, files that are not UTF-8.
    """
    paths = {f"stdlib/{name}": path for name, path in library_files(library)}
    for package in packages.values():
        for file in package.files or []:
            outside = ".." in file.parts or not LEFT_OUT.isdisjoint(file.parts)
            is_test = any(part.startswith("test_") for part in file.parts)
            if file.suffix == ".py" and not outside and not is_test:
                paths[file.as_posix()] = Path(str(file.locate()))
    known: set[bytes] = set()
    for name, path in sorted(paths.items()):
        content = path.read_bytes() if path.is_file() else b""
        digest = hashlib.sha256(content).digest()
        if digest not in known and _is_code(content):
            known.add(digest)
            yield name, path, len(content)


def _is_code(content: bytes) -> bool:
    """True unless a source is empty, generated, a table of numbers or not UTF-8."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    shown = content.translate(None, b" \t\r\n")
    digits = len(shown) - len(shown.translate(None, b"0123456789"))
    is_table = digits > MOST_DIGITS * len(shown)
    return bool(shown) and not is_table and not GENERATED.search(content[:HEAD_BYTES])
