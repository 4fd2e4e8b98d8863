"""Documents of the corpus python: sources of this interpreter and of what lengthgen depends on."""

import hashlib
import platform
import re
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lengthgen.data.sources import stdlib
from lengthgen.data.sources.document import Document, Documents, Say, name_hash

LEFT_OUT = {
    *("test", "tests", "testing", "conftest.py", "benchmarks"),
    *("_vendor", "_vendored", "vendor", "vendored", "externals", "_distutils", "v1"),  # copies
    *("gen", "_generated", "_antlr", "proto", "serialized_patterns"),  # output of programs
}
GENERATED = re.compile(rb"(?i)do not (edit|modify)|auto-?generated|generated (by|from|with)")
HEAD_BYTES = 500  # where a generated file is marked as such
TOKENIZER_EVERY = 4  # training documents: 25 MB, a quarter of the time
MOST_DIGITS = 0.2  # of the characters that are not blank; a file with more is a table


def distributions(
    root: str = "lengthgen", *, path: Sequence[str] | None = None
) -> dict[str, metadata.Distribution]:
    """Returns the installed distributions that `root` requires, directly or not, sorted by name.

    Requirements of extras do not count, so that tools for development change nothing. `path` is
    where to look, sys.path by default.
    """
    found: dict[str, metadata.Distribution] = {}
    names: list[str] = [root]
    while names:
        name = canonicalize_name(names.pop())
        place = sys.path if path is None else list(path)
        one = next(iter(metadata.distributions(name=name, path=place)), None)
        if one is None or name in found:
            continue
        found[name] = one
        for requirement in map(Requirement, one.requires or []):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                names.append(requirement.name)
    found.pop(canonicalize_name(root), None)
    return dict(sorted(found.items()))


def versions() -> dict[str, str]:
    """Returns the versions of the interpreter and the distributions: they identify the corpus."""
    interpreter = f"{platform.python_version()} {sysconfig.get_platform()}"
    return {"python": interpreter} | {name: one.version for name, one in distributions().items()}


def sources(
    library: Path, packages: dict[str, metadata.Distribution]
) -> list[tuple[str, Path, int]]:
    """Returns (name, path, bytes) of hand-written code, each text once, sorted by name.

    Left out: tests, vendored copies, generated files, tables, files that are not UTF-8.
    """
    paths = {f"stdlib/{name}": path for name, path in stdlib.sources(library)}
    for package in packages.values():
        for file in package.files or []:
            outside = ".." in file.parts or not LEFT_OUT.isdisjoint(file.parts)
            is_test = any(part.startswith("test_") for part in file.parts)
            if file.suffix == ".py" and not outside and not is_test:
                paths[file.as_posix()] = Path(str(file.locate()))
    found: list[tuple[str, Path, int]] = []
    known: set[bytes] = set()
    for name, path in sorted(paths.items()):
        content = path.read_bytes() if path.is_file() else b""
        digest = hashlib.sha256(content).digest()
        if digest not in known and _is_code(content):
            known.add(digest)
            found.append((name, path, len(content)))
    return found


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


def is_held_out(name: str, *, n_bytes: int) -> bool:
    """True if the source belongs to validation: 1 in 40, but 1 in 2 of those >= LONG_BYTES.

    Decided by the hash of the name. Training keeps about 4/5 of all bytes; text in both
    splits is skipped token by token when endpoints are drawn (overlap.py).
    """
    return name_hash(name) % (2 if n_bytes >= stdlib.LONG_BYTES else 40) == 0


def read(*, say: Say) -> Documents:
    """Opens the sources, split by the hash of their names."""
    packages = distributions()
    say(f"looking for Python sources of this interpreter and {len(packages)} distributions")
    files = sources(stdlib.library_folder(), packages)
    n_bytes = sum(size for _, _, size in files)
    say(f"reading {len(files):,} sources ({n_bytes / 1e6:.1f} MB)")

    def documents(held_out: bool) -> Iterator[Document]:
        for name, path, size in files:
            if is_held_out(name, n_bytes=size) == held_out:
                yield Document(name=name, text=path.read_bytes().decode())

    return Documents(
        train=documents(False),
        validation=documents(True),
        n_bytes=n_bytes,
        tokenizer_every=TOKENIZER_EVERY,
        about={"versions": versions()},
    )
