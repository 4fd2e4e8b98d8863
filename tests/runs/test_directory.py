"""The run directory says what a run is, and finds the runs under a root."""

import os
from pathlib import Path

import pytest
import torch
from small import experiment_of, small_config

from lengthgen.data import corpora
from lengthgen.errors import UserError
from lengthgen.files import write_rows
from lengthgen.runs import directory


def test_a_run_is_found_by_its_id_its_beginning_and_its_path(tmp_path: Path) -> None:
    for scheme in ("rope", "alibi"):
        config = small_config(f"scheme={scheme}", f"runtime.root={tmp_path}")
        config.run_dir.mkdir()
        directory.write_config(config, config.run_dir)
        assert directory.load_config(config.run_dir) == config
        assert directory.find(config.run_id, tmp_path) == config.run_dir
        assert directory.find(scheme, tmp_path) == config.run_dir
        with pytest.raises(UserError, match="no such run"):  # as of a variable that is empty
            directory.find("", tmp_path)
        assert directory.find(str(config.run_dir), Path("elsewhere")) == config.run_dir
    directory.write_config(small_config("scheme=alibi"), tmp_path / "alibi-2")
    with pytest.raises(UserError, match="begins several runs"):
        directory.find("a", tmp_path)
    for name in ("ropetiny-synthetic-s1", "rpe-tiny"):
        with pytest.raises(UserError, match=r"no such run in .* did you mean rope-"):
            directory.find(name, tmp_path)
    with pytest.raises(UserError, match=r"^there/rope: no folder of a run, and no such run in"):
        directory.find("there/rope", tmp_path)


def test_a_run_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    run_dir = directory.newest_run(tmp_path)
    with pytest.raises(UserError, match="loop: cannot be read"):
        directory.load_config(run_dir)
    with pytest.raises(UserError, match="loop: cannot be read"):
        directory.newest_run(tmp_path / "loop")


@pytest.mark.parametrize("content", ["a: [", "- 1", "seed: x"])
def test_a_damaged_configuration_is_one_line(tmp_path: Path, content: str) -> None:
    (path := tmp_path / "config.yaml").write_text(content)
    with pytest.raises(UserError, match=rf"; restore {path}, or repeat the lengthgen train com"):
        directory.load_config(tmp_path)
    with pytest.raises(UserError, match=r"no config\.yaml"):
        directory.load_config(tmp_path / "none")


def start(run_dir: Path, corpus: corpora.TokenizedCorpus) -> None:
    weights = {"embedding.weight": torch.ones(2, 2), "x": torch.ones(3)}
    directory.write_provenance(run_dir, corpus, run="rope", weights=weights, code={"rope": "0"})


def test_the_first_start_says_of_what_a_run_is_made_and_later_ones_nothing(
    tmp_path: Path, corpus: corpora.TokenizedCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["lengthgen", "train", "--config-dir", os.fsdecode(b"c\xff")])
    monkeypatch.setenv("PATH", "")  # and so without git
    start(tmp_path, corpus)
    first = directory.read_provenance(tmp_path, run="rope")
    assert (first["argv"][-1], first["commit"]) == (r"c\xff", None)
    assert (first["fingerprint"], first["n_parameters"]) == (corpus.fingerprint, 7)
    assert first["n_parameters_without_embedding"] == 3
    monkeypatch.setattr("platform.node", lambda: "another")
    start(tmp_path, corpus)
    assert directory.read_provenance(tmp_path, run="rope") == first


def test_a_run_of_other_tokens_is_refused(tmp_path: Path, corpus: corpora.TokenizedCorpus) -> None:
    experiment = experiment_of(small_config(f"runtime.cache={tmp_path}/cache"))
    config, source = experiment.config, experiment.source
    directory.load_corpus(config, source, tmp_path, say=print)
    write_rows(tmp_path / "env.json", [{"run": config.run_id, "fingerprint": "0" * 64}])
    with pytest.raises(UserError, match="has changed since this run began"):
        directory.load_corpus(config, source, tmp_path, say=print)
