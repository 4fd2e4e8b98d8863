"""Documents of the standard library: the sources of the running interpreter."""

import hashlib
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path

from lengthgen.data.sources.document import Document, Documents, Say, name_hash
from lengthgen.errors import UserError

# At 3.0 to 4.2 bytes per token of a 4k BPE, nearly every such file has more than 16,384 tokens.
LONG_BYTES = 65_536


def library_folder() -> Path:
    """Returns the folder of the running interpreter's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def sources(folder: Path) -> list[tuple[str, Path]]:
    """Returns (relative path, path) of the library's sources, sorted by relative path.

    Left out: tests, tables rather than code (encodings, pydoc_data, html/entities.py), lib2to3,
    installed packages, and what the build of the interpreter generated for one machine.
    """
    found: list[tuple[str, Path]] = []
    for path in folder.rglob("*.py"):
        relative = path.relative_to(folder)
        if not _left_out(relative) and path.stat().st_size:
            found.append((relative.as_posix(), path))
    if not found:
        raise UserError(
            f"corpus=stdlib: no sources of the standard library in {folder}; "
            "use a Python that ships them, or corpus=files corpus.path=FOLDER"
        )
    return sorted(found)


def sha256() -> str:
    """Returns the digest of all names and texts."""
    digest = hashlib.sha256()
    for name, path in sources(library_folder()):
        digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _left_out(relative: Path) -> bool:
    folders = {"test", "tests", "idle_test", "encodings", "pydoc_data", "lib2to3"}
    folders |= {"site-packages", "dist-packages", "__pycache__"}
    return (
        any(part in folders or part.startswith("test_") for part in relative.parts)
        or relative.as_posix() == "html/entities.py"
        or relative.name.startswith("_sysconfigdata")
        or relative.parts[0].startswith("config-")
    )


def is_held_out(name: str, *, n_bytes: int) -> bool:
    """True if the source belongs to validation: 1 in 20, but 2 in 3 of those >= LONG_BYTES.

    Decided by the hash of the relative path. Extrapolation is measured on long documents, and
    training at T tokens does not need them; it keeps about 4/5 of all bytes (CPython 3.10-3.13).
    """
    return name_hash(name) % 3 != 2 if n_bytes >= LONG_BYTES else name_hash(name) % 20 == 0


def read(*, say: Say) -> Documents:
    """Opens the sources of this interpreter, split by the hash of their names."""
    folder = library_folder()
    files = [(name, path, path.stat().st_size) for name, path in sources(folder)]
    n_bytes = sum(size for _, _, size in files)
    say(f"reading {len(files)} sources ({n_bytes / 1e6:.1f} MB) of {folder}")

    def documents(held_out: bool) -> Iterator[Document]:
        for name, path, size in files:
            if is_held_out(name, n_bytes=size) == held_out:
                yield Document(name=name, text=source_text(path))

    return Documents(train=documents(False), validation=documents(True), n_bytes=n_bytes)


def source_text(path: Path) -> str:
    """Returns a Python source as text: UTF-8, or else the encoding that it declares (PEP 263)."""
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        with tokenize.open(path) as file:
            return file.read()
