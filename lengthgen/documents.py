"""Sources of documents: the standard library, files, the Hugging Face Hub, a seeded generator."""

import errno
import glob
import hashlib
import itertools
import json
import os
import re
import string
import sysconfig
import tokenize
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lengthgen import config
from lengthgen.errors import UserError, suggestion

Say = Callable[[str], None]

TEXT_SUFFIXES = (".txt", ".md", ".py")
ROW_SUFFIXES = (".jsonl", ".parquet")
SUFFIXES = TEXT_SUFFIXES + ROW_SUFFIXES
# At 3.0 to 4.2 bytes per token of a 4k BPE, nearly every such file has more than 16,384 tokens.
LONG_BYTES = 65_536


@dataclass(frozen=True, kw_only=True)
class Document:
    """A text and its name, which is unique in its split and the same on every machine."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Both splits, each to be read once and in order; n_bytes is their UTF-8 size, if known."""

    train: Iterator[Document]
    validation: Iterator[Document]
    n_bytes: int | None


def read(corpus: config.Corpus, *, say: Say) -> Documents:
    """Opens the corpus; documents are read while the iterators are consumed.

    Raises UserError, also from the iterators, with the key that is wrong.
    """
    match corpus:
        case config.StdlibCorpus():
            return _stdlib(say)
        case config.FilesCorpus():
            return _files(corpus, say)
        case config.HubCorpus():
            return _hub(corpus, say)
        case config.SyntheticCorpus():
            return _synthetic(corpus)


def source_key(corpus: config.Corpus) -> dict[str, Any]:
    """Returns what identifies the documents, as JSON: equal keys mean equal documents.

    The standard library is identified by its text; files by path, size and time of change; the
    Hub by its names (a revision of null means whatever was newest when it was first read).
    """
    key = corpus.model_dump(
        mode="json", exclude={"name", "tokenizer", "vocab_size", "bos", "packed", "streaming"}
    )
    match corpus:
        case config.StdlibCorpus():
            digest = hashlib.sha256()
            for name, path in stdlib_files(stdlib_folder()):
                digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
            key["sha256"] = digest.hexdigest()
        case config.FilesCorpus():
            key["files"] = [_stat(path) for split in _split_files(corpus) for path in split]
        case config.HubCorpus():
            if Path(corpus.repo).is_dir():
                key["files"] = [_stat(path) for path in _walk(Path(corpus.repo), "corpus.repo")]
        case config.SyntheticCorpus():
            pass
    return key


def _hash(name: str) -> int:
    return int(hashlib.sha256(name.encode()).hexdigest(), 16)


# The standard library


def stdlib_folder() -> Path:
    """Returns the folder of the running interpreter's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def stdlib_files(folder: Path) -> list[tuple[str, Path]]:
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


def _left_out(relative: Path) -> bool:
    folders = {"test", "tests", "idle_test", "encodings", "pydoc_data", "lib2to3"}
    folders |= {"site-packages", "dist-packages", "__pycache__"}
    return (
        any(part in folders or part.startswith("test_") for part in relative.parts)
        or relative.as_posix() == "html/entities.py"
        or relative.name.startswith("_sysconfigdata")
        or relative.parts[0].startswith("config-")
    )


def stdlib_held_out(name: str, *, n_bytes: int) -> bool:
    """True if the source belongs to validation: 1 in 20, but 2 in 3 of those >= LONG_BYTES.

    Decided by the hash of the relative path. Extrapolation is measured on long documents, and
    training at T tokens does not need them; it keeps about 4/5 of all bytes (CPython 3.10-3.13).
    """
    return _hash(name) % 3 != 2 if n_bytes >= LONG_BYTES else _hash(name) % 20 == 0


def _stdlib(say: Say) -> Documents:
    folder = stdlib_folder()
    files = [(name, path, path.stat().st_size) for name, path in stdlib_files(folder)]
    n_bytes = sum(size for _, _, size in files)
    say(f"reading {len(files)} sources ({n_bytes / 1e6:.1f} MB) of {folder}")

    def documents(held_out: bool) -> Iterator[Document]:
        for name, path, size in files:
            if stdlib_held_out(name, n_bytes=size) == held_out:
                yield Document(name=name, text=source_text(path))

    return Documents(train=documents(False), validation=documents(True), n_bytes=n_bytes)


def source_text(path: Path) -> str:
    """Returns a Python source as text: UTF-8, or else the encoding that it declares (PEP 263)."""
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        with tokenize.open(path) as file:
            return file.read()


# Files


def _files(corpus: config.FilesCorpus, say: Say) -> Documents:
    """Splits as given, or by rule if the files are not split already.

    The rule: 1 in 20 by hash of the name, and always the second longest document (so that
    validation has a long one), never the longest. A single document is split by position: its
    last twentieth, from the beginning of a line, is validation.
    """
    train, validation = _split_files(corpus)
    paths = train + validation
    n_bytes = sum(_text_bytes(path, corpus) for path in paths)
    say(f"reading {len(paths)} files ({n_bytes / 1e6:.1f} MB) of {corpus.path}")
    if validation:
        return Documents(
            train=_file_documents(train, corpus),
            validation=_file_documents(validation, corpus),
            n_bytes=n_bytes,
        )
    sizes = (
        (len(document.text.encode()), document.name) for document in _file_documents(train, corpus)
    )
    longest, second = _two_longest(sizes)
    if longest is None:
        raise UserError(
            f"corpus.path: no documents in {corpus.path}; every row is empty, or there is none"
        )
    if second is None:
        head, tail = _by_position(next(_file_documents(train, corpus)))
        say(f"corpus.path holds a single document: the last {len(tail.text)} characters validate")
        return Documents(train=iter([head]), validation=iter([tail]), n_bytes=n_bytes)

    def documents(held_out: bool) -> Iterator[Document]:
        for document in _file_documents(train, corpus):
            name = document.name
            chosen = name == second or (name != longest and _hash(name) % 20 == 0)
            if chosen == held_out:
                yield document

    return Documents(train=documents(False), validation=documents(True), n_bytes=n_bytes)


def _two_longest(sizes: Iterable[tuple[int, str]]) -> tuple[str | None, str | None]:
    best: list[tuple[int, str]] = []
    for one in sizes:
        best = sorted([*best, one], reverse=True)[:2]
    names = [name for _, name in best]
    return (names[0] if names else None, names[1] if len(names) > 1 else None)


def _by_position(document: Document) -> tuple[Document, Document]:
    text = document.text
    at = len(text) * 19 // 20
    at = text.rfind("\n", 0, at) + 1 or at
    if not 0 < at < len(text):
        raise UserError(
            f"corpus.path: {document.name} is the only document, and too short to take validation "
            "text from; add documents, or set corpus.validation_path"
        )
    return (
        Document(name=f"{document.name}:head", text=text[:at]),
        Document(name=f"{document.name}:tail", text=text[at:]),
    )


def _split_files(corpus: config.FilesCorpus) -> tuple[list[Path], list[Path]]:
    """Returns the files of training and of validation; none in the latter if rules must split."""
    if corpus.validation_path is not None:
        validation = _expand(corpus.validation_path, "corpus.validation_path")
        held_out = {path.resolve() for path in validation}
        found = _expand(corpus.path, "corpus.path")
        train = [path for path in found if path.resolve() not in held_out]
        if not train:
            raise UserError(
                f"corpus.validation_path: {corpus.validation_path} holds every file of "
                f"corpus.path={corpus.path}; nothing is left to train on"
            )
        return train, validation
    if isinstance(corpus.path, str):
        folders = [Path(corpus.path).expanduser() / name for name in ("train", "validation")]
        if all(os.path.isdir(folder) for folder in folders):
            train, validation = (_expand(str(folder), "corpus.path") for folder in folders)
            return train, validation
    return _expand(corpus.path, "corpus.path"), []


def _expand(path: str | Sequence[str], key: str) -> list[Path]:
    """Returns the files that a path, glob or list of them names, sorted, each once."""
    found: dict[Path, None] = {}
    for one in [path] if isinstance(path, str) else path:
        found |= dict.fromkeys(_expand_one(Path(one).expanduser(), key))
    if not found:
        raise UserError(f"{key}: an empty list names no document; give a folder or a file")
    return sorted(found)


def _expand_one(path: Path, key: str) -> list[Path]:
    kinds = " ".join(SUFFIXES)
    if os.path.isdir(path):
        files = [file for file in _walk(path, key) if file.suffix.lower() in SUFFIXES]
        if not files:
            raise UserError(f"{key}: no documents in {path}; expected files of {kinds}")
        return files
    if os.path.lexists(path):
        files = [path]
    else:
        matches = glob.glob(str(path), recursive=True) if glob.has_magic(str(path)) else []
        files = [Path(match) for match in matches if not os.path.isdir(match)]
        if not files and glob.has_magic(str(path)):
            raise UserError(f"{key}: {path} matches no file; quote the glob and check the folder")
    if not files:
        raise UserError(f"{key}: {path} does not exist; {_near(path)}")
    for file in files:
        if file.suffix.lower() not in SUFFIXES:
            raise UserError(f"{key}: {file} has an unsupported suffix; supported: {kinds}")
    return files


def _near(path: Path) -> str:
    """Suggests what a mistyped path may have meant, from the nearest folder that exists."""
    folder = path.absolute().parent
    if not os.path.isdir(folder):
        return f"nor does the folder {folder}"
    names = [name for name in os.listdir(folder) if not name.startswith(".")]
    return suggestion(path.name, names) if names else f"the folder {folder} is empty"


def _walk(folder: Path, key: str) -> list[Path]:
    """Returns all files under a folder but hidden ones, sorted."""
    found: list[Path] = []
    with _readable(folder, key):
        for root, folders, names in os.walk(folder, onerror=_raise):
            folders[:] = [name for name in folders if not name.startswith(".")]
            found += [Path(root, name) for name in names if not name.startswith(".")]
    return sorted(found)


def _raise(error: OSError) -> None:
    raise error


@contextmanager
def _readable(path: Path, key: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or path
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise UserError(f"{key}: cannot read {where}: {reason}; check permissions") from error


def _stat(path: Path) -> tuple[str, int, int]:
    with _readable(path, "corpus.path"):
        status = path.stat()
    return str(path.absolute()), status.st_size, status.st_mtime_ns


def _text_bytes(path: Path, corpus: config.FilesCorpus) -> int:
    """Returns about how many bytes of text a file holds; parquet is compressed."""
    if path.suffix.lower() != ".parquet":
        return _stat(path)[1]
    metadata = _open_parquet(path, corpus).metadata
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    columns = [group.column(j) for group in groups for j in range(group.num_columns)]
    name = corpus.text_column
    return sum(c.total_uncompressed_size for c in columns if c.path_in_schema == name)


def _file_documents(paths: Sequence[Path], corpus: config.FilesCorpus) -> Iterator[Document]:
    """Yields the documents of the files, named by their path below the common folder."""
    folder = os.path.commonpath([path.absolute().parent for path in paths])
    for path in paths:
        name = Path(os.path.relpath(path.absolute(), folder)).as_posix()
        with _readable(path, "corpus.path"):
            match path.suffix.lower():
                case ".jsonl":
                    yield from _jsonl(path, name, corpus)
                case ".parquet":
                    yield from _parquet(path, name, corpus)
                case _:
                    yield from _whole(path, name)


def _whole(path: Path, name: str) -> Iterator[Document]:
    content = path.read_bytes()
    if not content:
        if path.name == "__init__.py":  # empty by convention in most packages
            return
        raise UserError(f"corpus.path: {path} is empty; remove it or fill it")
    yield Document(name=name, text=_decode(content, path, offset=0))


def _decode(content: bytes, path: Path, *, offset: int) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"corpus.path: {path} is not UTF-8 at byte {offset + error.start}; "
            "convert it, for instance with iconv -t utf-8"
        ) from None


def _jsonl(path: Path, name: str, corpus: config.FilesCorpus) -> Iterator[Document]:
    """Yields a document per line; lines are counted from 1, blank ones and empty texts skipped."""
    column, offset, empty = corpus.text_column, 0, True
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            content = _decode(line, path, offset=offset).lstrip("\ufeff")
            offset += len(line)
            if not content.strip():
                continue
            empty = False
            where = f"{path}:{number}"
            try:
                row = json.loads(content)
            except json.JSONDecodeError as error:
                raise UserError(
                    f"corpus.path: {where} is not JSON: {error.msg} at column {error.colno}"
                ) from None
            if not isinstance(row, dict):
                raise UserError(f"corpus.path: {where} is not a JSON object with a text column")
            yield from _row(row, column, where, f"{name}:{number}")
    if empty:
        raise UserError(f"corpus.path: {path} is empty; remove it or fill it")


def _row(row: dict[str, Any], column: str, where: str, name: str) -> Iterator[Document]:
    if column not in row:
        raise UserError(f"corpus.path: {where} has no column {column!r}; {_columns(row)}")
    text = row[column]
    if not isinstance(text, str) or _has_surrogates(text):
        raise UserError(
            f"corpus.path: {where}: column {column!r} is not text but {str(text)[:20]!r}; "
            f"{_columns(row)}"
        )
    if text:
        yield Document(name=name, text=text)


def _has_surrogates(text: str) -> bool:
    """True for halves of UTF-16 pairs, which JSON can escape and UTF-8 cannot hold."""
    return re.search("[\ud800-\udfff]", text) is not None


def _columns(names: Iterable[str]) -> str:
    return f"set corpus.text_column to one of: {', '.join(names)}"


def _open_parquet(path: Path, corpus: config.FilesCorpus) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with _readable(path, "corpus.path"):
            file = pq.ParquetFile(path)
    except pa.ArrowInvalid:
        raise UserError(f"corpus.path: {path} is not a parquet file, or damaged") from None
    if corpus.text_column not in file.schema_arrow.names:
        raise UserError(
            f"corpus.path: {path} has no column {corpus.text_column!r}; "
            f"{_columns(file.schema_arrow.names)}"
        )
    return file


def _parquet(path: Path, name: str, corpus: config.FilesCorpus) -> Iterator[Document]:
    """Yields a document per row; rows are counted from 1, empty texts skipped."""
    column = corpus.text_column
    with _open_parquet(path, corpus) as file:
        names = file.schema_arrow.names
        batches = file.iter_batches(batch_size=64, columns=[column])
        texts = (text for batch in batches for text in batch.column(column).to_pylist())
        for number, text in enumerate(texts, start=1):
            row = dict.fromkeys(names) | {column: text}
            yield from _row(row, column, f"{path}:{number}", f"{name}:{number}")


# The Hugging Face Hub


def _hub(corpus: config.HubCorpus, say: Say) -> Documents:
    n_validation = corpus.validation_documents
    if corpus.validation_split is not None:
        first, held_out = 0, _hub_documents(corpus, corpus.validation_split)
    elif n_validation is not None:
        first, held_out = n_validation, _hub_documents(corpus, corpus.train_split)
    else:
        raise UserError(
            "corpus.validation_documents: a number is required if corpus.validation_split is null: "
            "the first so many documents of the training split are validation"
        )
    if Path(corpus.repo).is_dir():
        say(f"reading {corpus.repo}, a local folder laid out as a repository of the Hub")
    else:
        say(
            f"downloading {corpus.repo} from the Hugging Face Hub; without a network this takes "
            "about 25 s to fail; set HF_HUB_OFFLINE=1 to fail at once, or to use what is cached"
        )
    last = None if corpus.documents is None else first + corpus.documents
    return Documents(
        train=itertools.islice(_hub_documents(corpus, corpus.train_split), first, last),
        validation=itertools.islice(held_out, n_validation),
        n_bytes=None,
    )


def _hub_documents(corpus: config.HubCorpus, split: str) -> Iterator[Document]:
    """Yields the documents of a split, named by row (or article) counted from 1."""
    texts = _hub_texts(corpus, split)
    named = articles(texts) if corpus.rows == "wikitext_lines" else (("", text) for text in texts)
    for number, (title, text) in enumerate(named, start=1):
        if text:
            yield Document(name=f"{split}:{number} {title}".rstrip(), text=text)


def _hub_texts(corpus: config.HubCorpus, split: str) -> Iterator[str]:
    import datasets

    column = corpus.text_column
    with _hub_errors(corpus, split):
        rows: Any = datasets.load_dataset(
            corpus.repo,
            corpus.subset,
            split=split,
            revision=corpus.revision,
            streaming=corpus.streaming,
        )
        for row in rows:
            if column not in row:
                raise UserError(
                    f"corpus.text_column: {corpus.repo} has no column {column!r}; {_columns(row)}"
                )
            if not isinstance(row[column], str):
                raise UserError(
                    f"corpus.text_column: column {column!r} of {corpus.repo} is not text but "
                    f"{str(row[column])[:20]!r}; {_columns(row)}"
                )
            yield row[column]


@contextmanager
def _hub_errors(corpus: config.HubCorpus, split: str) -> Generator[None]:
    """Turns what `datasets` and the network libraries below it raise into one line."""
    import datasets.exceptions

    revision = corpus.revision or "newest"
    try:
        yield
    except UserError:
        raise
    except (datasets.exceptions.DatasetNotFoundError, FileNotFoundError) as error:
        raise UserError(
            f"corpus.repo: {corpus.repo} (revision {revision}) was not found on the Hugging Face "
            "Hub, or needs a login; check the name, or run `hf auth login`"
        ) from error
    except ConnectionError as error:
        raise UserError(
            f"corpus.repo: {corpus.repo} is not reachable ({_first_line(error)}); check the "
            "network, or use corpus=stdlib or corpus=files"
        ) from error
    except Exception as error:  # which HTTP library raises depends on versions; full disk: ours
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"corpus.repo: cannot read {corpus.repo} (corpus.subset={corpus.subset}, split "
            f"{split}, revision {revision}): {_first_line(error)}"
        ) from error


def _first_line(error: BaseException) -> str:
    """Returns what the innermost cause of an error says."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def articles(rows: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Rebuilds (title, text) of WikiText articles from its rows, each a line of the original.

    An article begins at a level-one title, ` = Title = ` after a blank line; ` = = Section = = `
    belongs to the article before it.
    """
    title, lines, after_blank = "", list[str](), True
    for row in rows:
        line = row.rstrip("\n")
        match = re.fullmatch(r" = (?!= )(.+) = ?", line) if after_blank else None
        if match:
            if "".join(lines).strip():
                yield title, "".join(lines)
            title, lines = match[1], []
        lines.append(line + "\n")
        after_blank = not line.strip()
    if "".join(lines).strip():
        yield title, "".join(lines)


# Seeded random documents


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A span of n_words words at `target` that repeats the one at `source`; both count words."""

    source: int
    target: int
    n_words: int


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A random document and where its copies are."""

    document: Document
    copies: tuple[Copy, ...]


def planted(corpus: config.SyntheticCorpus, *, index: int, held_out: bool) -> Planted:
    """Returns document `index` of a split: a function of corpus, index and split alone.

    Words are uniform over the alphabet. Sources lie in the first quarter of the document, targets
    in the second half, one in each of `copies` equal slots: at least a quarter lies between.
    """
    n_words, span = corpus.document_tokens, corpus.copy_tokens
    slot = n_words // 2 // max(1, corpus.copies)
    if corpus.copies and span > min(slot, n_words // 4):
        raise UserError(
            f"corpus.copy_tokens={span} is too long for corpus.copies={corpus.copies} in "
            f"corpus.document_tokens={n_words}; at most {min(slot, n_words // 4)} fit"
        )
    key = np.array([corpus.seed, index], dtype=np.uint64)
    counter = np.array([0, 0, 0, int(held_out)], dtype=np.uint64)
    generator = np.random.Generator(np.random.Philox(key=key, counter=counter))
    words = generator.integers(corpus.alphabet, size=n_words)
    copies: list[Copy] = []
    for i in range(corpus.copies):
        source = int(generator.integers(n_words // 4 - span + 1))
        target = n_words - (i + 1) * slot + int(generator.integers(slot - span + 1))
        words[target : target + span] = words[source : source + span]
        copies.append(Copy(source=source, target=target, n_words=span))
    name = f"{'validation' if held_out else 'train'}:{index}"
    text = _spell(words, corpus.alphabet)
    return Planted(document=Document(name=name, text=text), copies=tuple(copies))


def _spell(words: NDArray[np.int64], alphabet: int) -> str:
    """Writes word numbers in letters, all of one length, each followed by a space."""
    letters, width = string.ascii_lowercase, 1
    while len(letters) ** width < alphabet:
        width += 1
    spelled = ["".join(word) + " " for word in itertools.product(letters, repeat=width)]
    return "".join(spelled[word] for word in words)


def _synthetic(corpus: config.SyntheticCorpus) -> Documents:
    n_validation = max(1, corpus.documents // 10)
    first = planted(corpus, index=0, held_out=False).document

    def documents(n: int, held_out: bool) -> Iterator[Document]:
        for index in range(n):
            yield planted(corpus, index=index, held_out=held_out).document

    return Documents(
        train=documents(corpus.documents, False),
        validation=documents(n_validation, True),
        n_bytes=len(first.text) * (corpus.documents + n_validation),
    )
