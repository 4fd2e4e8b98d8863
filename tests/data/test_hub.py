"""The Hub: articles rebuilt from lines, and a local folder in its layout, read by its client."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_corpora import error_of, read_all

from lengthgen.config import schema
from lengthgen.data.sources.hub import articles

pytestmark = pytest.mark.slow

ROWS = [
    "",
    " = One = \n",
    "",
    " Body of one . \n",
    " = not a title = \n",
    "",
    " = = Section = = \n",
    "",
    " = = = Deeper = = = \n",
    "",
    " More of one . \n",
    "",
    " = A = B = \n",
    "",
    " Body of two . \n",
]

ARTICLES = [text for _, text in articles(ROWS)]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay_out(tmp_path_factory.mktemp("hub") / "repository")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path))


def corpus(repo: Path | str, **changes: object) -> schema.Corpus:
    plain = {"name": "hub", "source": "hub", "repo": str(repo), "subset": "raw"}
    shared = {"tokenizer": "bpe", "vocab_size": 300, "bos": True, "packed": False}
    return schema.Corpus.model_validate({**plain, **shared, "held_out": "validation", **changes})


def lay_out(folder: Path) -> Path:
    """Writes a folder as Salesforce/wikitext is: a parquet per split, named in the README."""
    (folder / "raw").mkdir(parents=True)
    for split, rows in {"train": [*ROWS, "", *ROWS], "validation": ROWS}.items():
        table = pa.table({"text": rows, "row": list(range(len(rows)))})
        pq.write_table(table, folder / "raw" / f"{split}-00000-of-00001.parquet")
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: raw\n  data_files:\n"
        "  - split: train\n    path: raw/train-*\n"
        "  - split: validation\n    path: raw/validation-*\n---\n"
    )
    return folder


def test_an_article_goes_from_its_title_to_the_next_one() -> None:
    (first, one), (second, two) = articles(ROWS)
    assert (first, second) == ("One", "A = B")
    assert one.startswith(" = One = \n\n Body of one . \n")
    assert one.endswith(" = = = Deeper = = = \n\n More of one . \n\n")
    assert two == " = A = B = \n\n Body of two . \n"


def test_no_line_is_lost_between_articles() -> None:
    lines = [line for _, text in articles(ROWS) for line in text.splitlines()]
    assert lines == [row.rstrip("\n") for row in ROWS[1:]]


@pytest.mark.parametrize("streaming", [False, True])
def test_articles_are_the_same_in_every_way_to_read_them(repository: Path, streaming: bool) -> None:
    read = read_all(corpus(repository, rows="wikitext_lines", streaming=streaming))
    assert [d.name for d in read[0]] == [
        f"train:{i}" for i in ("1 One", "2 A = B", "3 One", "4 A = B")
    ]
    assert [(d.name, d.text) for d in read[1]] == [
        ("validation:1 One", ARTICLES[0]),
        ("validation:2 A = B", ARTICLES[1]),
    ]


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
