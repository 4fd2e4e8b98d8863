"""Documents of the standard library: the sources of the running interpreter."""

import hashlib
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path

from lengthgen.data.sources.source import Document, Source, name_hash
from lengthgen.errors import UserError

# At 3.0 to 4.2 bytes per token of a 4k BPE, nearly every such file has more than 16,384 tokens.
LONG_BYTES = 65_536
LEFT_OUT = {
    *("test", "tests", "idle_test", "encodings", "pydoc_data", "lib2to3"),
    *("site-packages", "dist-packages", "__pycache__"),
}


class Stdlib(Source):
    """Sources of this interpreter, split by the hash of their relative paths.

    Of validation are 1 in 20, but 2 in 3 of those >= LONG_BYTES: extrapolation is measured on long
    documents, and training at T tokens does not need them; it keeps about 4/5 of all bytes
    (CPython 3.10-3.13).
    """

    def documents(self, *, held_out: bool) -> Iterator[Document]:
        for name, path in library_files(library_folder()):
            n, is_long = name_hash(name), path.stat().st_size >= LONG_BYTES
            if (n % 3 != 2 if is_long else n % 20 == 0) == held_out:
                yield Document(name=name, text=source_text(path))

    def data_key(self) -> str:
        digest = hashlib.sha256()
        for name, path in library_files(library_folder()):
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
        return digest.hexdigest()


def library_folder() -> Path:
    """Returns the folder of the running interpreter's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def library_files(folder: Path) -> list[tuple[str, Path]]:
    """Returns (relative path, path) of the library's sources, sorted by relative path.

    Left out: tests, tables rather than code (encodings, pydoc_data, html/entities.py), lib2to3,
    installed packages, and what the build of the interpreter generated for one machine.
    """
    files: list[tuple[str, Path]] = []
    for path in folder.rglob("*.py"):
        relative = path.relative_to(folder)
        if not _left_out(relative) and path.stat().st_size:
            files.append((relative.as_posix(), path))
    if not files:
        raise UserError(
            f"corpus=stdlib: no sources of the standard library in {folder}; "
            "use a Python that ships them, or corpus=files corpus.path=FOLDER"
        )
    return sorted(files)


def _left_out(relative: Path) -> bool:
    return (
        any(part in LEFT_OUT or part.startswith("test_") for part in relative.parts)
        or relative.as_posix() == "html/entities.py"
        or relative.name.startswith("_sysconfigdata")
        or relative.parts[0].startswith("config-")
    )


def source_text(path: Path) -> str:
    """Returns a Python source as text: UTF-8, or else the encoding that it declares (PEP 263)."""
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        with tokenize.open(path) as file:
            return file.read()
