"""The Hub: articles rebuilt from lines, a local folder in its layout, and the true client code.

The client runs in a process of its own against a loopback server, because `datasets` reads
HF_ENDPOINT and HF_HOME once, when it is imported. It takes seconds to start, so one process reads
every corpus that the tests ask about.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_server import hub
from repository import ROOT

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

CLIENT = """
import json, sys
from lengthgen.config import schema
from lengthgen.data import sources
from lengthgen.errors import UserError

def answer(plain):
    corpus = schema.Corpus.model_validate(plain)
    source, answers = sources.source_of(corpus), {}
    try:
        for split, held_out in (("train", False), ("validation", True)):
            documents = sources.read(corpus, source, held_out=held_out)
            answers[split] = [(d.name, d.text) for d in documents]
    except UserError as error:
        answers["error"] = str(error)
    return answers | {"said": source.description()}

asked = json.loads(sys.argv[1])
sys.stdout.write(json.dumps({name: answer(plain) for name, plain in asked.items()}))
"""


def corpus(repo: str, **changes: object) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "name": "hub",
        "held_out": "validation",
        "source": "hub",
        "repo": repo,
        "subset": "raw",
        "revision": None,
        "train_split": "train",
        "validation_split": "validation",
        "text_column": "text",
        "rows": "documents",
        "streaming": False,
        "documents": None,
        "validation_documents": None,
        "tokenizer": "bpe",
        "vocab_size": 300,
        "bos": True,
        "packed": False,
    }
    return plain | changes


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


def client(home: Path, asked: dict[str, dict[str, Any]], **environment: str) -> dict[str, Any]:
    """Reads corpora in a process of its own; returns the documents, or the UserError, of each."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, json.dumps(asked)],
        env=kept | {"HF_HOME": str(home), **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = lay_out(tmp_path_factory.mktemp("hub") / "repository")
    repo = "Salesforce/wikitext"
    lines = {"rows": "wikitext_lines"}
    first = {"validation_split": None, "validation_documents": 1, "documents": 2}
    asked = {
        "local": corpus(str(folder), **lines),
        "missing folder": corpus(str(folder / "elsewhere")),
        "downloaded": corpus(repo, **lines),
        "streamed": corpus(repo, **lines, streaming=True),
        "first documents": corpus(repo, **lines, **first),
        "rows": corpus(repo),
        "unknown repository": corpus("Salesforce/nothing"),
        "unknown subset": corpus(repo, subset="rw"),
        "unknown split": corpus(repo, train_split="trian"),
        "unknown column": corpus(repo, text_column="body"),
        "column of numbers": corpus(repo, text_column="row"),
        "no validation": corpus(repo, validation_split=None),
    }
    with hub({repo: folder}) as url:
        return client(tmp_path_factory.mktemp("home"), asked, HF_ENDPOINT=url)


def test_an_article_goes_from_its_title_to_the_next_one() -> None:
    (first, one), (second, two) = articles(ROWS)
    assert (first, second) == ("One", "A = B")
    assert one.startswith(" = One = \n\n Body of one . \n")
    assert one.endswith(" = = = Deeper = = = \n\n More of one . \n\n")
    assert two == " = A = B = \n\n Body of two . \n"


def test_no_line_is_lost_between_articles() -> None:
    lines = [line for _, text in articles(ROWS) for line in text.splitlines()]
    assert lines == [row.rstrip("\n") for row in ROWS[1:]]


@pytest.mark.parametrize("way", ["local", "downloaded", "streamed"])
def test_articles_are_the_same_in_every_way_to_read_them(answers: dict[str, Any], way: str) -> None:
    assert answers[way]["validation"] == [
        ["validation:1 One", ARTICLES[0]],
        ["validation:2 A = B", ARTICLES[1]],
    ]
    assert [name for name, _ in answers[way]["train"]] == [
        "train:1 One",
        "train:2 A = B",
        "train:3 One",
        "train:4 A = B",
    ]


def test_the_first_training_documents_validate_if_there_is_no_such_split(
    answers: dict[str, Any],
) -> None:
    found = answers["first documents"]
    assert [name for name, _ in found["validation"]] == ["train:1 One"]
    assert [name for name, _ in found["train"]] == ["train:2 A = B", "train:3 One"]


def test_the_user_is_told_what_is_downloaded_and_how_long_a_failure_takes(
    answers: dict[str, Any],
) -> None:
    said = answers["downloaded"]["said"]
    assert said.startswith("downloading Salesforce/wikitext from the Hugging Face Hub; without")
    assert "set HF_HUB_OFFLINE=1 to fail at once" in said


WIKITEXT = "corpus.repo: cannot read Salesforce/wikitext (corpus.subset="
NOT_TEXT = "of Salesforce/wikitext is not there or not text; set corpus.text_column to one of: "


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("missing folder", "corpus.repo: cannot read "),
        ("unknown repository", "corpus.repo: cannot read Salesforce/nothing (corpus.subset=raw"),
        ("unknown subset", f"{WIKITEXT}rw, split train, revision newest): BuilderConfig 'rw' not"),
        ("unknown split", f"{WIKITEXT}raw, split trian, revision newest): Unknown split"),
        ("unknown column", f"corpus.text_column: column 'body' {NOT_TEXT}text, row"),
        ("column of numbers", f"corpus.text_column: column 'row' {NOT_TEXT}text"),
        ("no validation", "corpus.validation_documents: a number is required"),
    ],
)
def test_a_mistake_is_one_line_with_its_key(
    answers: dict[str, Any], mistake: str, message: str
) -> None:
    said = answers[mistake]["error"]
    assert said.startswith(message)
    assert "\n" not in said


def test_without_a_network_another_corpus_is_named(tmp_path: Path) -> None:
    asked = {"offline": corpus("emozilla/pg19", subset=None)}
    said = client(tmp_path, asked, HF_HUB_OFFLINE="1")["offline"]["error"]
    assert said.startswith("corpus.repo: cannot read emozilla/pg19 (")
    assert said.endswith("or use corpus=stdlib")
