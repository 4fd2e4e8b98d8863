"""The standard library: which sources are documents, how they split."""

from pathlib import Path

import pytest
from small_corpora import names, read_all, write
from small_corpora import stdlib as stdlib_corpus

from lengthgen.data.sources import Document, stdlib
from lengthgen.errors import UserError


@pytest.fixture(scope="module")
def library() -> tuple[list[Document], list[Document]]:
    return read_all(stdlib_corpus(vocab_size=512))


def test_the_standard_library_has_megabytes_of_text_on_this_interpreter(
    library: tuple[list[Document], list[Document]],
) -> None:
    train, validation = library
    assert sum(len(document.text) for document in train + validation) > 5_000_000


def test_training_keeps_most_of_the_bytes_of_the_standard_library(
    library: tuple[list[Document], list[Document]],
) -> None:
    train, validation = (sum(len(d.text) for d in split) for split in library)
    assert train > 0.7 * (train + validation)


def test_both_splits_of_the_standard_library_have_long_documents(
    library: tuple[list[Document], list[Document]],
) -> None:
    n_long = [sum(len(d.text.encode()) >= stdlib.LONG_BYTES for d in s) for s in library]
    assert n_long[0] >= 5
    assert n_long[1] >= 12


def test_no_source_of_the_standard_library_is_in_both_splits(
    library: tuple[list[Document], list[Document]],
) -> None:
    train, validation = library
    assert not set(names(train)) & set(names(validation))


@pytest.mark.parametrize(
    "left_out",
    [
        "test/support.py",
        "json/tests/a.py",
        "idlelib/idle_test/a.py",
        "test_a.py",
        "encodings/utf_8.py",
        "pydoc_data/topics.py",
        "html/entities.py",
        "lib2to3/main.py",
        "site-packages/numpy/a.py",
        "dist-packages/a.py",
        "__pycache__/a.py",
        "_sysconfigdata__linux_x86_64-linux-gnu.py",
        "config-3.13-x86_64-linux-gnu/python-config.py",
    ],
)
def test_tests_tables_and_packages_are_no_documents(tmp_path: Path, left_out: str) -> None:
    write(tmp_path, {left_out: "x = 1\n", "argparse.py": "y = 1\n", "json/tool.py": "z = 1\n"})
    found = stdlib.sources(tmp_path)
    assert [name for name, _ in found] == ["argparse.py", "json/tool.py"]


def test_an_interpreter_without_sources_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"corpus=stdlib: no sources .* use a Python that ships"):
        stdlib.sources(tmp_path)


def test_a_source_in_another_encoding_is_read_as_it_declares(tmp_path: Path) -> None:
    path = tmp_path / "latin.py"
    path.write_bytes("# -*- coding: latin-1 -*-\nx = 'caf\u00e9'\n".encode("latin-1"))
    assert stdlib.source_text(path).endswith("x = 'caf\u00e9'\n")
