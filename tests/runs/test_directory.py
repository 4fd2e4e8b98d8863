"""The run directory says what a run is, and finds the runs under a root."""

import json
import os
from pathlib import Path

import pytest
from small import small_config

from lengthgen.data import corpora
from lengthgen.errors import UserError
from lengthgen.runs import directory


def test_a_run_is_found_by_its_id_its_beginning_and_its_path(tmp_path: Path) -> None:
    for scheme in ("rope", "alibi"):
        config = small_config(f"scheme={scheme}", f"runtime.root={tmp_path}")
        config.run_dir.mkdir()
        directory.write_config(config, config.run_dir)
        assert directory.load_config(config.run_dir) == config
        assert directory.find(config.run_id, tmp_path) == config.run_dir
        assert directory.find(scheme, tmp_path) == config.run_dir
        assert directory.find(str(config.run_dir), Path("elsewhere")) == config.run_dir
    with pytest.raises(UserError, match="begins several runs"):
        directory.find("", tmp_path)
    with pytest.raises(UserError, match=r"no such run in .* did you mean rope-"):
        directory.find("ropetiny-synthetic-s1", tmp_path)
    with pytest.raises(UserError, match=r"^there/rope: no folder of a run, and no such run in"):
        directory.find("there/rope", tmp_path)


def test_an_empty_root_says_how_to_make_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="lengthgen train"):
        directory.newest(tmp_path)


@pytest.mark.parametrize("content", ["a: [", "- 1", "seed: x"])
def test_a_damaged_configuration_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.yaml").write_text(content)
    with pytest.raises(UserError):
        directory.load_config(tmp_path)
    with pytest.raises(UserError, match=r"no config\.yaml"):
        directory.load_config(tmp_path / "none")


def test_a_run_without_its_configuration_is_there_with_the_remedy(tmp_path: Path) -> None:
    run_dir = tmp_path / "rope-tiny-synthetic-s1-0a0a0a0a"
    run_dir.mkdir()
    (run_dir / "env.json").write_text("{}")
    assert directory.run_dirs(tmp_path) == [run_dir]
    missing = r"config\.yaml is missing; repeat the lengthgen train command of this run"
    with pytest.raises(UserError, match=missing):
        directory.load_config(directory.find(str(run_dir), tmp_path))


@pytest.fixture
def corpus(tmp_path: Path) -> corpora.TokenizedCorpus:
    config = small_config(f"runtime.cache={tmp_path}")
    return corpora.load(config.corpus, cache_dir=tmp_path, say=print)


def start(run_dir: Path, corpus: corpora.TokenizedCorpus, *, run: str = "rope") -> None:
    directory.write_provenance(run_dir, corpus, run=run, n_parameters=7)


def test_every_start_that_differs_adds_a_segment(
    tmp_path: Path, corpus: corpora.TokenizedCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["lengthgen", "train", "--config-dir", os.fsdecode(b"c\xff")])
    start(tmp_path, corpus)
    start(tmp_path, corpus)
    monkeypatch.setenv("PATH", "")  # and so without git
    monkeypatch.setattr("platform.node", lambda: "another")
    start(tmp_path, corpus)
    provenance = directory.read_provenance(tmp_path, run="rope")
    first, second = provenance["segments"]
    assert first["argv"][-1] == r"c\xff"
    assert (second["host"], second["commit"]) == ("another", None)
    assert first["libraries"] == second["libraries"]
    assert (provenance["fingerprint"], provenance["n_parameters"]) == (corpus.fingerprint, 7)


def test_a_run_of_other_tokens_is_refused(tmp_path: Path, corpus: corpora.TokenizedCorpus) -> None:
    directory.check_corpus(tmp_path, corpus, run="rope")
    start(tmp_path, corpus)
    written = json.loads((tmp_path / "env.json").read_text())
    (tmp_path / "env.json").write_text(json.dumps({**written, "fingerprint": "0" * 64}))
    with pytest.raises(UserError, match="has changed since this run began"):
        directory.check_corpus(tmp_path, corpus, run="rope")
