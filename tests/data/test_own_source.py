"""A source of documents is one file and one YAML: in a folder of the user, or in the package."""

from pathlib import Path

import pytest
from small import SMALL

from lengthgen.config.schema import Config, from_overrides
from lengthgen.data import corpora, sources
from lengthgen.errors import UserError
from lengthgen.files import read_rows
from lengthgen.pipeline import train_and_evaluate, validate
from lengthgen.runs import directory
from lengthgen.runs.distributed import ALONE
from lengthgen.terminal import Progress

QUIET = Progress(is_main=False)
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
source: custom
kind: counting
arguments: {documents: 8}
tokenizer: bytes
vocab_size: 257
bos: true
packed: false
"""


def write(root: Path, text: str = FILE) -> Path:
    """Writes the file and the YAML of a source; returns the file."""
    plugin, corpus = root / "counting.py", root / "conf" / "corpus" / "counting.yaml"
    corpus.parent.mkdir(parents=True, exist_ok=True)
    plugin.write_text(text)
    corpus.write_text(YAML)
    return plugin


def configured(root: Path, *words: str, plugins: list[Path]) -> Config:
    small = [word for word in SMALL if not word.startswith("corpus")]
    words = "scheme=alibi", "corpus=counting", *small, f"runtime.root={root}/runs", *words
    return validate(from_overrides(words, config_dir=root / "conf", plugins=plugins))


def key_of(config: Config) -> object:
    return sources.source_key(config.corpus)


@pytest.mark.slow
def test_a_plugin_and_a_yaml_are_a_source_that_a_run_is_trained_on(tmp_path: Path) -> None:
    config = configured(tmp_path, plugins=[write(tmp_path)])
    run_dir = train_and_evaluate(config, ranks=ALONE, show=QUIET)
    assert {row["length"] for row in read_rows(run_dir / "eval.jsonl")} == {16, 32, 64}
    (tmp_path / "counting.py").unlink()
    stored = directory.load_config(run_dir)
    loaded = corpora.load(stored.corpus, cache_dir=stored.runtime.cache_dir, say=QUIET.say)
    assert bytes(loaded.train.document(0).tolist()).startswith(b"0 2 4 6 8 10 ")
    assert bytes(loaded.validation.document(0).tolist()).startswith(b"1 3 5 7 9 11 ")
    assert len(loaded.train.names) == len(loaded.validation.names) == 8


def test_a_file_in_the_package_and_a_yaml_are_a_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, FILE.replace("Counting", "Numbers")).rename(tmp_path / "numbers_source.py")
    monkeypatch.setattr(sources, "__path__", [*sources.__path__, str(tmp_path)])
    config = configured(tmp_path, "corpus.kind=numbers", plugins=[])
    loaded = corpora.load(config.corpus, cache_dir=tmp_path / "cache", say=QUIET.say)
    assert len(loaded.train.names) == 8


def test_code_arguments_and_data_of_a_source_identify_its_corpus(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_text("1")
    words = [f"+corpus.arguments.path={data}"]
    one = key_of(configured(tmp_path, *words, plugins=[write(tmp_path)]))
    assert key_of(configured(tmp_path, *words, plugins=[write(tmp_path)])) == one
    other = configured(tmp_path, *words, "corpus.arguments.documents=9", plugins=[write(tmp_path)])
    changed = configured(tmp_path, *words, plugins=[write(tmp_path, FILE + "\n# changed\n")])
    data.write_text("2")
    again = configured(tmp_path, *words, plugins=[write(tmp_path)])
    assert one not in (key_of(other), key_of(changed), key_of(again))


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        (FILE, ["corpus.arguments.documents=0"], "corpus.arguments: documents=0 is not positive"),
        (FILE, ["corpus.arguments.documents=a"], "corpus.arguments.documents: 'a' is not an integ"),
        (FILE, ["+corpus.arguments.n=3"], "corpus.arguments.n: unknown key; "),
        (FILE, ["corpus.kind=count"], "corpus.kind: no source 'count'; did you mean counting?"),
        ("x = 1", [], "plugins: .*counting.py defines no subclass of lengthgen.schemes.Part, "),
    ],
)
def test_a_mistake_in_a_source_of_the_user_is_one_line(
    tmp_path: Path, text: str, words: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        configured(tmp_path, *words, plugins=[write(tmp_path, text)])
    assert "\n" not in str(caught.value)
