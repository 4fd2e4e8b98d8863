"""The Hub: articles rebuilt from lines, and a local folder in its layout, read by its client."""

from pathlib import Path

import pytest
from small_corpora import error_of, read_all, write

from lengthgen.config import schema
from lengthgen.data.sources.hub import articles

pytestmark = pytest.mark.slow

ROWS = [
    *("", " = One = \n", "", " Body of one . \n", " = not a title = \n", "", " = = Section = = \n"),
    *("", " = = = Deeper = = = \n", "", " More of one . \n", "", " = A = B = \n", ""),
    " Body of two . \n",
]
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


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as Salesforce/wikitext is: a parquet per split, named in the README."""
    name = "raw/{}-00000-of-00001.parquet".format
    train: dict[str, list[object]] = {"text": [*ROWS, "", *ROWS], "row": [*range(31)]}
    validation: dict[str, list[object]] = {"text": [*ROWS], "row": [*range(15)]}
    contents = {name("train"): train, name("validation"): validation, "README.md": README}
    return write(tmp_path_factory.mktemp("hub"), contents)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path))


def corpus(repo: Path | str, **changes: object) -> schema.Corpus:
    plain = {"name": "hub", "source": "hub", "repo": str(repo), "subset": "raw"}
    shared = {"tokenizer": "bpe", "vocab_size": 300, "bos": True, "packed": False}
    return schema.Corpus.model_validate({**plain, **shared, "held_out": "validation", **changes})


def test_an_article_goes_from_its_title_to_the_next_one_and_no_line_is_lost() -> None:
    (first, one), (second, two) = articles(ROWS)
    assert (first, second) == ("One", "A = B")
    assert one.endswith(" = = = Deeper = = = \n\n More of one . \n\n")
    assert (one + two).splitlines() == [row.rstrip("\n") for row in ROWS[1:]]


@pytest.mark.parametrize("streaming", [False, True])
def test_articles_are_the_same_in_every_way_to_read_them(repository: Path, streaming: bool) -> None:
    train, validation = read_all(corpus(repository, rows="wikitext_lines", streaming=streaming))
    numbered = ("1 One", "2 A = B", "3 One", "4 A = B")
    assert [d.name for d in train] == [f"train:{name}" for name in numbered]
    assert [d.name for d in validation] == [f"validation:{name}" for name in numbered[:2]]
    assert [d.text for d in validation] == [text for _, text in articles(ROWS)]


def test_the_first_training_documents_validate_if_there_is_no_such_split(repository: Path) -> None:
    first = {"validation_split": None, "validation_documents": 1, "documents": 2}
    train, validation = read_all(corpus(repository, rows="wikitext_lines", **first))
    assert [d.name for d in validation] == ["train:1 One"]
    assert [d.name for d in train] == ["train:2 A = B", "train:3 One"]


@pytest.mark.parametrize(
    ("repo", "changes", "message"),
    [
        ("elsewhere", {}, "corpus.repo: cannot read {}/elsewhere (corpus.subset=raw, split train"),
        ("", {"subset": "rw"}, "(corpus.subset=rw, split train, revision newest): BuilderConfig"),
        ("", {"train_split": "trian"}, "split trian, revision newest): Unknown split"),
        ("", {"text_column": "body"}, "no text in column 'body'; set corpus.text_column to one"),
        ("", {"text_column": "row"}, "no text in column 'row'; set corpus.text_column to one of"),
        ("", {"validation_split": None}, "corpus: validation_documents: a number is required"),
    ],
)
def test_a_mistake_is_one_line_with_its_key(
    repository: Path, repo: str, changes: dict[str, object], message: str
) -> None:
    said = error_of(corpus(repository / repo, **changes))
    assert message.replace("{}", str(repository)) in said
    assert said.startswith("corpus")
