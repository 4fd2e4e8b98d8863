"""The Hub: a stub of it on this machine, and a local folder in its layout, read by its client."""

import shlex
from pathlib import Path
from typing import Any

import datasets
import pytest
from hub_stub import with_hub
from small import refusal, valid
from small_corpora import read_all, write

from lengthgen.config import schema
from lengthgen.data.tokenizer import train_tokenizer

pytestmark = pytest.mark.slow

README = """---
configs:
- config_name: raw
  data_files:
  - split: train
    path: raw/train-*
  - split: validation
    path: raw/validation-*
---
"""
TEXT = "the cat sat on the mat. " * 20


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a dataset of the Hub is: a parquet per split, named in the README."""
    train: dict[str, list[object]] = {"text": [*"abc", None, TEXT], "row": [*range(5)]}
    files: dict[str, Any] = {"raw/train-0.parquet": train, "README.md": README}
    files["raw/validation-0.parquet"] = {"text": ["d", TEXT], "row": [0, 1]}
    return write(tmp_path_factory.mktemp("hub"), files)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path))


def corpus(repo: Path | str, *words: str) -> schema.Corpus:
    given = ["corpus=hub", f"corpus.repo={repo}", "corpus.subset=raw", *words]
    return valid(given).corpus


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_rows_with_text_are_documents_however_read(repository: Path, streaming: str) -> None:
    splits = read_all(corpus(repository, f"corpus.streaming={streaming}"))
    named = [{d.name: d.text for d in split} for split in splits]
    assert named[0] == {"train:1": "a", "train:2": "b", "train:3": "c", "train:5": TEXT}
    assert named[1] == {"validation:1": "d", "validation:2": TEXT}
    grouped = read_all(corpus(repository, "corpus.group_column=row"))
    assert [d.group for d in grouped[0]] == ["0", "1", "2", "4"]


def test_the_first_training_documents_validate_if_there_is_no_such_split(repository: Path) -> None:
    words = "corpus.validation_split=null", "corpus.validation_documents=1", "corpus.documents=2"
    train, validation = read_all(corpus(repository, *words))
    assert [d.name for d in validation] == ["train:1"]
    assert [d.name for d in train] == ["train:2", "train:3"]


def test_a_folder_of_two_writes_is_read_as_files_alone(tmp_path: Path) -> None:
    def saved(n: int) -> datasets.DatasetDict:
        split = datasets.Dataset.from_dict({"text": [f"{i} {TEXT}" for i in range(n)]})
        return datasets.DatasetDict({"train": split, "validation": split})

    path = tmp_path / "a b"
    saved(8).save_to_disk(path, num_shards={"train": 4, "validation": 1})
    saved(4).save_to_disk(path, num_shards={"train": 2, "validation": 1})
    said = refusal(read_all, corpus(path, "corpus.subset=null"))
    words = shlex.split(said.partition("; give ")[2])
    assert [len(split) for split in read_all(valid(words).corpus)] == [4, 4]
    columns: dict[str, list[object]] = {"text": [TEXT]}
    folder = write(tmp_path / "two", {f"train-{n}.parquet": columns for n in ("0-of-1", "1-of-2")})
    assert "several writes" in refusal(read_all, corpus(folder, "corpus.subset=null"))


@pytest.mark.parametrize(
    ("repo", "word", "message"),
    [
        ("", "corpus.subset=rw", "(corpus.subset=rw, revision newest): BuilderConfig 'rw' not fo"),
        ("raw", "corpus.subset=null", "corpus.train_split: {}/raw has no split trian, but train"),
        ("", "corpus.text_column=body", "row 1 of {} has no text in column 'body'; set corpus.te"),
        ("", "corpus.text_column=row", "'row', which holds int; set corpus.text_column to one"),
    ],
)
def test_a_mistake_names_its_key(repository: Path, repo: str, word: str, message: str) -> None:
    split = "corpus.train_split=trian" if repo else "corpus.train_split=train"
    said = refusal(read_all, corpus(repository / repo, word, split))
    assert message.replace("{}", str(repository)) in said
    assert said.startswith("corpus")


def test_the_hub_is_read_by_its_names_and_from_the_cache_where_it_does_not_answer(
    repository: Path, tmp_path: Path
) -> None:
    def data(name: str, *words: str) -> list[str]:
        return ["data", name, *words, "corpus.subset=raw", f"runtime.root={tmp_path}/runs"]

    train_tokenizer([TEXT], vocab_size=300, say=print).save(str(tmp_path / "tokenizer.json"))
    known = data("o/tiny-1", "corpus.tokenizer=gpt", "corpus.streaming=false")
    again = data("o/tiny-1", "corpus.tokenizer=gpt", "corpus.documents=2")
    unknown, no_tokenizer = data("o/tiny-2"), data("o/tiny-1", "corpus.tokenizer=byte")
    folders = {"datasets/o/tiny-1": repository, "gpt": tmp_path}
    ran = with_hub(tmp_path, folders, [known, unknown, no_tokenizer], [again, unknown])
    for each in (ran[0], ran[3]):
        assert "\nvalidation\t2\t" in each.out
        assert "/lengthgen/corpora/tiny_1-" in each.out
    assert "'o/tiny-2' doesn't exist on the Hub" in ran[1].error
    assert "byte is no file; it cannot be read from the Hub" in ran[2].error
    assert "Repository Not Found" in ran[2].error
    assert "corpus.repo: o/tiny-2 is not cached here, and http://127.0.0.1:" in ran[4].error
