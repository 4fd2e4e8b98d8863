"""Files: which are read, how they split, and what is said of a user's mistake."""

import json
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_corpora import error_of, files, names, read_all, write


def write_parquet(path: Path, columns: dict[str, list[object]]) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def test_every_kind_of_file_is_read_from_a_folder(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "A", "b/c.md": "B", "d.py": "C", "e.rst": "no", ".git/x.txt": "no"})
    write(tmp_path, {"f.jsonl": '{"text": "D"}\n\n{"text": "E"}\n'})
    write_parquet(tmp_path / "g.parquet", {"text": ["F", "G"], "id": [1, 2]})
    train, validation = read_all(files(tmp_path))
    assert {d.name: d.text for d in train + validation} == {
        "a.txt": "A",
        "b/c.md": "B",
        "d.py": "C",
        "f.jsonl:1": "D",
        "f.jsonl:3": "E",
        "g.parquet:1": "F",
        "g.parquet:2": "G",
    }


def test_a_glob_and_a_list_name_the_same_files_as_their_folder(tmp_path: Path) -> None:
    write(tmp_path, {f"{i}.txt": f"text {i}" for i in range(5)})
    by_folder = read_all(files(tmp_path))
    assert read_all(files(tmp_path / "*.txt")) == by_folder
    assert read_all(files([*sorted(tmp_path.iterdir()), tmp_path])) == by_folder


def test_names_and_split_do_not_depend_on_where_the_folder_lies(tmp_path: Path) -> None:
    contents = {f"x/{i}.txt": f"text {i}" for i in range(50)}
    first = read_all(files(write(tmp_path / "one", contents)))
    second = read_all(files(write(tmp_path / "other" / "place", contents)))
    assert first == second


def test_folders_named_train_and_validation_are_the_splits(tmp_path: Path) -> None:
    write(tmp_path, {"train/a.txt": "A", "train/b.txt": "BBB", "validation/c.txt": "C"})
    train, validation = read_all(files(tmp_path))
    assert (names(train), names(validation)) == (["a.txt", "b.txt"], ["c.txt"])


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


def test_of_two_documents_one_validates(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "short", "b.txt": "much longer"})
    train, validation = read_all(files(tmp_path))
    assert (names(train), names(validation)) == (["b.txt"], ["a.txt"])


def test_the_end_of_a_single_document_validates(tmp_path: Path) -> None:
    text = "".join(f"line {i}\n" for i in range(1000))
    (train,), (validation,) = read_all(files(write(tmp_path, {"a.txt": text})))
    assert train.text + validation.text == text
    assert train.text.endswith("\n")
    assert 0.04 < len(validation.text) / len(text) < 0.06


def test_an_empty_init_file_is_no_document(tmp_path: Path) -> None:
    write(tmp_path, {"__init__.py": "", "a.py": "x = 1", "b.py": "y = 12"})
    train, validation = read_all(files(tmp_path))
    assert names(train) + names(validation) == ["b.py", "a.py"]


# Mistakes


def test_a_missing_path_is_named_with_its_nearest_neighbour(tmp_path: Path) -> None:
    write(tmp_path, {"books/a.txt": "A", "zebra.txt": "Z"})
    said = error_of(files(tmp_path / "boks"))
    assert said == f"corpus.path: {tmp_path}/boks does not exist; did you mean books?"


def test_a_missing_path_like_none_of_many_says_where_was_looked(tmp_path: Path) -> None:
    write(tmp_path, {f"{i}.txt": "A" for i in range(30)})
    said = error_of(files(tmp_path / "books"))
    assert said.endswith(f"books does not exist; {tmp_path} holds nothing of a similar name")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    said = error_of(files(tmp_path / "no" / "a.txt"))
    assert said.endswith(f"does not exist; nor does the folder {tmp_path}/no")


def test_a_missing_path_in_an_empty_folder_says_so(tmp_path: Path) -> None:
    assert error_of(files(tmp_path / "a.txt")).endswith(f"the folder {tmp_path} is empty")


def test_a_missing_validation_path_is_named_by_its_own_key(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "A"})
    said = error_of(files(tmp_path, validation_path=str(tmp_path / "b")))
    assert said.startswith("corpus.validation_path: ")


def test_a_validation_path_that_leaves_nothing_to_train_on_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "A"})
    assert "nothing is left to train on" in error_of(files(tmp_path, validation_path=str(tmp_path)))


def test_a_glob_without_matches_is_an_error(tmp_path: Path) -> None:
    assert "matches no file" in error_of(files(tmp_path / "*.txt"))


def test_an_empty_list_of_paths_is_an_error() -> None:
    assert error_of(files([])).startswith("corpus.path: an empty list")


def test_an_unsupported_suffix_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"a.docx": "A"})
    said = error_of(files(tmp_path / "a.docx"))
    assert said.endswith(
        "a.docx has an unsupported suffix; supported: .txt .md .py .jsonl .parquet"
    )


def test_a_folder_without_documents_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, {"a.docx": "A"})
    assert error_of(files(tmp_path)).startswith(f"corpus.path: no documents in {tmp_path};")


def test_a_file_that_is_not_utf_8_is_named_with_the_byte(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9 au lait")
    assert "a.txt is not UTF-8 at byte 3; convert it" in error_of(files(tmp_path))


def test_the_byte_that_is_not_utf_8_is_counted_from_the_beginning_of_a_jsonl(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "A"}\n{"text": "\xff"}\n')
    assert "a.jsonl is not UTF-8 at byte 24" in error_of(files(tmp_path))


@pytest.mark.parametrize("name", ["b.txt", "b.jsonl"])
def test_an_empty_file_among_others_is_named(tmp_path: Path, name: str) -> None:
    write(tmp_path, {"a.txt": "A", name: "", "c.txt": "C"})
    assert (
        error_of(files(tmp_path))
        == f"corpus.path: {tmp_path / name} is empty; remove it or fill it"
    )


def test_rows_that_are_all_empty_are_no_documents(tmp_path: Path) -> None:
    write(tmp_path, {"a.jsonl": '{"text": ""}\n'})
    assert "no documents in" in error_of(files(tmp_path))


def test_a_single_character_cannot_be_split(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "A"})
    said = error_of(files(tmp_path))
    assert "is the only document, and too short" in said
    assert "corpus.validation_path" in said


@contextmanager
def unprivileged() -> Generator[None]:
    """Takes root's right to read everything away for a moment, so that permissions count."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.parquet"])
def test_a_file_without_permission_is_named(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = write(Path(folder), {name: "A"}) / name
        path.chmod(0)
        with unprivileged():
            said = error_of(files(path))
    assert said == f"corpus.path: cannot read {path}: Permission denied; check permissions"


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_folder_without_permission_is_named() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        closed = Path(folder, "closed")
        write(closed, {"a.txt": "A"})
        closed.chmod(0)
        with unprivileged():
            said = error_of(files(folder))
    assert f"cannot read {closed}: Permission denied" in said


def test_a_line_that_is_not_json_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"a.jsonl": '{"text": "A"}\nnot json\n'})
    assert "a.jsonl:2 is not JSON: Expecting value at column 1" in error_of(files(tmp_path))


def test_a_line_that_is_no_object_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"a.jsonl": "[1]\n"})
    assert "a.jsonl:1 is not a JSON object" in error_of(files(tmp_path))


def test_a_line_without_the_column_is_named_with_its_columns(tmp_path: Path) -> None:
    write(tmp_path, {"a.jsonl": '{"text": "A"}\n{"body": "B", "id": 1}\n'})
    said = error_of(files(tmp_path))
    assert "a.jsonl:2 has no column 'text'; set corpus.text_column to one of: body, id" in said


@pytest.mark.parametrize("value", [7, None, "\ud800"])
def test_a_line_whose_column_is_not_text_is_named(tmp_path: Path, value: object) -> None:
    write(tmp_path, {"a.jsonl": json.dumps({"text": value}) + "\n"})
    assert "a.jsonl:1: column 'text' is not text but " in error_of(files(tmp_path))


def test_a_parquet_without_the_column_lists_its_columns(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", {"body": ["A"], "id": [1]})
    said = error_of(files(tmp_path))
    assert "a.parquet has no column 'text'; set corpus.text_column to one of: body, id" in said


def test_a_parquet_row_that_is_not_text_is_named(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", {"text": ["A", None]})
    assert "a.parquet:2: column 'text' is not text but 'None'" in error_of(files(tmp_path))


def test_a_damaged_parquet_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"a.parquet": "PAR1 and no more"})
    assert "a.parquet is not a parquet file, or damaged" in error_of(files(tmp_path))
