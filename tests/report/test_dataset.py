"""Rows as a dataset of the Hub: what its library reads, what the card says, what a mistake says."""

import io
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from commands import Shell
from datasets import load_dataset
from frames import write_run

from lengthgen.files import write_rows
from lengthgen.report import load
from lengthgen.report.report import sections, table_text

OWN = "/home/me/books"  # a folder of this machine


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run on text of one's own, which its command names."""
    corpus = ["corpus=files", "corpus.name=mine", f"corpus.path={OWN}/train"]
    losses = {256: 3.0, 512: 3.1, 1024: 3.5}
    path = write_run(tmp_path / "runs", overrides=corpus, losses=losses)
    env = {"argv": ["lengthgen", "train", *corpus], "commit": "abc1234", "run": path.name}
    write_rows(path / "env.json", [env])
    return path


def test_the_dataset_is_read_by_its_library_and_by_a_report(
    run: Path, hub: dict[str, bytes], shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    ran = shell.run("report", str(run), "--out", "rep", "--push", "me/rows")
    assert ran.out.endswith("rep/report.html\n" + ran.out.splitlines()[-1] + "\n"), ran
    assert ran.out.endswith("/datasets/me/rows\n")
    got = tmp_path / "got"
    got.mkdir()
    for name, content in hub.items():
        (got / name).write_bytes(content)
    mine = load.load_rows([Path("rep")])
    theirs: Any = load_dataset(str(got), split="train")
    assert theirs.column_names == load.COLUMNS
    for key in ("run", "document", "length", "nats"):
        assert theirs[key] == mine[key].tolist()
    again = shell.run("report", str(got), "--out", "again")
    assert again.code == 0, again
    assert Path("again/table.md").read_text() == Path("rep/table.md").read_text()


def test_the_card_describes_every_column_and_names_no_folder_of_the_machine(
    run: Path, hub: dict[str, bytes], shell: Shell
) -> None:
    assert shell.run("report", str(run), "--out", "rep", "--push", "me/rows").code == 0
    card = hub["README.md"].decode()
    _, head, text = card.split("---\n", 2)
    assert yaml.safe_load(head)["configs"] == [{"config_name": "default", "data_files": load.ROWS}]
    described = text.partition("## Columns")[2].partition("## Commands")[0]
    rows = re.findall(r"^\| (`.*?) \|", described, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(load.COLUMNS)
    assert table_text(sections(load.load_rows([Path("rep")]))) in text
    assert "--out rep --push me/rows\n" in text
    assert "lengthgen train corpus=files corpus.name=mine corpus.path=.../train seed=1" in text
    rows = pd.read_parquet(io.BytesIO(hub[load.ROWS])).to_csv()
    for shared in (card, rows, hub["report.html"].decode()):
        assert OWN not in shared
        assert "/train" in shared
    assert OWN in load.load_rows([Path("rep")])["config"].iloc[0]


def test_a_dataset_that_cannot_be_pushed_keeps_its_folder_and_one_line_says_how_to_push_it(
    run: Path, hub: dict[str, bytes], shell: Shell
) -> None:
    ran = shell.run("report", str(run), "--out", "rep", "--push", "other/rows")
    assert ran.error.startswith("--push: other/rows cannot be written (403"), ran
    assert ran.error.endswith("hf upload other/rows rep/dataset --repo-type=dataset"), ran
    assert not hub
    assert {path.name for path in Path("rep/dataset").iterdir()} >= {"README.md", load.ROWS}
    assert Path("rep/report.html").is_file()
    for name in ("", "a b/c"):  # advice to upload to these would not work
        said = shell.run("report", str(run), "--out", "rep", "--push", name).error
        assert said.startswith("--push: Repo id must"), said
        assert said.endswith("; give USER/NAME"), said
    assert "--check writes nothing" in shell.refused("report", "--check", "--push", "me/rows")
