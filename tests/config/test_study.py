"""The grid of a study: its blocks, what an override makes of them, and the one point of a run."""

from pathlib import Path

import pytest
from commands import here
from small import SMALL, refusal

from lengthgen.config import study
from lengthgen.config.drafts import drafted
from lengthgen.report import load

FILE = """# @package _global_
train: {tokens: 512}
grid:
  - {scheme: "rope,alibi", seed: "1,2"}
  - {scheme: "t5,kerple", train.scheme_lr_ratio: 64, seed: "1,2"}
  - {scheme: "alibi", model.dropout: "0.1,0.2", seed: 3, eval.lengths: [16, 32]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conf/study").mkdir(parents=True)
    (tmp_path / "conf/study/mine.yaml").write_text(FILE)
    return tmp_path / "conf"


def points(folder: Path, *overrides: str) -> list[set[str]]:
    every = study.expand_study(["study=mine", *overrides], config_dir=folder)
    return [{*point} - {"study=mine"} for point in every]


def test_a_study_is_the_grid_of_each_block(folder: Path) -> None:
    assert len(points(folder)) == 4 + 4 + 2
    assert {"scheme=kerple", "train.scheme_lr_ratio=64", "seed=2"} in points(folder)
    assert {"scheme=alibi", "model.dropout=0.2", "seed=3", "eval.lengths=[16,32]"} in points(folder)


def test_an_override_replaces_an_axis_of_every_block(folder: Path) -> None:
    assert {word for point in points(folder, "seed=7") for word in point} >= {"seed=7"}
    assert not any("seed=1" in point for point in points(folder, "seed=7"))
    assert len(points(folder, "seed=7,8,9")) == 3 * (2 + 2 + 2)
    assert len(points(folder, "train.lr=1e-3,2e-3")) == 2 * len(points(folder))


def test_a_chosen_scheme_keeps_what_its_blocks_say_of_it(folder: Path) -> None:
    assert all("train.scheme_lr_ratio=64" in point for point in points(folder, "scheme=t5"))
    assert len(points(folder, "scheme=alibi")) == 2 + 2
    assert points(folder, "scheme=nope") == [{"scheme=nope", f"seed={s}"} for s in (1, 2)]
    mixed = points(folder, "scheme=nope,t5")
    assert mixed == points(folder, "scheme=nope") + points(folder, "scheme=t5")


def test_a_point_of_a_sweep_is_whole_and_train_takes_the_first(folder: Path) -> None:
    for point in study.expand_study(["study=mine"], config_dir=folder):
        assert study.first_point(point, config_dir=folder) == point
    config = drafted(["study=mine", "scheme=t5"], config_dir=folder)
    assert (config.seed, config.train.tokens, config.scheme_lr_ratio) == (1, 512, 64)
    quoted = drafted(["study='mine'", 'scheme="t5"', "model.name='2024'"], config_dir=folder)
    assert quoted == drafted(["study=mine", "scheme=t5", "model.name='2024'"], config_dir=folder)
    words = ["study='mine'", "scheme='t5',\"nope\""]
    several = study.expand_study(words, config_dir=folder)
    assert [{*point} - {"study=mine"} for point in several] == points(folder, "scheme=nope,t5")


def test_a_grid_of_another_form_is_refused(folder: Path) -> None:
    (folder / "study/mine.yaml").write_text("# @package _global_\ngrid: {seed: 3}\n")
    assert "give a list of blocks" in refusal(study.expand_study, ["study=mine"], config_dir=folder)


@pytest.mark.slow
def test_a_report_of_a_study_is_of_its_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    words = ["study=mine", "scheme=t5,nope", "seed=1", "--config-dir", str(folder), *SMALL]
    assert here("train", "scheme=rope", *SMALL).code == 0
    assert here("sweep", *words).code == 0
    assert here("eval", "--lengths", "16", "--protocols", "last_k", "--variants", "logn").code == 0
    assert here("report", *words).code == 0
    rows = load.load_rows([Path("results/mine")])
    assert {*rows["scheme"]} == {"t5", "nope"}
    assert {*rows["protocol"]} == {"tail"}
    assert {*rows["variant"]} == {None}
    reported = here("report", *words, "seed=1,2")
    assert "set one key" in reported.error
    more = here("report", *(word for word in words if word != "seed=1"))
    assert "2 of 4 points are not evaluated yet" in more.err
