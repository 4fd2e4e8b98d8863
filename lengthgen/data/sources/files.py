"""Documents of files on disk, and how they are split."""

import glob
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from lengthgen.config.overrides import shell_words
from lengthgen.config.schema import Word
from lengthgen.data.formats import COLUMNAR, PER_FILE, PER_ROW, READABLE, parts_of, suffix_of, texts
from lengthgen.data.sources import Document, Source, name_hash
from lengthgen.errors import UserError, first_line, shortened, suggestion
from lengthgen.files import hash_of, utf8

# Splits as words in the names of files and folders, such as data-train-0.txt and Validation
SPLIT = re.compile(
    r"(?<![a-z ])(train|val|dev|test|eval|held)(ing|id|idation)?(?![a-z ])", re.IGNORECASE
)
HIDDEN = (".", "_temporary", "__MACOSX")  # beginnings of names that are passed over
STATE = {"dataset_dict.json", "dataset_info.json", "state.json"}  # of save_to_disk
TABLES = {
    **{"_delta_log": "Delta", ".hoodie": "Hudi", "metadata/*.metadata.json": "Iceberg"},
    "_spark_metadata": "Spark",  # of a stream
}
SHARD = re.compile(r"(.*?)\d+-of-(\d+)")
DEPTH = 6  # folders between a file and what lists it, as of partitions
DATA = {  # that holds text and is not read
    *(".7z", ".bz2", ".docx", ".epub", ".feather", ".gz", ".htm", ".html", ".pdf", ".rst"),
    *(".rar", ".tar", ".tex", ".tgz", ".tsv", ".xml", ".xz", ".zip", ".zst"),
}


def _each_once(paths: str | list[str]) -> str | list[str]:
    once = [paths] if isinstance(paths, str) else sorted({*paths})
    return once[0] if len(once) == 1 else once


Paths = Annotated[Word | list[Word], AfterValidator(_each_once)]  # in any order, the same documents


@dataclass(kw_only=True)
class Files(Source):
    """Splits as given, or by rule if the files are not split already.

    The rule: 1 in 20 by hash of the name, and always the second longest document (so that
    validation has a long one), never the longest. A single document is split by position: its
    last twentieth, from the beginning of a line, is validation.
    """

    path: Paths
    validation_path: Paths | None = None
    text_column: str = "text"
    group_column: str | None = None

    @cached_property
    def split_paths(self) -> tuple[list[Path], list[Path]]:
        """The files of training and of validation; none in the latter if the rule must split."""
        path, held_out, key = self.path, self.validation_path, "corpus.validation_path"
        folder = os.path.expanduser(str(path))
        is_folder = isinstance(path, str)
        if held_out is None and is_folder and _is_split(Path(folder, "validation")):
            held_out, key = f"{folder}/validation", "corpus.path"
            path = f"{folder}/train" if _is_split(Path(folder, "train")) else path
        elif held_out is None:
            for each in [path] if isinstance(path, str) else path:
                _refuse_other_splits(each)
        validation = [] if held_out is None else expand_paths(held_out, key)
        return sorted({*expand_paths(path)} - {*validation}), validation

    def data_key(self) -> str:
        return states([*self.split_paths[0], *self.split_paths[1]])

    def description(self) -> str:
        """Names the files, and by kind what else their folder holds.

        Raises UserError for data in other formats that is more than what is read.
        """
        files = {*self.split_paths[0], *self.split_paths[1]}
        line = f"reading {len(files)} files of {self.path}"
        shards = Counter(shard.groups() for f in sorted(files) if (shard := SHARD.match(f.name)))
        for (begin, of), n in shards.items():
            if n < int(of):
                line += f"; {n} of the {int(of)} shards {begin}*-of-{of} are there"
        folder = Path(str(self.path)).expanduser()
        others = {*walk(folder)} - files if os.path.isdir(folder) else None
        if not others:
            return line
        kinds = Counter(sorted(file.suffix or file.name for file in others))
        not_read = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common(5))
        text = (*PER_FILE, *PER_ROW)  # of another split
        data = [f for f in others if f.suffix.lower() in DATA and suffix_of(f) not in text]
        if sum(map(_size, data)) > sum(map(_size, files)):
            raise UserError(
                f"corpus.path: {folder} holds more data that is not read ({not_read}) than files "
                f"of {READABLE}; convert it, or name what is to be read, such as {folder}/*.txt"
            )
        return f"{line}; not read: {not_read}"

    def check(self) -> None:
        """Looks for the files, and for the text column in the first one that has rows."""
        train, validation = self.split_paths
        with_rows = [path for path in validation or train if suffix_of(path) in PER_ROW]
        next(self._documents(with_rows[:1]), None)

    def read(self, *, held_out: bool) -> Iterator[Document]:
        train, validation = self.split_paths
        if not train and not held_out:
            alone = {"corpus.path": self.validation_path or f"{self.path}/validation"}
            raise UserError(
                f"corpus.path: all files of {self.path} are of validation; add files to train on, "
                f"or give {shortened(shell_words(alone))} alone to split them"
            )
        if validation:
            yield from self._documents(validation if held_out else train)
            return
        longest, second = self._two_longest
        for document in self._documents(train):
            name = document.name
            chosen = name == second or (name != longest and name_hash(name) % 20 == 0)
            if second is not None and chosen == held_out:
                yield document
            elif second is None and name == longest:
                at = len(document.text) * 19 // 20
                at = document.text.rfind("\n", at * 18 // 19, at) + 1 or at  # not far before
                part, cut = ("tail", slice(at, None)) if held_out else ("head", slice(at))
                named = f"{name}:{part}"
                yield Document(name=named, text=document.text[cut], group=document.group)

    @cached_property
    def _two_longest(self) -> list[str | None]:
        """The names of the two longest documents that are not empty, None where there is none."""
        documents = self._documents(self.split_paths[0])
        sizes = [(len(d.text.encode(errors="surrogatepass")), d.name) for d in documents if d.text]
        return [*(name for _, name in sorted(sizes)[:-3:-1]), None, None][:2]

    def _documents(self, files: Sequence[Path]) -> Iterator[Document]:
        """Yields the documents of the files, named by their path below the common folder.

        Raises UserError after the last one for all files that cannot be read.
        """
        folder = os.path.commonpath([path.parent for path in files]) if files else ""
        problems: list[str] = []
        for path in files:
            name = utf8(path.relative_to(folder).as_posix())
            try:
                for text, place, group in texts(path, self.text_column, self.group_column):
                    yield Document(name=f"{name}{place}", text=text, group=group)
            except ValueError as error:
                problems.append(str(error))
        if problems:
            more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
            raise UserError(
                f"corpus.path: {len(problems)} of {len(files)} files cannot be read: "
                f"{'; '.join(problems[:3])}{more}"
            )


def _refuse_other_splits(given: str) -> None:
    """Raises UserError for files of training and of another split, which would be mixed."""
    files = expand_paths(given)
    data = [file for file in files if file.stem.lower() not in ("readme", "license")]
    top = os.path.commonpath([file.parent for file in data or files])
    parts = (file.relative_to(top).parts for file in files if file.is_relative_to(top))
    names = {
        first for first, *below in parts if below or suffix_of(Path(first)) not in (".py", ".md")
    }
    found = [[word[0] for word in SPLIT.finditer(name)] for name in names]
    words = sorted({only[0] for only in found if len(only) == 1})
    words.sort(key=lambda word: not word.lower().startswith(("val", "dev")))  # these first
    train, held = ([w for w in words if w.lower().startswith("train") == t] for t in (True, False))
    if train and held:
        keys = ("corpus.path", "corpus.validation_path")
        globs = (f"{top}/*{word[0]}*" for word in (train, held))
        raise UserError(
            f"corpus.path: {given} has {shortened(', '.join(train + held))}, which would be mixed; "
            f"give {shell_words(dict(zip(keys, globs, strict=True)))}, or a list of files"
        )


def _size(path: Path) -> int:
    """Returns the bytes of a file, none of a link to nothing."""
    return path.stat().st_size if path.exists() else 0


def expand_paths(given: str | Sequence[str], key: str = "corpus.path") -> list[Path]:
    """Returns the files that a path, glob or list of them names, sorted, each once."""
    files: set[Path] = set()
    for path in map(os.path.expanduser, [given] if isinstance(given, str) else given):
        names = [path] if os.path.lexists(path) else glob.glob(path, recursive=True)
        if not names:
            folder, name = os.path.split(os.path.abspath(path))
            near = os.listdir(folder) if os.path.isdir(folder) else []
            hint = suggestion(name, near, otherwise=f"nothing in {folder} has a similar name")
            raise UserError(f"{key}: {path} does not exist; {hint}")
        there = [f for name in names for f in (walk(name, key) if os.path.isdir(name) else [name])]
        paths = [Path(os.path.abspath(f)) for f in there]
        readable = [
            f for f in paths if suffix_of(f) in (*PER_FILE, *PER_ROW) and f.name not in STATE
        ]
        if not os.path.isfile(path):  # in a folder
            readable = [f for f in readable if not f.match("cache-*.arrow")]  # of `datasets`
            readable = current(readable, key)
        if not readable:
            raise UserError(f"{key}: no documents in {path}; expected files of {READABLE}")
        files.update(readable)
    if not files:
        raise UserError(f"{key}: an empty list names no document; give a folder or a file")
    return sorted(files)


def current(files: Sequence[Path], key: str) -> list[Path]:
    """Returns the files without those of an earlier write, which what lists the last leaves out.

    That is state.json of `datasets`, which lists no folder below, and _metadata of parquet. Raises
    UserError for what nothing lists: shards of two writes, such as a-0-of-2 and a-0-of-3, and one
    in two formats, such as a.csv and a.csv.gz.
    """
    top = os.path.commonpath([file.parent for file in files or [Path()]])

    @cache
    def listed(folder: Path) -> set[Path]:
        state, metadata = folder / "state.json", folder / "_metadata"
        try:
            if table := next((name for name in TABLES if [*folder.glob(name)]), None):
                raise ValueError(f"a table of {TABLES[table]}, whose log is not read")
            if state.is_file() and (folder / "dataset_dict.json").is_file():
                raise ValueError("state.json and dataset_dict.json are two writes")
            plain = json.loads(state.read_bytes()) if state.is_file() else {}
            names = {file["filename"] for file in plain.get("_data_files", ())}
            names |= parts_of(metadata) if metadata.is_file() else set()
            if lost := [name for name in names if not (folder / name).is_file()]:
                raise ValueError(f"{lost[0]} is not there")
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(
                f"{key}: which files of {folder} are of the last write is not known "
                f"({first_line(error)}); restore them, or write them into another folder"
            ) from None
        return {folder / name for name in names}

    kept = [file for file in files if _is_split(file.parent)]
    for file in [file for file in kept if suffix_of(file) in COLUMNAR]:
        lists = [names for folder in file.parents[:DEPTH] if (names := listed(folder))]
        above = [folder / "state.json" for folder in file.parents[1:] if folder.is_relative_to(top)]
        if any(map(Path.is_file, above)) or (lists and not any(file in names for names in lists)):
            kept.remove(file)
    writes: dict[tuple[Path, str], tuple[str, Path]] = {}
    for file in kept:
        kind = suffix_of(file)
        end = file.name.lower().rindex(kind) + (0 if kind in PER_ROW else len(kind))
        claims = [(file.name[:end], file.name)]
        if shard := SHARD.match(file.name):
            claims += [(shard[0].removesuffix(shard[2]), file.name), (shard[1], shard[2])]
        for begin, which in claims:
            known, other = writes.setdefault((file.parent, begin), (which, file))
            if known != which:
                raise UserError(
                    f"{key}: {other} and {file.name} are of several writes, of which the earlier "
                    "would be read too; remove that, or give the files of the last by a glob"
                )
    return kept


def _is_split(folder: Path) -> bool:
    """True for a folder that is there, unless it is no split of the DatasetDict that it is in."""
    about = folder.parent / "dataset_dict.json"
    if not about.is_file():
        return folder.is_dir()
    with suppress(OSError, ValueError, LookupError, TypeError):
        is_listed = folder.name in json.loads(about.read_bytes())["splits"]
        if folder.is_dir() or not is_listed:
            return is_listed
    raise UserError(
        f"corpus.path: {about} is damaged, or lacks the split {folder.name}, which it lists; "
        "restore it, or name the folder of a split"
    )


def walk(folder: str | Path, key: str = "corpus.path") -> list[Path]:
    """Returns all files under a folder but hidden ones, sorted, each folder once.

    Links to other folders are followed.
    """

    def refuse(error: OSError) -> None:
        raise UserError(
            f"{key}: cannot read {error.filename}: {error.strerror}; check permissions"
        ) from error

    files, top = list[Path](), Path(folder).resolve()
    seen = {top}
    for root, folders, names in os.walk(os.path.abspath(folder), onerror=refuse, followlinks=True):
        kept: list[str] = []
        for path in (Path(root, name) for name in sorted(folders) if not name.startswith(HIDDEN)):
            real = path.resolve()
            if real not in seen and not (path.is_symlink() and real.is_relative_to(top)):
                seen.add(real)
                kept.append(path.name)
        folders[:] = kept
        files += [Path(root, name) for name in names if not name.startswith(HIDDEN)]
    return sorted(files)


def states(paths: Sequence[Path]) -> str:
    """Returns the hash of what changes when files do: paths, sizes, times of change.

    The second time is the system's: what is copied in place of a file may keep size and the first.
    """
    stats = [(path, path.stat() if path.exists() else path.lstat()) for path in paths]
    lines = [f"{p}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ctime_ns}" for p, stat in stats]
    return hash_of("\0".join(lines).encode(errors="surrogateescape"))
