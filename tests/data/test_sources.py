"""Sources: which documents they hold, how these split, and what identifies them."""

import os
import sys
import sysconfig
from pathlib import Path

import pytest
from small import SMALL
from small_corpora import files, load, names, read_all, stdlib, synthetic, write

from lengthgen.config import schema
from lengthgen.config.schema import Config, from_overrides
from lengthgen.data import corpora, sources
from lengthgen.data.sources import python
from lengthgen.data.sources.python import Python, distributions
from lengthgen.data.sources.stdlib import LONG_BYTES, library_files, source_text
from lengthgen.data.sources.synthetic import Synthetic
from lengthgen.data.tokenizer import read_tokenizer, train_tokenizer
from lengthgen.errors import UserError
from lengthgen.pipeline import train_and_evaluate, validate
from lengthgen.runs import directory
from lengthgen.runs.distributed import ALONE
from lengthgen.terminal import Progress

QUIET = Progress(is_main=False)


def key_of(corpus: schema.Corpus) -> object:
    return sources.source_key(corpus, sources.source_of(corpus))


# Files


def test_every_kind_of_file_is_read_and_what_is_not_read_is_said(
    tmp_path: Path, cache_dir: Path
) -> None:
    write(tmp_path, {"a.txt": "A", "b/c.md": "B", "d.py": "C", "e.rst": "no", ".git/x.txt": "no"})
    write(tmp_path, {"f.jsonl": '{"text": "D"}\n\n{"text": "E"}\n', "h.gz": "no", "i.gz": "no"})
    write(tmp_path, {"g.parquet": {"text": ["F", None, "G"], "id": [1, 2, 3]}})
    said: list[str] = []
    corpora.load(files(tmp_path, tokenizer="bytes"), cache_dir=cache_dir, say=said.append)
    train, validation = read_all(files(tmp_path))
    assert {d.name: d.text for d in train + validation if d.text} == {
        "a.txt": "A",
        "b/c.md": "B",
        "d.py": "C",
        "f.jsonl:1": "D",
        "f.jsonl:3": "E",
        "g.parquet:1": "F",
        "g.parquet:3": "G",
    }
    assert said[0] == f"reading 5 files of {tmp_path}; not read: 2 .gz, 1 .rst"
    assert "1 train documents are empty, and left out" in said


def test_a_glob_and_a_list_name_the_same_files_as_their_folder(tmp_path: Path) -> None:
    write(tmp_path, {f"{i}.txt": f"text {i}" for i in range(5)})
    by_folder = read_all(files(tmp_path))
    assert read_all(files(tmp_path / "*.txt")) == by_folder
    assert read_all(files([*sorted(tmp_path.iterdir()), tmp_path])) == by_folder


def test_names_and_split_do_not_depend_on_where_the_folder_lies(tmp_path: Path) -> None:
    contents = {f"x/{i}.txt": f"text {i}" for i in range(50)}
    first = read_all(files(write(tmp_path / "one", contents)))
    assert read_all(files(write(tmp_path / "other" / "place", contents))) == first


def test_a_name_that_is_no_utf_8_names_a_document(tmp_path: Path) -> None:
    for name in (b"a\xff.txt", b"b\xff.txt"):
        (tmp_path / os.fsdecode(name)).write_text("text")
    train, validation = read_all(files(tmp_path))
    assert sorted(names(train + validation)) == [r"a\xff.txt", r"b\xff.txt"]
    key_of(files(tmp_path))


def test_folders_named_train_and_validation_are_the_splits(tmp_path: Path) -> None:
    write(tmp_path, {"train/a.txt": "A", "train/b.txt": "BBB", "validation/c.txt": "C"})
    assert [*map(names, read_all(files(tmp_path)))] == [["a.txt", "b.txt"], ["c.txt"]]


def test_a_validation_path_is_kept_out_of_training(tmp_path: Path) -> None:
    write(tmp_path, {"train/a.txt": "A", "validation/b.txt": "B", "held/c.txt": "C"})
    train, validation = read_all(files(tmp_path, validation_path=str(tmp_path / "held")))
    assert names(train) == ["train/a.txt", "validation/b.txt"]
    assert names(validation) == ["c.txt"]


def test_one_in_twenty_documents_and_a_long_one_validate(tmp_path: Path) -> None:
    contents = {f"{i}.txt": f"text {i}" for i in range(400)}
    contents |= {"longest.txt": "x" * 999, "second.txt": "x" * 998}
    train, validation = read_all(files(write(tmp_path, contents)))
    assert 8 <= len(validation) <= 40
    assert "second.txt" in names(validation)
    assert "longest.txt" in names(train)
    assert len(train) + len(validation) == 402


def test_of_two_documents_the_shorter_one_validates(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "short", "b.txt": "much longer", "__init__.py": ""})
    assert [*map(names, read_all(files(tmp_path)))][1] == ["a.txt"]


def test_the_end_of_a_single_document_validates(tmp_path: Path) -> None:
    text = "".join(f"line {i}\n" for i in range(1000))
    (train,), (validation,) = read_all(files(write(tmp_path, {"a.txt": text})))
    assert train.text + validation.text == text
    assert train.text.endswith("\n")
    assert 0.04 < len(validation.text) / len(text) < 0.06


def test_a_change_of_a_file_changes_the_source_key(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "A", "b.txt": "B"})
    before = key_of(files(tmp_path))
    assert key_of(files(tmp_path)) == before
    write(tmp_path, {"b.txt": "BB"})
    assert key_of(files(tmp_path)) != before


# Rates are tuned on training documents


def test_tuning_splits_the_training_documents_and_reads_no_others() -> None:
    corpus = synthetic(documents=200)
    train, _ = read_all(corpus)
    tuned = read_all(corpus.model_copy(update={"held_out": "tuning"}))
    assert sorted(names(tuned[0] + tuned[1])) == sorted(names(train))
    assert 4 <= len(tuned[1]) <= 20


# The standard library and installed packages


def test_the_standard_library_is_split_into_mostly_training_with_long_documents_in_both() -> None:
    train, validation = read_all(stdlib(vocab_size=512))
    assert not set(names(train)) & set(names(validation))
    sizes = [[len(document.text.encode()) for document in split] for split in (train, validation)]
    assert sum(map(sum, sizes)) > 5_000_000
    assert sum(sizes[0]) > 0.7 * sum(map(sum, sizes))
    n_long = [sum(size >= LONG_BYTES for size in split) for split in sizes]
    assert n_long[0] >= 5
    assert n_long[1] >= 12


LEFT_OUT = [
    *("test/support.py", "json/tests/a.py", "idlelib/idle_test/a.py", "test_a.py"),
    *("encodings/utf_8.py", "pydoc_data/topics.py", "html/entities.py", "lib2to3/main.py"),
    *("site-packages/numpy/a.py", "dist-packages/a.py", "__pycache__/a.py"),
    *("_sysconfigdata__linux_x86_64-linux-gnu.py", "config-3.13-x86_64-linux-gnu/config.py"),
]


@pytest.mark.parametrize("left_out", LEFT_OUT)
def test_tests_tables_and_packages_are_no_library(tmp_path: Path, left_out: str) -> None:
    write(tmp_path, {left_out: "x = 1\n", "argparse.py": "y = 1\n", "json/tool.py": "z = 1\n"})
    assert [name for name, _ in library_files(tmp_path)] == ["argparse.py", "json/tool.py"]


def test_a_source_in_another_encoding_is_read_as_it_declares(tmp_path: Path) -> None:
    path = tmp_path / "latin.py"
    path.write_bytes("# -*- coding: latin-1 -*-\nx = 'caf\u00e9'\n".encode("latin-1"))
    assert source_text(path).endswith("x = 'caf\u00e9'\n")


CODE = "def add(a, b):\n    return a + b\n"


def install(site: Path, name: str, needs: list[str], files: dict[str, str], version: str) -> None:
    """Writes a distribution as an installer does: its files, METADATA and RECORD."""
    required = "".join(f"Requires-Dist: {need}\n" for need in needs)
    about = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{required}",
        "RECORD": "".join(f"{file},,\n" for file in files),
    }
    write(site, files)
    write(site / f"{name.replace('-', '_')}-{version}.dist-info", about)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All packages there are: lengthgen needs first, first needs second, and nobody needs stray."""
    site = tmp_path / "site-packages"
    extras = ["first>=1", "dev-tool; extra == 'dev'", "absent", "stray; python_version < '3'"]
    install(site, "lengthgen", extras, {"lengthgen/a.py": CODE + "0\n"}, "0.1")
    first = {f"first/m{i}.py": CODE + f"# {i} {'x' * 200}\n" for i in range(80)}
    install(site, "First", ["second.part; python_version >= '3'", "lengthgen"], first, "1.0")
    install(site, "second-part", [], {"second.py": CODE + "# second\n"}, "2.5")
    for name in ("stray", "dev-tool"):
        install(site, name, [], {f"{name}.py": CODE + f"# {name}\n"}, "1.0")
    library = write(tmp_path / "lib", {"argparse.py": CODE + "# argparse\n"})
    paths = sysconfig.get_paths()
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    monkeypatch.setattr(sysconfig, "get_paths", lambda: paths | {"stdlib": str(library)})
    return site


FOUND = sorted([*(f"first/m{i}.py" for i in range(80)), "second.py", "stdlib/argparse.py"])


def read_python() -> tuple[list[str], list[str]]:
    train, validation = (names([*Python().documents(held_out=b)]) for b in (False, True))
    return train, validation


@pytest.mark.usefixtures("site")
def test_what_lengthgen_requires_is_read_and_nothing_else_that_is_installed() -> None:
    versions = {name: package.version for name, package in distributions().items()}
    assert versions == {"first": "1.0", "second-part": "2.5"}
    train, validation = read_python()
    assert validation
    assert sorted(train + validation) == FOUND


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("first/tests/a.py", CODE),
        ("first/test_a.py", CODE),
        ("first/conftest.py", CODE),
        ("first/_vendor/other/a.py", CODE),
        ("../bin/script.py", CODE),
        ("first/data.txt", CODE),
        ("first/made_pb2.py", f"# Generated by the protocol buffer compiler.\n{CODE}"),
        ("first/made.py", f'"""Data.\n\nThis file is auto-generated.\n"""\n{CODE}'),
        ("first/table.py", "TABLE = [" + "12345, " * 99 + "]\n"),
        ("first/empty.py", " \n"),
        ("first/zz.py", CODE + "# second\n"),  # second.py again
        ("gone.py", ""),
        ("latin.py", ""),
    ],
)
def test_tests_copies_generated_files_and_tables_are_no_documents(
    site: Path, name: str, text: str
) -> None:
    second = CODE + "# second\n"
    install(site, "second-part", [], {name: text, "aa.py": second, "second.py": second}, "2.5")
    if name == "gone.py":
        (site / name).unlink()
    if name == "latin.py":
        (site / name).write_bytes(b"x = 1  # caf\xe9\n")
    train, validation = read_python()
    assert sorted(train + validation) == sorted({*FOUND, "aa.py"} - {"second.py"})


def test_another_version_of_a_package_is_another_corpus(site: Path) -> None:
    before = Python().data_key()
    assert Python().data_key() == before
    info = site / "First-1.0.dist-info" / "METADATA"
    info.write_text(info.read_text().replace("Version: 1.0", "Version: 1.1"))
    assert Python().data_key() != before


@pytest.mark.usefixtures("site")
def test_versions_are_in_the_meta_data_and_the_tokenizer_reads_a_part_of_training(
    cache_dir: Path,
) -> None:
    words = ["corpus=python", "corpus.vocab_size=300", "train.precision=fp32"]
    corpus = schema.from_overrides(words, config_dir=None, plugins=[]).corpus
    loaded = load(corpus, cache_dir).corpus
    assert loaded.meta["source"] == Python().data_key()
    assert loaded.meta["source"]["first"] == "1.0"
    train, _ = read_all(corpus)
    sample = [document.text for document in train[:: Python.tokenizer_every]]
    tokenizer = train_tokenizer(iter(sample), vocab_size=300)
    assert read_tokenizer(loaded.tokenizer_path).get_vocab() == tokenizer.get_vocab()


def test_half_of_the_long_sources_and_few_of_the_others_are_held_out(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python, "LONG_BYTES", 40)
    long = {f"long/m{i}.py": f"x = a{'b' * 40}, {i:04}\n" for i in range(600)}
    short = {f"short/m{i}.py": f"x = {'c' * 20}, {i:04}\n" for i in range(600)}
    install(site, "second-part", [], {**long, **short}, "2.5")
    _, validation = read_python()
    held_out = [sum(name.startswith(folder) for name in validation) for folder in ("long", "short")]
    assert held_out[0] / 600 == pytest.approx(1 / 2, abs=0.07)
    assert held_out[1] / 600 == pytest.approx(1 / 40, abs=0.02)


# Seeded random documents


@pytest.mark.parametrize("held_out", [False, True])
def test_a_planted_copy_repeats_a_source_a_quarter_of_the_document_before(held_out: bool) -> None:
    source = Synthetic.of(synthetic(copies=4, document_tokens=400))
    for index in range(20):
        words, copies = source.planted(index, held_out=held_out)
        assert len(copies) == 4
        for copy in copies:
            repeated = words[copy.target : copy.target + copy.n_words]
            assert (words[copy.source : copy.source + copy.n_words] == repeated).all()
            assert copy.target - (copy.source + copy.n_words) >= 400 // 4


def test_random_documents_differ_and_do_not_depend_on_how_many_there_are() -> None:
    few, _ = read_all(synthetic(documents=10))
    many, validation = read_all(synthetic(documents=30))
    assert many[:10] == few
    assert len({document.text for document in many + validation}) == 33
    assert len({word for document in many for word in document.text.split()}) == 64


# A source of one's own: one file and one YAML

FILE = """
from collections.abc import Iterator
from pathlib import Path
from lengthgen.data.sources import Document, Source

class Counting(Source):
    def __init__(self, *, documents: int, path: str | None = None) -> None:
        if documents < 1:
            raise ValueError(f"documents={documents} is not positive")
        self.n, self.path = documents, path

    def documents(self, *, held_out: bool) -> Iterator[Document]:
        split = "validation" if held_out else "train"
        for i in range(self.n):
            text = " ".join(str(n * (i + 2) + held_out) for n in range(60))
            yield Document(name=f"{split}:{i}", text=text)

    def data_key(self) -> str:
        return "" if self.path is None else Path(self.path).read_text()
"""
YAML = """# Numbers: 2 4 6.
name: counting
source: counting
documents: 8
tokenizer: bytes
vocab_size: 257
bos: true
packed: false
"""


def write_source(root: Path, text: str = FILE) -> Path:
    """Writes the file and the YAML of a source; returns the file."""
    write(root, {"counting.py": text, "conf/corpus/counting.yaml": YAML})
    return root / "counting.py"


def configured(root: Path, *words: str, plugins: list[Path]) -> Config:
    small = [word for word in SMALL if not word.startswith("corpus")]
    words = "scheme=alibi", "corpus=counting", *small, f"runtime.root={root}/runs", *words
    return validate(from_overrides(words, config_dir=root / "conf", plugins=plugins))


@pytest.mark.slow
def test_a_plugin_and_a_yaml_are_a_source_that_a_run_is_trained_on(tmp_path: Path) -> None:
    config = configured(tmp_path, plugins=[write_source(tmp_path)])
    run_dir = train_and_evaluate(config, ranks=ALONE, show=QUIET)
    assert (run_dir / "eval.jsonl").stat().st_size
    (tmp_path / "counting.py").unlink()
    stored = directory.load_config(run_dir)
    loaded = corpora.load(stored.corpus, cache_dir=stored.runtime.cache_dir, say=QUIET.say)
    assert bytes(loaded.train.document(0).tolist()).startswith(b"0 2 4 6 8 10 ")
    assert bytes(loaded.validation.document(0).tolist()).startswith(b"1 3 5 7 9 11 ")


def test_a_file_in_the_package_and_a_yaml_are_a_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_source(tmp_path, FILE.replace("Counting", "Numbers"))
    file.rename(tmp_path / "numbers_source.py")
    monkeypatch.setattr(sources, "__path__", [*sources.__path__, str(tmp_path)])
    config = configured(tmp_path, "corpus.source=numbers", plugins=[])
    assert len(load(config.corpus, tmp_path / "cache").corpus.train.names) == 8


def test_code_arguments_and_data_of_a_source_identify_its_corpus(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_text("1")
    words = [f"+corpus.path={data}"]

    def key(*more: str, text: str = FILE) -> object:
        plugins = [write_source(tmp_path, text)]
        return key_of(configured(tmp_path, *words, *more, plugins=plugins).corpus)

    before = key()
    assert key() == before
    assert key("corpus.documents=9") != before
    assert key(text=FILE + "\n# changed\n") != before
    data.write_text("2")
    assert key() != before


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        (FILE, ["corpus.documents=0"], "corpus: documents=0 is not positive"),
        (FILE, ["corpus.documents=a"], "corpus.documents: 'a' should be a valid integer"),
        (FILE, ["+corpus.n=3"], "corpus.n: unknown key; "),
        (FILE, ["corpus.source=count"], "corpus.source: no source 'count'; did you mean counting?"),
        ("x = 1", [], "plugins: .*counting.py defines no subclass of lengthgen.schemes.Part, "),
    ],
)
def test_a_mistake_in_a_source_of_the_user_is_one_line(
    tmp_path: Path, text: str, words: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        configured(tmp_path, *words, plugins=[write_source(tmp_path, text)])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["7", "'a\\ud800'", "b'bytes'", "None"])
def test_a_document_that_is_no_text_is_named(tmp_path: Path, text: str) -> None:
    plugin = write_source(tmp_path, FILE.replace("text=text", f"text={text}"))
    config = configured(tmp_path, plugins=[plugin])
    with pytest.raises(UserError, match="document train:0 is no text that UTF-8 can hold"):
        load(config.corpus, tmp_path / "cache")
