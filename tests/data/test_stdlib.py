"""The standard library: which sources are documents, how they split."""

from pathlib import Path

import pytest
from small_corpora import names, read_all, write
from small_corpora import stdlib as stdlib_corpus

from lengthgen.data.sources import stdlib
from lengthgen.errors import UserError


def test_the_standard_library_is_split_into_mostly_training_with_long_documents_in_both() -> None:
    train, validation = read_all(stdlib_corpus(vocab_size=512))
    assert not set(names(train)) & set(names(validation))
    sizes = [[len(document.text.encode()) for document in split] for split in (train, validation)]
    assert sum(map(sum, sizes)) > 5_000_000
    assert sum(sizes[0]) > 0.7 * sum(map(sum, sizes))
    n_long = [sum(size >= stdlib.LONG_BYTES for size in split) for split in sizes]
    assert n_long[0] >= 5
    assert n_long[1] >= 12


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
