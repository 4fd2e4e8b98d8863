"""Sources: which documents they hold, how these split, and what identifies them."""

import gzip
import hashlib
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from repository import example
from small import SMALL, refusal, smaller
from small_corpora import (
    files,
    load,
    load_of,
    load_tokens,
    names,
    read_all,
    shipped,
    synthetic,
    write,
)

from lengthgen.data.sources import documents
from lengthgen.data.sources.python import (
    LONG_BYTES,
    PROJECT_BYTES,
    PROJECT_FILES,
    Project,
    Python,
)
from lengthgen.data.sources.stdlib import LONG_BYTES as LONG_LIBRARY_BYTES
from lengthgen.data.sources.stdlib import Stdlib
from lengthgen.data.sources.synthetic import Synthetic
from lengthgen.errors import UserError
from lengthgen.experiment import Experiment, resolve
from lengthgen.files import sha256_of


def test_every_kind_of_file_is_read_and_what_is_not_read_is_said(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cache_dir = tmp_path_factory.mktemp("cache")
    zstd = pa.compress(b"text\nK\n", codec="zstd", asbytes=True)
    contents: dict[str, Any] = {
        **{"a.txt": "\ufeffA", "b/c.md": "B", "d.py": "C", "e.log": "no", ".git/x.txt": "no"},
        **{"_temporary/0/m.csv": "text\nno\n", "__MACOSX/a.txt": "no"},
        **{"f.jsonl": '{"text": "D"}\n\n{"text": "E"}\n', "h.so": "no", "i.so": "no"},
        **{"g.parquet": {"text": ["F", None, "G"], "id": [1, 2, 3]}, "l.txt": ""},
        **{"j.jsonl.gz": gzip.compress(b'\xef\xbb\xbf{"text": "H"}\n'), "m.csv": "text\nI\n"},
        **{"k.json": '[{"text": "J"}, {"text": null}]', "n.csv.zst": zstd},
        **{"r.json": '{\n"text": "O"}', "u.json": "\n", "v.parquet": b""},
        **{"o.txt": gzip.compress(b"L"), "q/state.json": "{}", "q/dataset_info.json": "{}"},
    }
    write(tmp_path, contents)
    packed = gzip.compress((tmp_path / "g.parquet").read_bytes())
    write(tmp_path, {"t.parquet.gz": packed})
    linked = write(tmp_path_factory.mktemp("w") / "linked", {"x.txt": "P"})
    (linked / "up").symlink_to(linked)
    for name, place in (("w", linked), ("x", linked), ("b/up", tmp_path)):  # each is read once
        (tmp_path / name).symlink_to(place)
    table = pa.table({"text": ["M", None]})
    for name, new in (
        ("p.arrow", pa.ipc.new_file),
        ("q/data.arrow", pa.ipc.new_stream),
        ("q/cache-7.arrow", pa.ipc.new_stream),
    ):
        with new(str(tmp_path / name), table.schema) as arrow:  # the latter two as of `datasets`
            arrow.write(table)
    said = load(files(tmp_path, tokenizer="bytes"), cache_dir).said
    train, validation = read_all(files(tmp_path))
    named = {"a.txt": "A", "b/c.md": "B", "d.py": "C", "f.jsonl:1": "D", "f.jsonl:3": "E"}
    named |= {"g.parquet:1": "F", "g.parquet:3": "G", "j.jsonl.gz:1": "H", "m.csv:1": "I"}
    named |= {"k.json:1": "J", "n.csv.zst:1": "K", "o.txt": "L", "p.arrow:1": "M"}
    named |= {"r.json:1": "O", "q/data.arrow:1": "M", "w/x.txt": "P"}
    named |= {"t.parquet.gz:1": "F", "t.parquet.gz:3": "G"}
    assert {d.name: d.text for d in train + validation if d.text} == named
    assert said[0] == f"reading 18 files of {tmp_path}; not read: 2 .json, 2 .so, 1 .arrow, 1 .log"
    assert sum(int(line[0]) for line in said if line.endswith("are empty, and left out")) == 7


def test_a_column_says_which_documents_are_of_one_group(tmp_path: Path) -> None:
    columns: dict[str, list[object]] = {"by": [7, None, 8], "text": ["A", "B", "C"]}
    contents: dict[str, Any] = {
        **{"a.parquet": columns, "b.csv": "text,by\nD,7\n", "c.txt": "E"},
        "d.jsonl": '{"text": "F", "by": "x"}\n\n{"by": null, "text": "G"}\n',
    }
    train, validation = read_all(files(write(tmp_path, contents), group_column="by"))
    groups = {d.name: d.group for d in train + validation}
    named = {"a.parquet:1": "7", "a.parquet:2": "", "a.parquet:3": "8", "b.csv:1": "7"}
    assert groups == named | {"c.txt": "", "d.jsonl:1": "x", "d.jsonl:3": ""}


def test_names_and_split_do_not_depend_on_how_or_where_files_are_named(tmp_path: Path) -> None:
    contents = {f"x/{i}.txt": f"text {i}" for i in range(50)}
    folder = write(tmp_path / "one", contents) / "x"
    first = read_all(files(folder))
    assert read_all(files(folder / "*.txt")) == first
    assert read_all(files([*sorted(folder.iterdir()), folder])) == first
    assert read_all(files(write(tmp_path / "other" / "place", contents) / "x")) == first
    titles = {"The Last Train Home.txt": "A", "The Test of Time.txt": "B", "train.py": "C"}
    assert sum(map(len, read_all(files(write(tmp_path / "titles", titles))))) == 3


@pytest.mark.parametrize(
    ("contents", "changes", "validation"),
    [
        ({"train/a.txt": "A", "train/b.txt": "BBB", "validation/c.txt": "C"}, {}, ["c.txt"]),
        ({"a.txt": "A", "b.txt": "BBB", "validation/c.txt": "C"}, {}, ["c.txt"]),
        ({"train/a.txt": "A", "held/c.txt": "C"}, {"validation_path": "{}/held"}, ["c.txt"]),
        ({"a.txt": "short", "b.txt": "much longer", "__init__.py": ""}, {}, ["a.txt"]),
    ],
)
def test_a_split_is_as_given_and_of_two_documents_the_shorter_one_validates(
    tmp_path: Path, contents: dict[str, str], changes: dict[str, str], validation: list[str]
) -> None:
    folder = write(tmp_path, contents)
    given = {key: value.replace("{}", str(folder)) for key, value in changes.items()}
    train, held_out = read_all(files(folder, **given))
    assert [d.name for d in held_out if d.text] == validation
    assert not {d.text for d in train} & {d.text for d in held_out}
    assert len(train) + len(held_out) == len(contents)


def test_what_is_scored_alone_needs_no_text_to_train_on(tmp_path: Path) -> None:
    folder = write(tmp_path / "books", {f"{i}.txt": "text " * i for i in range(1, 9)})
    given = files(folder, validation_path=str(folder), tokenizer="bytes")
    scored = load_tokens(given, cache_dir=tmp_path, say=print, with_training=False)
    assert len(scored.document_lengths("validation")) == 8
    assert "all files of" in refusal(load_tokens, given, cache_dir=tmp_path, say=print)


def test_one_in_twenty_documents_and_a_long_one_validate(tmp_path: Path) -> None:
    contents = {f"{i}.txt": f"text {i}" for i in range(400)}
    contents |= {"longest.txt": "x" * 999, "second.txt": "x" * 998}
    train, validation = read_all(files(write(tmp_path, contents)))
    assert 8 <= len(validation) <= 40
    assert "second.txt" in names(validation)
    assert "longest.txt" in names(train)
    assert len(train) + len(validation) == 402


def test_the_end_of_a_single_document_validates(tmp_path: Path) -> None:
    text = "".join(f"line {i}\n" for i in range(1000))
    (train,), (validation,) = read_all(files(write(tmp_path, {"a.txt": text})))
    assert train.text + validation.text == text
    assert train.text.endswith("\n")
    assert 0.04 < len(validation.text) / len(text) < 0.06
    one_line = write(tmp_path / "title", {"a.txt": f"Title\n{'x' * 1000}"})
    (train,), (validation,) = read_all(files(one_line))
    assert 0.04 < len(validation.text) / 1000 < 0.06


def test_tuning_splits_the_training_documents_and_reads_no_others(tmp_path: Path) -> None:
    corpus = synthetic(documents=200)
    train, _ = read_all(corpus)
    tuned = read_all(corpus.model_copy(update={"held_out": "tuning"}))
    assert sorted(names(tuned[0] + tuned[1])) == sorted(names(train))
    assert 4 <= len(tuned[1]) <= 20
    few = write(tmp_path, {"__init__.py": "", "a.py": "a = 1", "b.py": "b = 22", "c.py": "c = 333"})
    assert any(document.text for document in read_all(files(few, held_out="tuning"))[1])


def test_tuning_holds_out_whole_groups(tmp_path: Path) -> None:
    named = DOCUMENT.replace("text=", "group='abcdefghijklmnopqrstuvwxyz'[step % 26], text=")
    text = FILE.replace(DOCUMENT, named)
    words = ["corpus.documents=200", "corpus.held_out=tuning"]
    given = configured(tmp_path, *words, text=text)
    corpus, source = given.config.corpus, given.source
    train, held_out = ([*documents(corpus, source, held_out=h)] for h in (False, True))
    assert len(train) + len(held_out) == 200
    assert not {d.group for d in train} & {d.group for d in held_out}
    assert 3 <= len({d.group for d in held_out}) <= 13


@pytest.mark.slow
def test_the_standard_library_is_split_into_mostly_training_with_long_documents_in_both() -> None:
    train, validation = read_all(shipped("corpus=stdlib"))
    assert not set(names(train)) & set(names(validation))
    sizes = [[len(document.text.encode()) for document in split] for split in (train, validation)]
    assert sum(map(sum, sizes)) > 5_000_000
    assert sum(sizes[0]) > 0.7 * sum(map(sum, sizes))
    n_long = [sum(size >= LONG_LIBRARY_BYTES for size in split) for split in sizes]
    assert n_long[0] >= 5
    assert n_long[1] >= 12


LEFT_OUT = [
    *("test/support.py", "json/tests/a.py", "idlelib/idle_test/a.py", "test_a.py"),
    *("encodings/utf_8.py", "pydoc_data/topics.py", "html/entities.py", "lib2to3/main.py"),
    *("site-packages/numpy/a.py", "dist-packages/a.py", "__pycache__/a.py"),
    *("_sysconfigdata__linux_x86_64-linux-gnu.py", "config-3.13-x86_64-linux-gnu/config.py"),
]


def test_tests_tables_and_packages_are_no_library_and_encodings_declared(tmp_path: Path) -> None:
    text = "# -*- coding: latin-1 -*-\nx = 'caf\u00e9'\n"
    plain = dict.fromkeys((*LEFT_OUT, "json/tool.py"), b"x = 1\n")
    source = Stdlib()
    source.folder = write(tmp_path, {**plain, "argparse.py": text.encode("latin-1")})
    documents = [d for held_out in (False, True) for d in source.read(held_out=held_out)]
    assert {d.name: d.text for d in documents} == {"argparse.py": text, "json/tool.py": "x = 1\n"}


LICENSES = {"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "Unlicense"}
DOCUMENTS = "eef425ce661abffe"  # sha256 of their names and texts


@pytest.mark.slow
def test_the_pinned_documents_are_those_of_every_machine() -> None:
    digest, source = hashlib.sha256(), Python()
    try:
        documents = [d for held_out in (False, True) for d in source.read(held_out=held_out)]
    except UserError as error:  # without a network and wheels
        pytest.skip(str(error))
    for document in documents:
        digest.update(f"{document.name}\0{document.text}\0".encode())
    assert digest.hexdigest()[:16] == DOCUMENTS
    tuned = shipped("corpus=python", "corpus.held_out=tuning")
    splits = [[*source.read(held_out=held_out)] for held_out in (False, True)]
    for (train, held_out), n_groups, largest in (
        (splits, 24, 0.05),
        (read_all(tuned), 10, 0.1),
    ):
        assert not {d.group for d in train} & {d.group for d in held_out}
        n_bytes, n_long = Counter[str](), Counter[str]()
        for document in train:
            n_bytes[document.group] += len(document.text.encode())
        for document in held_out:
            n_long[document.group] += len(document.text.encode()) >= LONG_BYTES
        assert max(n_bytes.values()) <= largest * n_bytes.total()
        assert sum(n > 0 for n in n_long.values()) >= n_groups
    assert n_long.total() >= 50
    n_long = Counter(d.group for d in splits[1])
    assert n_long.total() >= 128 >= 10 * max(n_long.values())


def test_projects_are_many_free_to_redistribute_and_soon_downloaded() -> None:
    projects = Python().projects
    assert len(projects["train"]) >= 40
    assert len(projects["validation"]) >= 24
    assert not {*projects["train"]} & {*projects["validation"]}
    both = [about for split in projects.values() for about in split.values()]
    assert {about["license"] for about in both} <= LICENSES
    assert sum(about["bytes"] for about in both) <= 90_000_000


def test_a_project_is_read_up_to_its_share_in_an_order_that_is_not_that_of_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = Python()
    source.folder.mkdir(parents=True)
    long = {f"a/{i:02}.py": f"# {i}\n" + "x = y\n" * 66_000 for i in range(20)}
    left_out = {"a/_vendor/b.py": "b = c\n", "a/tests/c.py": "c = d\n", "a/d.txt": "d"}
    short = {"a/short.py": "e = f\n"}
    for name, texts in (("big", long), ("small", short | left_out | {"a/copy.py": "e = f\n"})):
        with zipfile.ZipFile(source.folder / f"{name}.whl", "w") as wheel:
            for path, text in texts.items():
                wheel.writestr(path, text)
    project: dict[str, Project] = {
        name: {"wheel": path.name, "license": "MIT", "bytes": 1, "sha256": sha256_of(path)}
        for name in ("big", "small")
        for path in [source.folder / f"{name}.whl"]
    }
    source.projects = {"train": project, "validation": project}
    train, held_out = ([*source.read(held_out=h)] for h in (False, True))
    big = [d.name for d in train if d.group == "big"]
    assert PROJECT_BYTES - 400_000 < sum(len(d.text) for d in train) <= PROJECT_BYTES + 10
    assert {*big} <= {f"big/{path}" for path in long}
    assert big != sorted(big)
    assert len([d for d in train if d.group == "small"]) == 1  # of two that are equal
    assert [d.name for d in held_out] == big[:PROJECT_FILES]


@pytest.mark.slow
def test_without_a_network_the_corpus_that_needs_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(
        UserError, match=r"cannot download \d+ wheels .*use corpus=stdlib"
    ) as caught:
        next(Python().read(held_out=False))
    assert "\n" not in str(caught.value)
    assert not [*tmp_path.glob("lengthgen/wheels/*")]


def test_a_planted_copy_repeats_a_source_a_quarter_of_the_document_before() -> None:
    source, _ = Synthetic.of(synthetic(copies=4, document_words=400), ())
    for index in range(20):
        words, copies = source.planted(index, held_out=index % 2 == 0)
        assert len(copies) == 4
        for begin, target in copies:
            assert (words[begin : begin + 16] == words[target : target + 16]).all()
            assert target - (begin + 16) >= 400 // 4


def test_random_documents_differ_and_do_not_depend_on_how_many_there_are() -> None:
    few, _ = read_all(synthetic(documents=10))
    many, validation = read_all(synthetic(documents=30))
    assert many[:10] == few
    assert len({document.text for document in many + validation}) == 33
    assert len({word for document in many for word in document.text.split()}) == 64


FILE, YAML = example("counting.py"), example("my_conf/corpus/counting.yaml")
DOCUMENT = 'Document(name=f"{split}:{step}", text=" ".join(map(str, numbers)))'
DATA = """
    def data_key(self) -> str:
        with open("{}") as file:
            return file.read()
"""


def configured(root: Path, *words: str, text: str = FILE) -> Experiment:
    """Returns the experiment of a run on a source of one's own."""
    write(root, {"counting.py": text, "conf/corpus/counting.yaml": YAML})
    small = [word for word in SMALL if not word.startswith("corpus")]
    small += [f"runtime.root={root}/runs", "corpus.documents=8", "corpus.numbers=60"]
    asked = ["scheme=alibi", "corpus=counting", *smaller(*words, usual=small)]
    plugins = [root / "counting.py"] if text else []
    return resolve(asked, config_dir=root / "conf", plugins=plugins)


def test_code_arguments_and_data_of_a_source_identify_its_corpus(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_text("1")

    def key(*words: str, text: str = FILE) -> Path:
        text += DATA.format(data)
        given = configured(tmp_path, *words, text=text)
        return load_of(given, tmp_path / "cache").corpus.tokenizer_path

    before = key()
    assert key() == before
    assert key("corpus.documents=9") != before
    assert key(text=FILE + "\n# changed\n") != before
    data.write_text("2")
    assert key() != before


def test_documents_are_of_the_group_that_their_source_names_or_alone(tmp_path: Path) -> None:
    named = DOCUMENT.replace("text=", "group='abc'[step % 3], text=")
    of_source = load_of(configured(tmp_path, text=FILE.replace(DOCUMENT, named)), tmp_path / "a")
    alone = load_of(configured(tmp_path), tmp_path / "b").corpus
    for split in (of_source.corpus.train, of_source.corpus.validation):
        assert split.groups == ["abc"[int(name.split(":")[1]) % 3] for name in split.names]
    assert alone.train.groups == alone.train.names
    assert alone.validation.groups == alone.validation.names


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        (FILE.replace("self.n_documents,", "raise ValueError('0')  #"), [], "corpus: 0"),
        (FILE, ["corpus.documents=a"], "corpus.documents: 'a' should be a valid integer"),
        ("", [], r"no source 'counting'; .* \(a custom source needs --plugin\)"),
    ],
)
def test_a_mistake_in_a_source_of_the_user_is_one_line(
    tmp_path: Path, text: str, words: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        configured(tmp_path, *words, text=text)


@pytest.mark.parametrize(
    ("code", "said"),  # of a document, or a method beside them
    [
        ("def data_key(self): return 1 / 0", "corpus.source: Counting raised ZeroDivisionError"),
        ("def data_key(self): return b'no JSON'", "corpus.source: Counting raised TypeError"),
        ("1 / 0", r"corpus.source: Counting raised ZeroDivisionError: .*, line \d+\)"),
        ("'text'", "document None is no text"),
        ("Document(name='a', text='\\ud800')", "document a is no text that UTF-8"),
        ("Document(name=step, text='a')", "document 2 is no text .* or has no such name: 'a'"),
        ("Document(name='\\udc80', text='a')", r"document .x80 is no text"),
        ("Document(name='a', text=str(step))", "several train documents are called a; give each"),
    ],
)
def test_an_error_of_a_source_is_one_line(tmp_path: Path, code: str, said: str) -> None:
    with_method, with_document = f"{FILE}\n    {code}\n", FILE.replace(DOCUMENT, code)
    text = with_method if code.startswith("def ") else with_document
    given = configured(tmp_path, text=text)
    with pytest.raises(UserError, match=said):
        load_of(given, tmp_path / "cache")
