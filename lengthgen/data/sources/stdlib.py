"""Documents of the standard library: the sources of the running interpreter."""

import hashlib
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path

from lengthgen.data.sources import Document, Source, name_hash
from lengthgen.errors import UserError

# At 3.0 to 4.2 bytes per token of a 4k BPE, nearly every such file has more than 16,384 tokens.
LONG_BYTES = 65_536
LEFT_OUT = {  # tests, tables rather than code, installed packages
    *("test", "tests", "idle_test", "encodings", "pydoc_data", "lib2to3"),
    *("site-packages", "dist-packages", "__pycache__"),
}


class Stdlib(Source):
    """Sources of this interpreter, split by the hash of their relative paths.

    Of validation are 1 in 20, but 2 in 3 of those >= LONG_BYTES: extrapolation is measured on long
    documents. Training keeps about 4/5 of all bytes (CPython 3.10-3.13).
    """

    def __init__(self) -> None:
        self.folder = Path(sysconfig.get_paths()["stdlib"])

    def read(self, *, held_out: bool) -> Iterator[Document]:
        for name, path in library_files(self.folder):
            n, is_long = name_hash(name), path.stat().st_size >= LONG_BYTES
            if (n % 3 != 2 if is_long else n % 20 == 0) == held_out:
                with tokenize.open(path) as file:  # as it declares its encoding (PEP 263)
                    yield Document(name=name, text=file.read())

    def data_key(self) -> str:
        digest = hashlib.sha256()
        for name, path in library_files(self.folder):
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
        return digest.hexdigest()


def library_files(folder: Path) -> list[tuple[str, Path]]:
    """Returns (relative path, path) of the library's hand-written sources, sorted."""
    paths = ((path.relative_to(folder), path) for path in folder.rglob("*.py"))
    kept = [(n.as_posix(), p) for n, p in paths if not _left_out(n) and p.stat().st_size]
    if not kept:
        raise UserError(
            f"corpus=stdlib: no sources of the standard library in {folder}; "
            "use a Python that ships them, or corpus=files corpus.path=FOLDER"
        )
    return sorted(kept)


def _left_out(relative: Path) -> bool:
    return (
        any(part in LEFT_OUT or part.startswith("test_") for part in relative.parts)
        or relative.as_posix() == "html/entities.py"
        or relative.name.startswith("_sysconfigdata")  # made by the build of this machine
        or relative.parts[0].startswith("config-")
    )
